"""Blocks of ggml as MLX's codes and back: not one value changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.jobs.convert.mlx_repack import UnitStorage, as_blocks, ggml_type_of, repacked
from lbrx.jobs.convert.mlx_units import LOSSLESS
from lbrx.tensors.codecs.mlx import AFFINE_BITS, AFFINE_GROUP_SIZES, MlxMode, MlxWeight, dequantize, encoded_mlx
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import Bytes, CpuStorage

RANDOM = np.random.default_rng(1)
VALUES = RANDOM.standard_normal((6, 512)).astype(np.float32)
VALUES[0, :40] = 0.0
VALUES[1] *= 1e-4


def blocks_of(type_name: str) -> Blocks:
    expr = lbrx.tensor(VALUES).quantize(type_name).realize().expr
    assert isinstance(expr, Blocks)
    return expr


def decoded(parts: MlxWeight, mode: MlxMode) -> np.ndarray:
    return dequantize(parts.weight, parts.scales, parts.biases, mode).numpy()


@pytest.mark.parametrize("type_name", LOSSLESS)
def test_values_stay_exactly_the_same(type_name: str) -> None:
    blocks, mode = blocks_of(type_name), LOSSLESS[type_name].mode
    parts = repacked(blocks)
    assert parts is not None
    assert parts.weight.shape == (6, 512 * mode.bits // 32)
    assert parts.scales.shape == (6, 512 // mode.group_size)
    np.testing.assert_array_equal(decoded(parts, mode), lbrx.Tensor(blocks).dequantize().numpy())


@pytest.mark.parametrize("type_name", LOSSLESS)
def test_random_bytes_are_blocks_too(type_name: str) -> None:
    """Every code and every scale bit: whatever a file holds, apart from scales that are no numbers."""
    from lbrx.tensors.codecs.codec import codec

    raw = RANDOM.integers(0, 256, (64, codec(type_name).block_bytes), np.uint8)
    if type_name == "nvfp4":
        raw[:, :4] &= 0x77
    elif type_name == "mxfp4":
        raw[:, 0] %= 200
    else:
        for high_byte in (1, 3):  # of f16 numbers; in types with one scale, byte 3 is a byte of codes
            raw[:, high_byte] &= 0xBB
    columns = codec(type_name).block_elements * 4
    blocks = Blocks(CpuStorage(raw.reshape(-1)), type_name, (16, columns))
    parts = repacked(blocks)
    assert parts is not None
    np.testing.assert_array_equal(decoded(parts, LOSSLESS[type_name].mode), lbrx.Tensor(blocks).dequantize().numpy())


@pytest.mark.parametrize("type_name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4"])
def test_there_and_back_gives_the_same_bytes(type_name: str) -> None:
    blocks, mode = blocks_of(type_name), LOSSLESS[type_name].mode
    parts = repacked(blocks)
    assert parts is not None
    assert ggml_type_of(parts, mode, 512) == type_name
    back = as_blocks(parts, mode, type_name)
    np.testing.assert_array_equal(back.raw().numpy(), lbrx.Tensor(blocks).raw().numpy())


@pytest.mark.parametrize("group_size", AFFINE_GROUP_SIZES)
@pytest.mark.parametrize("bits", AFFINE_BITS)
def test_codings_of_mlx_as_blocks(bits: int, group_size: int) -> None:
    mode = MlxMode("affine", bits, group_size)
    parts = encoded_mlx(lbrx.tensor(VALUES, "f16"), mode)
    found = ggml_type_of(parts, mode, 512)
    assert found == {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1"}.get(bits)
    if found is not None:
        np.testing.assert_array_equal(as_blocks(parts, mode, found).dequantize().numpy(), decoded(parts, mode))


def test_scales_that_f16_cannot_hold_are_no_blocks() -> None:
    mode = MlxMode("affine", 4, 32)
    for dtype_name, factor in (("f32", 1.0), ("bf16", 1e-12)):
        parts = encoded_mlx(lbrx.tensor(VALUES * np.float32(factor), dtype_name), mode)
        assert ggml_type_of(parts, mode, 512) is None


def test_bf16_scales_that_f16_can_hold_are() -> None:
    mode = MlxMode("affine", 4, 64)
    values = RANDOM.integers(0, 16, (4, 128)).astype(np.float32) / 16
    values[:, ::64], values[:, 1::64] = 0, 15 / 16
    parts = encoded_mlx(lbrx.tensor(values, "bf16"), mode)
    assert ggml_type_of(parts, mode, 128) == "q4_1"


@pytest.mark.parametrize("type_name", ["q2_k", "q3_k", "q6_k", "iq4_xs", "tq2_0"])
def test_types_that_mlx_cannot_hold(type_name: str) -> None:
    assert repacked(blocks_of(type_name)) is None


def test_windows_of_units_begin_and_end_anywhere() -> None:
    whole = np.arange(60, dtype=np.uint8)

    def make(first: int, count: int) -> Bytes:
        return whole[3 * first : 3 * (first + count)]

    storage = UnitStorage(20, 3, make, units_at_once=4)
    for start in range(60):
        for end in range(start, 61):
            np.testing.assert_array_equal(storage.read_at(start, end - start), whole[start:end])


def test_saved_parts_are_what_was_promised(tmp_path: Path) -> None:
    parts = repacked(blocks_of("q5_k"))
    assert parts is not None
    assert parts.biases is not None
    lbrx.save(tmp_path / "a.safetensors", {"w": parts.weight, "s": parts.scales, "b": parts.biases})
    model = lbrx.open(tmp_path / "a.safetensors")
    found = dequantize(model["w"], model["s"], model["b"], LOSSLESS["q5_k"].mode).numpy()
    np.testing.assert_array_equal(found, lbrx.Tensor(blocks_of("q5_k")).dequantize().numpy())
