"""Quantized tensors in expressions and files: decoded while they are read, coded while they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.devices.cpu.codecs.decode import decode, decode_blocks
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.tensors.codecs.codec import Codec, codec
from lbrx.tensors.coded import Blocks, Encode
from lbrx.tensors.storage import CpuStorage

Floats = npt.NDArray[np.float32]
WIDE = 10_240  # columns, so that pieces of 65,536 elements end within rows


@pytest.fixture
def values() -> Floats:
    return np.random.default_rng(1).standard_normal((40, 512)).astype(np.float32)


def block_bytes(tensor: lbrx.Tensor) -> bytes:
    storage = tensor.realize().storage
    assert storage is not None
    return storage.read_at(0, storage.nbytes).tobytes()


def test_arithmetic_sees_the_decoded_values(values: Floats) -> None:
    quantized = lbrx.tensor(values).quantize("q4_k").realize()
    seen = quantized.numpy()
    assert np.array_equal((quantized * 2 + values).numpy(), seen * 2 + values)
    assert np.array_equal(quantized.to("bf16").to("f32").numpy(), lbrx.tensor(seen).to("bf16").to("f32").numpy())
    assert np.array_equal(lbrx.where(quantized > 0, quantized, 0.0).numpy(), np.where(seen > 0, seen, 0))
    assert float(quantized.sum()) == pytest.approx(seen.astype(np.float64).sum(), rel=1e-12)
    assert float(quantized.kth_largest(7)) == np.sort(seen.ravel())[-7]
    assert np.array_equal(quantized.rank().numpy(), lbrx.tensor(seen).rank().numpy())
    assert np.array_equal(quantized.norm(axis=-1).numpy(), lbrx.tensor(seen).norm(axis=-1).numpy())


def test_views_of_quantized_tensors(values: Floats) -> None:
    quantized = lbrx.tensor(values).quantize("q6_k").realize()
    seen = quantized.numpy()
    assert np.array_equal(quantized[3:9, 5:300:7].numpy(), seen[3:9, 5:300:7])
    assert np.array_equal(quantized.T.numpy(), seen.T)
    assert np.array_equal(quantized.reshape(-1, 64).numpy(), seen.reshape(-1, 64))
    assert np.array_equal(quantized.rows([7, 0, 7]).numpy(), seen[[7, 0, 7]])
    joined = lbrx.concatenate([quantized, lbrx.tensor(values)])
    assert np.array_equal(joined.numpy(), np.concatenate([seen, values]))


def test_a_tensor_that_is_used_twice_is_decoded_once(values: Floats) -> None:
    quantized = lbrx.tensor(values).quantize("q8_0").realize()
    assert isinstance(quantized.expr, Blocks)
    difference = (quantized - quantized).expr
    assert quantized.expr.values is quantized.expr.values
    assert difference.args[0] is difference.args[1]  # type: ignore[attr-defined]


def test_dequantize_of_a_plain_tensor_is_the_tensor(values: Floats) -> None:
    tensor = lbrx.tensor(values, name="w")
    assert tensor.dequantize() is tensor
    assert tensor.quantize("q8_0").name == "w"
    assert tensor.quantize("q8_0").dequantize().name == "w"


def test_metadata_tells_the_coding(values: Floats) -> None:
    info = lbrx.tensor(values).quantize("q4_k").quantization
    assert info is not None
    assert (info.scheme, info.bits, info.group_size) == ("q4_k", 4.5, 256)


def test_nothing_is_coded_before_it_is_needed(values: Floats) -> None:
    quantized = lbrx.tensor(values).quantize("q4_0")
    assert isinstance(quantized.expr, Encode)
    assert quantized.storage is None
    assert quantized.nbytes == 40 * 16 * 18
    assert isinstance(quantized.realize().storage, CpuStorage)
    assert quantized.realize().storage is quantized.realize().storage


def test_a_file_gets_the_blocks_that_memory_would_get(values: Floats, tmp_path: Path) -> None:
    doubled = lbrx.tensor(values) * 2
    lbrx.save(tmp_path / "a.gguf", {"w": doubled.quantize("q5_k"), "v": lbrx.tensor(values).quantize("q8_0")})
    model = lbrx.open(tmp_path / "a.gguf")
    assert block_bytes(model["w"]) == block_bytes((lbrx.tensor(values * 2)).quantize("q5_k"))
    assert block_bytes(model["v"]) == block_bytes(lbrx.tensor(values).quantize("q8_0"))
    assert np.array_equal(model["v"].numpy(), lbrx.tensor(values).quantize("q8_0").numpy())


def test_quantized_files_are_merged_directly(values: Floats, tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", -0.5)):
        lbrx.save(tmp_path / f"{name}.gguf", {"w": (lbrx.tensor(values) * factor).quantize("q8_0")})
    first, second = (lbrx.open(tmp_path / f"{name}.gguf")["w"] for name in "ab")
    lbrx.save(tmp_path / "merged.gguf", {"w": (0.5 * first + 0.5 * second).quantize("q4_0")})
    expected = lbrx.tensor(np.float32(0.5) * first.numpy() + np.float32(0.5) * second.numpy()).quantize("q4_0")
    assert block_bytes(lbrx.open(tmp_path / "merged.gguf")["w"]) == block_bytes(expected)


def test_realized_blocks_are_saved_as_they_are(values: Floats, tmp_path: Path) -> None:
    quantized = lbrx.tensor(values).quantize("q3_k")
    made = block_bytes(quantized)
    lbrx.save(tmp_path / "a.gguf", {"w": quantized})
    assert block_bytes(lbrx.open(tmp_path / "a.gguf")["w"]) == made


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q4_k", "iq4_nl"])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_do_not_depend_on_pieces_and_threads(name: str, threads: int) -> None:
    values = np.random.default_rng(2).standard_normal((33, WIDE)).astype(np.float32)
    importance = np.random.default_rng(3).random(WIDE).astype(np.float32)
    source = lbrx.tensor(values) + 0.0
    by_row = b"".join(block_bytes(lbrx.tensor(row[None]).quantize(name, importance)) for row in values)
    with lbrx.using(threads=threads, chunk_elements=1 << 16):
        assert block_bytes(source.quantize(name, importance)) == by_row
        assert block_bytes(lbrx.concatenate([source[:5], source[5:]]).quantize(name, importance)) == by_row


def test_joined_vectors_are_encoded_in_whole_blocks() -> None:
    vector = np.random.default_rng(8).standard_normal(96).astype(np.float32)
    joined = lbrx.concatenate([lbrx.tensor(vector[:5]) * 2, lbrx.tensor(vector[5:]) * 2])
    assert block_bytes(joined.quantize("q8_0")) == block_bytes(lbrx.tensor(vector * 2).quantize("q8_0"))


def test_products_with_blocks_that_are_not_made_yet(values: Floats) -> None:
    x = lbrx.tensor(values[:3])
    for name in ("q8_0", "int8"):
        quantized = lbrx.tensor(values).quantize(name)
        product = (x @ quantized.T).numpy(), (x @ (quantized * 1).T).numpy()
        for result in product:
            np.testing.assert_allclose(result, values[:3] @ quantized.numpy().T, rtol=1e-3, atol=1e-3)


def test_a_stack_of_matrices_has_importances_of_its_own(values: Floats) -> None:
    stack = values.reshape(4, 10, 512)
    importance = np.random.default_rng(4).random((4, 512)).astype(np.float32)
    alone = b"".join(
        block_bytes(lbrx.tensor(matrix).quantize("q4_k", row)) for matrix, row in zip(stack, importance, strict=True)
    )
    assert block_bytes(lbrx.tensor(stack).quantize("q4_k", importance)) == alone
    assert block_bytes(lbrx.tensor(stack).quantize("q4_k", importance.reshape(-1))) == alone


def test_importances_that_do_not_fit_are_refused(values: Floats) -> None:
    tensor = lbrx.tensor(values)
    with pytest.raises(
        ShapeError, match=r"of shape \(100,\) does not match a tensor of shape \(40, 512\); expected \(512,\)"
    ):
        tensor.quantize("q4_k", np.ones(100))
    with pytest.raises(UsageError, match="negative or not finite"):
        tensor.quantize("q4_k", np.full(512, np.nan))
    with pytest.raises(UsageError, match="q8_0 does not support an importance matrix"):
        tensor.quantize("q8_0", np.ones(512))


def test_raw_types_of_other_formats_are_not_decoded() -> None:
    words = lbrx.Tensor(Blocks(CpuStorage(np.zeros(16, np.uint8)), "u32", (4,)))
    with pytest.raises(DTypeError, match="u32 tensors are codes"):
        (words + 1).numpy()


class Wiped(np.ndarray[Any, Any]):
    """A table that cannot be read once nobody holds it."""

    def __del__(self) -> None:
        self[...] = 0


def test_a_codebook_lives_as_long_as_it_is_read() -> None:
    kept = codec("iq2_xxs")
    assert kept.codebook is not None
    table = kept.codebook()
    forgetful = Codec(
        kept.name,
        kept.block_elements,
        kept.block_bytes,
        kept.kernels,
        codebook=lambda: table.copy().view(Wiped),
    )
    blocks = np.random.default_rng(7).integers(0, 0x3C, kept.block_bytes, dtype=np.uint8)
    seen, expected = np.empty((2, kept.block_elements), np.float32)
    decode_blocks(kept, CpuStorage(blocks), (), 0, expected.view(np.uint8))
    decode_blocks(forgetful, CpuStorage(blocks), (), 0, seen.view(np.uint8))
    assert np.abs(expected).max() > 0
    np.testing.assert_array_equal(seen, expected)


@settings(deadline=None)
@given(st.data())
def test_any_window_of_decoded_blocks_can_be_read(data: st.DataObject) -> None:
    record = codec("q8_0")
    blocks = np.random.default_rng(6).integers(0, 0x3C, 5 * record.block_bytes, dtype=np.uint8)
    whole = np.empty(5 * 4 * record.block_elements, np.uint8)
    decode_blocks(record, CpuStorage(blocks), (), 0, whole)
    start = data.draw(st.integers(0, whole.size))
    window = np.empty(data.draw(st.integers(0, whole.size - start)), np.uint8)
    decode(record, CpuStorage(blocks), (), start, window)
    assert window.tobytes() == whole[start : start + window.size].tobytes()
