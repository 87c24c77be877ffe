"""Vectors, few and many, times codes with separate scales and offsets: within the documented bound of NumPy in f64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.build.native import codec_kernel
from lbrx.devices.cpu.ops.gemm_groups import gemm_groups
from lbrx.devices.cpu.ops.gemm_i16 import FORMS, WORDS
from lbrx.devices.cpu.ops.gemv_groups import gemv_groups
from lbrx.engine.block_sizes import MOST_VECTORS
from lbrx.errors import TruncatedError
from lbrx.ops import linear
from lbrx.tensors.codecs.mlx import FLOAT_MODES, MlxMode, MlxWeight, dequantize, encoded_mlx
from lbrx.tensors.coded import SCHEMES
from support.references import THREADS, normal, wide

AFFINE = [  # bits, group size, type of scales; together all kernels, and all ways to read scales
    *((2, 32, "f16"), (2, 128, "bf16"), (3, 64, "f16"), (4, 32, "bf16"), (4, 64, "f16"), (4, 64, "f32")),
    *((4, 128, "f16"), (5, 32, "f32"), (6, 64, "bf16"), (8, 64, "f16"), (8, 128, "f32")),
]


def mlx_parts(values: lbrx.Tensor, mode: MlxMode) -> MlxWeight:
    coded = encoded_mlx(values, mode)
    assert coded.biases is not None
    return MlxWeight(coded.weight.realize(), coded.scales.realize(), coded.biases.realize())


def affine_weight(values: npt.NDArray[np.float32], bits: int, group_size: int, dtype: str) -> lbrx.Tensor:
    mode = MlxMode("affine", bits, group_size)
    parts = mlx_parts(lbrx.tensor(values).to(dtype), mode)
    return dequantize(parts.weight, parts.scales, parts.biases, mode)


def bound(
    x: Any, weight: lbrx.Tensor, offsets: npt.NDArray[np.float64], activation_bits: int = 16
) -> npt.NDArray[np.float64]:
    """What `gemv_groups` promises. ``offsets`` has what is added to scale times code, for every weight."""
    values, vectors = wide(weight), wide(x)
    largest = abs(vectors).reshape(len(vectors), -1, 32).max(-1)
    magnitudes = abs(values).reshape(len(values), -1, 32).sum(-1)
    parts = abs(vectors) @ (abs(values - offsets) + abs(offsets)).T
    rounding = (vectors.shape[1] / 32 + 16) * 2.0**-24
    return (
        (largest @ magnitudes.T) / (254 if activation_bits == 8 else 65278)
        + rounding * parts
        + 2.0**-99 * magnitudes.sum(-1)
    )


def of_rounded_weights(x: Any, weight: lbrx.Tensor) -> npt.NDArray[np.float64]:
    """What the weights of mxfp8 may change in a result with many vectors."""
    blocks = abs(wide(weight)).reshape(weight.shape[0], -1, 32)
    return abs(wide(x)) @ blocks.max(-1).repeat(32, 1).T / 2048


def check(x: npt.NDArray[np.float32], weight: lbrx.Tensor, offsets: npt.NDArray[np.float64], more: Any = 0) -> None:
    got = np.full((len(x), weight.shape[0]), np.nan, np.float32)
    assert (gemv_groups if len(x) <= MOST_VECTORS else gemm_groups)(x, weight.expr, got)
    error = abs(got - wide(x) @ wide(weight).T)
    limit = bound(x, weight, offsets) + more
    assert (error <= limit).all(), f"{(error / limit).max()} of the bound"


def check_in_8_bits(x: npt.NDArray[np.float32], weight: lbrx.Tensor, offsets: npt.NDArray[np.float64]) -> None:
    """The bound, and that products of bytes have the bits of products of words."""
    in_bytes, in_words = (np.full((len(x), weight.shape[0]), np.nan, np.float32) for _ in range(2))
    assert gemm_groups(x, weight.expr, in_bytes, 8)
    error, limit = abs(in_bytes - wide(x) @ wide(weight).T), bound(x, weight, offsets, 8)
    assert (error <= limit).all(), f"{(error / limit).max()} of the bound"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FORMS, 8, WORDS._replace(suffix="_in_8_bits"))
        assert gemm_groups(x, weight.expr, in_words, 8)
    np.testing.assert_array_equal(in_bytes, in_words)


def biases_of(weight: lbrx.Tensor, group_size: int) -> npt.NDArray[np.float64]:
    biases = weight.expr.parts[2]  # type: ignore[attr-defined]
    return np.repeat(wide(lbrx.Tensor(biases)), group_size, axis=1)


@pytest.mark.parametrize(("bits", "group_size", "dtype"), AFFINE)
def test_affine_weights_times_many_vectors_of_8_bits(bits: int, group_size: int, dtype: str) -> None:
    for vectors, groups in ((5, 9), (37, 1)):
        weight = affine_weight(normal(70, groups * group_size), bits, group_size, dtype)
        check_in_8_bits(normal(vectors, groups * group_size), weight, biases_of(weight, group_size))


@pytest.mark.parametrize("scheme", ["int8", "int4", "int2"])
def test_integers_times_many_vectors_of_8_bits(scheme: str) -> None:
    weight = lbrx.tensor(normal(70, 1056)).quantize(scheme, group_size=32).realize()
    check_in_8_bits(normal(21, 1056), weight, np.zeros(weight.shape))


@pytest.mark.parametrize("mode_name", ["mxfp4", "nvfp4"])
def test_floats_of_4_bits_times_many_vectors_of_8_bits(mode_name: str) -> None:
    mode = MlxMode(mode_name, *FLOAT_MODES[mode_name])
    coded = encoded_mlx(lbrx.tensor(normal(70, 1056)), mode)
    weight = dequantize(coded.weight.realize(), coded.scales.realize(), None, mode)
    check_in_8_bits(normal(21, 1056), weight, np.zeros(weight.shape))


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 9, 33])
@pytest.mark.parametrize(("bits", "group_size", "dtype"), AFFINE)
def test_affine_weights(bits: int, group_size: int, dtype: str, groups: int) -> None:
    for vectors in (1, 2, 3, 4):
        weight = affine_weight(normal(11, groups * group_size, seed=groups), bits, group_size, dtype)
        check(normal(vectors, groups * group_size), weight, biases_of(weight, group_size))


@pytest.mark.parametrize("vectors", [5, 33])
@pytest.mark.parametrize(("bits", "group_size", "dtype"), AFFINE)
def test_affine_weights_times_many_vectors(bits: int, group_size: int, dtype: str, vectors: int) -> None:
    for rows, groups in ((1, 9), (67, 20)):
        weight = affine_weight(normal(rows, groups * group_size), bits, group_size, dtype)
        check(normal(vectors, groups * group_size), weight, biases_of(weight, group_size))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_integers_times_many_vectors(scheme: str) -> None:
    weight = lbrx.tensor(normal(70, 1152) + 0.5).quantize(scheme, group_size=96, symmetric=False).realize()
    info = weight.quantization
    assert info is not None
    zeros = wide(info.zero_points) + (0 if scheme == "int8" else 2.0 ** (SCHEMES[scheme] - 1))
    check(normal(19, 1152), weight, np.repeat(-zeros * wide(info.scales), 96, axis=1))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_longer_than_a_segment(bits: int) -> None:
    weight = affine_weight(normal(3, 2 * 4096 + 192), bits, 64, "f16")
    check(normal(2, 2 * 4096 + 192), weight, biases_of(weight, 64))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, 64, 96, 160, 480])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_integers(scheme: str, group_size: int, symmetric: bool) -> None:
    values = lbrx.tensor(normal(13, 480 if group_size != 64 else 448) + 0.5)
    weight = values.quantize(scheme, group_size=group_size, symmetric=symmetric).realize()
    info = weight.quantization
    assert info is not None
    scales = np.repeat(wide(info.scales), group_size, axis=1)
    zeros = 0 if info.zero_points is None else np.repeat(wide(info.zero_points), group_size, axis=1)
    offsets = -(zeros + (0 if scheme == "int8" else 2.0 ** (SCHEMES[scheme] - 1))) * scales
    for vectors in (1, 3):
        check(normal(vectors, weight.shape[1]), weight, offsets)


def small_floats(mode_name: str, rows: int, columns: int) -> lbrx.Tensor:
    """Random weights of very different magnitudes."""
    mode = MlxMode(mode_name, *FLOAT_MODES[mode_name])
    exponents = np.random.default_rng(1).integers(-6, 6, (rows, columns // 16)).repeat(16, 1)
    coded = encoded_mlx(lbrx.tensor((normal(rows, columns) * np.exp2(exponents)).astype(np.float32)), mode)
    return dequantize(coded.weight.realize(), coded.scales.realize(), None, mode)


@pytest.mark.parametrize("columns", [32, 64, 96, 160, 288, 4096 + 224])
@pytest.mark.parametrize("mode_name", FLOAT_MODES)
def test_small_floats(mode_name: str, columns: int) -> None:
    weight = small_floats(mode_name, 9, columns)
    for vectors in (1, 3):
        check(normal(vectors, columns), weight, np.zeros(weight.shape))


@pytest.mark.parametrize(("rows", "columns", "vectors"), [(1, 32, 5), (9, 96, 33), (67, 4096 + 224, 7)])
@pytest.mark.parametrize("mode_name", FLOAT_MODES)
def test_small_floats_times_many_vectors(mode_name: str, rows: int, columns: int, vectors: int) -> None:
    weight, x = small_floats(mode_name, rows, columns), normal(vectors, columns)
    check(x, weight, np.zeros(weight.shape), of_rounded_weights(x, weight) if mode_name == "mxfp8" else 0)


def test_floats_of_eight_bits_that_are_not_rounded() -> None:
    mode, columns = MlxMode("mxfp8", *FLOAT_MODES["mxfp8"]), 512
    codes = np.random.default_rng(2).integers(0x30, 0x6F, (70, columns), dtype=np.uint8)  # 2**-1 to 2**6
    codes[::2] |= 0x80
    scales = np.random.default_rng(3).integers(100, 140, (70, columns // 32), dtype=np.uint8)
    weight = dequantize(lbrx.tensor(codes.view(np.int32)), lbrx.tensor(scales), None, mode)
    check(normal(20, columns), weight, np.zeros(weight.shape))


@pytest.mark.parametrize("vectors", [1, 6])
def test_floats_of_eight_bits_that_are_no_numbers(vectors: int) -> None:
    mode = MlxMode("mxfp8", *FLOAT_MODES["mxfp8"])
    codes, scales = np.full((5, 96), 0x38, np.uint8), np.full((5, 3), 127, np.uint8)
    codes[1, 40], codes[2, 95], scales[3, 1] = 0x7F, 0xFF, 255
    codes[4, 32:64] = 0
    weight = dequantize(lbrx.tensor(codes.view(np.int32)), lbrx.tensor(scales), None, mode)
    got = linear(np.ones((vectors, 96), np.float32), weight)
    np.testing.assert_allclose(got, [[96, np.nan, np.nan, np.nan, 64]] * vectors, rtol=1e-4)


@pytest.mark.parametrize(("mode_name", "code"), [("mxfp4", 255), ("nvfp4", 127), ("nvfp4", 1), ("mxfp4", 0)])
def test_scales_that_are_special_codes(mode_name: str, code: int) -> None:
    mode = MlxMode(mode_name, *FLOAT_MODES[mode_name])
    coded = encoded_mlx(lbrx.tensor(normal(3, 288)), mode)
    scales = coded.scales.numpy().copy()
    scales[1] = code
    weight = dequantize(coded.weight.realize(), lbrx.tensor(scales), None, mode)
    for product, vectors in ((gemv_groups, 1), (gemm_groups, 6)):
        x, got = normal(vectors, 288), np.empty((vectors, 3), np.float32)
        assert product(x, weight.expr, got)
        expected = wide(x) @ wide(weight).T
        assert np.isnan(expected[0, 1]) == (code in (255, 127))
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


def test_rows_that_are_no_whole_groups_are_decoded() -> None:
    weight = affine_weight(normal(6, 192), 4, 64, "f16").reshape(12, 96)
    x = normal(1, 96)
    assert not gemv_groups(x, weight.expr, np.empty((1, 12), np.float32))
    np.testing.assert_allclose(linear(x, weight), wide(x) @ wide(weight).T, atol=1e-4)


def test_one_scale_for_a_long_row() -> None:
    weight = lbrx.tensor(normal(5, 8320)).quantize("int8", group_size=8320).realize()
    check(normal(1, 8320), weight, np.zeros(weight.shape))


@pytest.mark.parametrize("group_size", [8, 16, 48])
def test_other_groups_are_decoded(group_size: int) -> None:
    x, weight = normal(2, 96), lbrx.tensor(normal(5, 96)).quantize("int4", group_size=group_size).realize()
    assert not gemv_groups(x, weight.expr, np.empty((2, 5), np.float32))
    np.testing.assert_allclose(linear(x, weight), wide(x) @ wide(weight).T, atol=1e-5)


@pytest.mark.parametrize(("bits", "dtype"), [(3, "f16"), (4, "bf16"), (8, "f32")])
def test_parts_at_any_address_of_a_file(bits: int, dtype: str, tmp_path: Path) -> None:
    mode, x = MlxMode("affine", bits, 32), normal(2, 160)
    parts = mlx_parts(lbrx.tensor(normal(9, 160)).to(dtype), mode)
    assert parts.biases is not None
    path = tmp_path / "model.safetensors"
    odd = lbrx.tensor(np.zeros(3, np.int8))
    lbrx.save(path, {"a": odd, "w.weight": parts.weight, "z": odd, "w.scales": parts.scales, "w.biases": parts.biases})
    stored = lbrx.open(path, raw=True)
    weight = dequantize(stored["w.weight"], stored["w.scales"], stored["w.biases"], mode)
    in_memory = dequantize(parts.weight, parts.scales, parts.biases, mode)
    check(x, weight, biases_of(weight, 32))
    np.testing.assert_array_equal(linear(x, weight), linear(x, in_memory))
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(TruncatedError):
        linear(x, weight)


def test_one_matrix_of_a_stack() -> None:
    mode, x = MlxMode("affine", 4, 64), normal(3, 192)
    parts = mlx_parts(lbrx.tensor(normal(4, 7, 192)).to("f16"), mode)
    stack = dequantize(parts.weight, parts.scales, parts.biases, mode)
    for number in range(4):
        got = np.empty((3, 7), np.float32)
        assert gemv_groups(x, stack[number].expr, got)
        np.testing.assert_allclose(got, wide(x) @ wide(stack[number]).T, atol=1e-3)
    part_of_rows = stack[1][2:6]
    np.testing.assert_array_equal(linear(x, part_of_rows), linear(x, stack[1])[:, 2:6])
    other_columns = stack[1][:, 64:128]
    np.testing.assert_allclose(linear(x[:, :64], other_columns), wide(x[:, :64]) @ wide(other_columns).T, atol=1e-4)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_activations_that_are_not_finite(number: float) -> None:
    x, weight = normal(2, 128), affine_weight(normal(6, 128), 4, 64, "f16")
    x[1, 70] = number
    for product in (gemv_groups, gemm_groups):
        assert not product(x, weight.expr, np.empty((2, 6), np.float32))
    with np.errstate(invalid="ignore"):
        expected = wide(x) @ wide(weight).T
    np.testing.assert_allclose(linear(x, weight), expected, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-44, 1e-36, 1e-20, 1e20, 1e34])
def test_small_and_large_activations(scale: float) -> None:
    weight = affine_weight(normal(6, 192), 8, 64, "f16")
    check((normal(2, 192) * scale).astype(np.float32), weight, biases_of(weight, 64))


@pytest.mark.parametrize("vectors", [1, 4, 40])
def test_the_same_bytes_on_any_number_of_threads(vectors: int) -> None:
    x, weight = normal(vectors, 1280), affine_weight(normal(900, 1280), 6, 64, "bf16")
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(linear(x, weight).tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("bits", "group_size"), [(2, 32), (2, 64), (3, 32), (5, 64)])
def test_codes_do_not_reach_past_their_end(bits: int, group_size: int) -> None:
    """Encoding stores eight bytes at a time, but not in what lies behind the codes."""
    values, codes = normal(3 * group_size), np.full(3 * group_size * bits // 8 + 16, 0xA5, np.uint8)
    parts = np.array([codes.ctypes.data, 0, 0, group_size, bits, 0], np.int64)
    codec_kernel("affine", "encode_parts", 3)(values.ctypes.data, parts.ctypes.data, 3)
    assert (codes[-16:] == 0xA5).all()
    assert not (codes[:-16] == 0xA5).all()
