"""Every type against what ggml itself made: tests/golden/ggml has rows coded and decoded by the real library.

``ggml_rows.npz`` comes from ggml 0.25.3; ``ggml_more_rows.npz`` (NVFP4 and the codebook types, whose blocks are random)
from its ``ggml-quants.c`` built without fused multiply-add; so does
``ggml_codebook_rows.npz`` (codebook types, encoded).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
import support
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codebook_tables import iq1, iq2_s
from lbrx.tensors.codecs.codec import Codec, codec, encodable
from lbrx.tensors.codecs.neighbour_tables import iq1_neighbours, iq2_s_neighbours
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage
from support.references import even_importance

GOLDEN = support.GOLDEN / "ggml"
FILES = ("ggml_rows.npz", "ggml_more_rows.npz", "ggml_codebook_rows.npz")
ROWS = {key: array for name in FILES for key, array in np.load(GOLDEN / name).items()}
INPUT: npt.NDArray[np.float32] = ROWS["input"]
IMATRIX: npt.NDArray[np.float32] = ROWS["imatrix"]
WEIGHTED = [name for name in CODECS if codec(name).takes_imatrix]
ALONE = [name for name in encodable() if not codec(name).needs_imatrix]


def coded(values: npt.NDArray[np.float32], name: str, imatrix: npt.NDArray[np.float32] | None = None) -> bytes:
    storage = lbrx.tensor(values).quantize(name, imatrix).realize().storage
    assert storage is not None
    return storage.read_at(0, storage.nbytes).tobytes()


def decoded(blocks: npt.NDArray[np.uint8], record: Codec) -> npt.NDArray[np.float32]:
    count = blocks.size // record.block_bytes
    storage = CpuStorage(np.ascontiguousarray(blocks).reshape(-1))
    return lbrx.Tensor(Blocks(storage, record.name, (count, record.block_elements))).dequantize().numpy()


@pytest.mark.parametrize("name", ALONE)
def test_coding_gives_the_bytes_that_ggml_gives(name: str) -> None:
    check_blocks(name, coded(INPUT, name), encoded_by_ggml(name))


def check_blocks(name: str, found: bytes, expected: bytes) -> None:
    """Blocks are equal, but for IQ3_S blocks with a sub-block of zeros: ggml moves the codes behind it."""
    record = codec(name)
    blocks, wanted = (np.frombuffer(data, np.uint8).reshape(-1, record.block_bytes) for data in (found, expected))
    is_compared = np.ones(len(blocks), bool)
    if name == "iq3_s":
        is_compared = INPUT.reshape(-1, 8, 32).any(axis=2).all(axis=1) | ~INPUT.reshape(-1, 256).any(axis=1)
        assert is_compared.sum() >= 30
    assert (blocks == wanted)[is_compared].all()


def encoded_by_ggml(name: str) -> bytes:
    """Of codebook types, the rows to decode were not encoded."""
    return ROWS.get(f"{name.upper()}_encoded", ROWS[name.upper()]).tobytes()


@pytest.mark.parametrize("name", WEIGHTED)
def test_coding_by_importance_gives_the_bytes_that_ggml_gives(name: str) -> None:
    check_blocks(name, coded(INPUT, name, IMATRIX), ROWS[f"{name.upper()}_imatrix"].tobytes())
    assert ROWS[f"{name.upper()}_imatrix"].tobytes() != encoded_by_ggml(name)


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
    importance = even_importance(name, record.block_elements)
    alone = b"".join(coded(block, name, importance) for block in values)
    assert coded(values, name, importance) == alone


@pytest.mark.parametrize("name", encodable())
def test_coding_of_decoded_values_stays_close(name: str) -> None:
    record = codec(name)
    values = np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32)
    found = lbrx.tensor(values).quantize(name, even_importance(name, 512)).numpy()
    relative = float(np.sqrt(np.mean((found - values) ** 2) / np.mean(values**2)))
    # A coder of b bits of noise-like values errs by about 2^-b; ternary types keep only the largest magnitudes.
    bound = 1.0 if name.startswith("tq") or name in ("q1_0", "q2_0") else 2.6 * 2.0 ** -int(record.bits)
    assert 0 < relative < bound


@pytest.mark.parametrize("name", encodable())
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_stay_in_their_block(name: str, bad: float) -> None:
    record = codec(name)
    values = INPUT[0, : 2 * record.block_elements].copy()
    values[record.block_elements + 3] = bad
    importance = even_importance(name, values.size)
    damaged = coded(values, name, importance)
    assert len(damaged) == 2 * record.block_bytes
    whole = coded(
        values[: record.block_elements], name, None if importance is None else importance[: record.block_elements]
    )
    assert damaged[: record.block_bytes] == whole


@pytest.mark.parametrize("name", encodable())
def test_zeros_stay_zeros(name: str) -> None:
    found = lbrx.tensor(np.zeros((2, 256), np.float32)).quantize(name, even_importance(name, 256)).numpy()
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
    found = lbrx.tensor(values).quantize(name, even_importance(name, values.size)).numpy()
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


@pytest.mark.parametrize("name", ["iq1_s", "iq2_xxs", "iq2_xs"])
def test_some_types_need_importances(name: str) -> None:
    tensor = lbrx.tensor(np.zeros((1, 256), np.float32)).quantize(name)
    with pytest.raises(UsageError, match=f"cannot encode as {name} without an importance matrix"):
        tensor.realize()


def test_sub_blocks_of_zeros_do_not_move_others() -> None:
    """ggml's iq3_s shifts the codes behind a sub-block of zeros; ours does not, so that the values stay close."""
    values = np.random.default_rng(2).standard_normal((1, 256)).astype(np.float32)
    values[0, 32:64] = 0.0
    found = lbrx.tensor(values).quantize("iq3_s").numpy()
    assert not found[0, 32:64].any() or np.abs(found[0, 32:64]).max() < 0.2
    assert np.sqrt(np.mean((found - values) ** 2)) < 0.3


@pytest.mark.parametrize("codebook", [iq1_neighbours, iq2_s_neighbours])
def test_neighbours_are_the_nearest_entries(codebook: Callable[[], npt.NDArray[np.int32]]) -> None:
    entries = {iq1_neighbours: iq1(), iq2_s_neighbours: iq2_s()}[codebook].reshape(-1, 8)
    levels = np.searchsorted(np.unique(entries), entries)
    rows = codebook()[: 2 * 3**8].reshape(-1, 2)
    records = codebook()[2 * 3**8 :].reshape(-1, 24)
    for number in (1, 1000, 6000):
        group = number // 3 ** np.arange(8) % 3
        distances = ((levels - group) ** 2).sum(axis=1)
        count, first = rows[number]
        if count == 0:
            assert distances[first] == 0
            continue
        listed = records[first : first + count, :8].reshape(-1)
        shells = 3 if codebook is iq1_neighbours else 1
        nearest = np.flatnonzero(distances <= np.unique(distances)[shells - 1])
        assert sorted(set(listed.tolist())) == nearest.tolist()
        assert distances[listed[0]] == distances.min()
