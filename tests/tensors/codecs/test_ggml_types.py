"""Every type against what ggml itself made: tests/golden/ggml has rows coded and decoded by the real library.

``ggml_rows.npz`` comes from ggml 0.25.3; ``ggml_more_rows.npz`` (NVFP4 and the codebook types, whose blocks are random)
from its ``ggml-quants.c`` built without fused multiply-add.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
import support
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codec import Codec, codec, encodable
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage

GOLDEN = support.GOLDEN / "ggml"
ROWS = {**np.load(GOLDEN / "ggml_rows.npz"), **np.load(GOLDEN / "ggml_more_rows.npz")}
INPUT: npt.NDArray[np.float32] = ROWS["input"]
IMATRIX: npt.NDArray[np.float32] = ROWS["imatrix"]
WEIGHTED = [name for name in CODECS if codec(name).takes_imatrix]


def coded(values: npt.NDArray[np.float32], name: str, imatrix: npt.NDArray[np.float32] | None = None) -> bytes:
    storage = lbrx.tensor(values).quantize(name, imatrix).realize().storage
    assert storage is not None
    return storage.read_at(0, storage.nbytes).tobytes()


def decoded(blocks: npt.NDArray[np.uint8], record: Codec) -> npt.NDArray[np.float32]:
    count = blocks.size // record.block_bytes
    storage = CpuStorage(np.ascontiguousarray(blocks).reshape(-1))
    return lbrx.Tensor(Blocks(storage, record.name, (count, record.block_elements))).dequantize().numpy()


@pytest.mark.parametrize("name", encodable())
def test_coding_gives_the_bytes_that_ggml_gives(name: str) -> None:
    assert coded(INPUT, name) == ROWS[name.upper()].tobytes()


@pytest.mark.parametrize("name", WEIGHTED)
def test_coding_by_importance_gives_the_bytes_that_ggml_gives(name: str) -> None:
    assert coded(INPUT, name, IMATRIX) == ROWS[f"{name.upper()}_imatrix"].tobytes()
    assert ROWS[f"{name.upper()}_imatrix"].tobytes() != ROWS[name.upper()].tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_decoding_gives_the_numbers_that_ggml_gives(name: str) -> None:
    expected = ROWS[f"{name.upper()}_dequantized"]
    found = decoded(ROWS[name.upper()], codec(name))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_types_are_rounded_as_ggml_rounds(name: str) -> None:
    assert lbrx.tensor(INPUT).to(name).numpy().tobytes() == ROWS[name.upper()].tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_records_agree_with_the_types_of_gguf(name: str) -> None:
    record, row = codec(name), GGML_TYPES[name]
    assert (record.name, record.block_elements, record.block_bytes) == (row.name, row.block_elements, row.block_bytes)
    assert record.nbytes((3, 512)) == row.nbytes((3, 512))


@pytest.mark.parametrize("name", encodable())
def test_blocks_do_not_depend_on_their_neighbours(name: str) -> None:
    record = codec(name)
    values = INPUT.reshape(-1, record.block_elements)[:11]
    alone = b"".join(coded(block, name) for block in values)
    assert coded(values, name) == alone


@pytest.mark.parametrize("name", encodable())
def test_coding_of_decoded_values_stays_close(name: str) -> None:
    record = codec(name)
    values = np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32)
    found = lbrx.tensor(values).quantize(name).numpy()
    relative = float(np.sqrt(np.mean((found - values) ** 2) / np.mean(values**2)))
    # A coder of b bits of noise-like values errs by about 2^-b; ternary types keep only the largest magnitudes.
    bound = 1.0 if name.startswith("tq") else 2.6 * 2.0 ** -int(record.bits)
    assert 0 < relative < bound


@pytest.mark.parametrize("name", encodable())
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_stay_in_their_block(name: str, bad: float) -> None:
    record = codec(name)
    values = INPUT[0, : 2 * record.block_elements].copy()
    values[record.block_elements + 3] = bad
    damaged = coded(values, name)
    assert len(damaged) == 2 * record.block_bytes
    assert damaged[: record.block_bytes] == coded(values[: record.block_elements], name)


@pytest.mark.parametrize("name", encodable())
def test_zeros_stay_zeros(name: str) -> None:
    found = lbrx.tensor(np.zeros((2, 256), np.float32)).quantize(name).numpy()
    assert not found.any()


def test_signs_of_zeros_are_those_of_ggml() -> None:
    """In ggml the first of several equal elements counts, and a scale of zeros is 0 / -8."""
    zeros = np.zeros(32, np.float32)
    zeros[0] = -0.0
    assert coded(zeros, "q4_0") == b"\x00\x80" + 16 * b"\x88"
    assert coded(zeros, "q4_1") == b"\x00\x00\x00\x80" + 16 * b"\x00"
    assert coded(-zeros, "q4_1") == 20 * b"\x00"


@pytest.mark.parametrize("name", encodable())
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-20])
def test_values_too_small_for_a_scale_become_small(name: str, size: float) -> None:
    values = (INPUT[:1] * np.float32(size)).astype(np.float32)
    found = lbrx.tensor(values).quantize(name).numpy()
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 1e-6


def test_names_are_found_in_capitals_and_unknown_ones_get_a_hint() -> None:
    assert codec("Q4_K") is codec("q4_k")
    with pytest.raises(DTypeError, match="did you mean 'q4_k'"):
        codec("q4k")


def test_rows_have_to_be_whole_blocks() -> None:
    with pytest.raises(ShapeError, match=r"rows of 100 elements; expected a multiple of 32 for q8_0"):
        lbrx.tensor(np.zeros((2, 100), np.float32)).quantize("q8_0")
    with pytest.raises(ShapeError, match="no axes"):
        lbrx.tensor(np.float32(1)).quantize("q8_0")


def test_codebook_types_cannot_be_made() -> None:
    tensor = lbrx.tensor(np.zeros((1, 256), np.float32)).quantize("iq2_xs")
    with pytest.raises(UsageError, match="cannot encode as iq2_xs, only decode it; expected one of q4_0"):
        tensor.realize()
