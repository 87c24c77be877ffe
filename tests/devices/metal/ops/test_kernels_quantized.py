"""Weights in blocks: decoding, coding, looking up and multiplying on the emulated device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx import ops
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.ops.arrays import DeviceWeight, download, upload
from lbrx.devices.metal.ops.blocks import ENCODABLE, dequantize, embedding, quantize
from lbrx.devices.metal.ops.linear import linear, plain_weight
from lbrx.devices.metal.ops.weights import device_mlx_weight, device_weight
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.mlx import encoded_mlx
from lbrx.tensors.tensor import Tensor
from support.kernel_contexts import DTYPES, Array, check, context, down, numbers, product_bound, up
from support.metal_shaders import Order, needs_clang

pytestmark = needs_clang
BLOCK_CODINGS = ("q4_0", "q8_0", "q4_k", "q6_k")
AFFINE = tuple((bits, group) for bits in (4, 8) for group in (32, 64, 128))
CODINGS = (*BLOCK_CODINGS, *(f"affine{bits} {group}" for bits, group in AFFINE))
NUMBER_TYPES = {32: "f32", 64: "f16", 128: "bf16"}  # of MLX's scales, one for every group size


@cache
def coded(coding: str, rows: int, columns: int) -> tuple[Tensor | mlx.MlxWeight, Array]:
    """A weight in a coding, and its numbers as the CPU decodes them."""
    values = numbers(rows, columns, seed=5)
    if coding in BLOCK_CODINGS:
        blocks = lbrx.tensor(values).quantize(coding).realize()
        return blocks, blocks.to("f32").numpy()
    mode = mode_of(coding)
    weight = encoded_mlx(lbrx.tensor(values.astype(DTYPES[NUMBER_TYPES[mode.group_size]])), mode)
    return weight, mlx.dequantize(weight.weight, weight.scales, weight.biases, mode).numpy()


def mode_of(coding: str) -> mlx.MlxMode:
    bits, group = coding.removeprefix("affine").split()
    return mlx.MlxMode(bits=int(bits), group_size=int(group))


def on_device(metal: MetalContext, coding: str, rows: int, columns: int) -> tuple[DeviceWeight, Array]:
    weight, values = coded(coding, rows, columns)
    if isinstance(weight, mlx.MlxWeight):
        return device_mlx_weight(metal, weight, mode_of(coding)), values
    return device_weight(metal, weight), values


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("coding", CODINGS)
def test_dequantize_has_the_bits_of_the_cpu(coding: str, order: Order) -> None:
    metal = context(order)
    weight, values = on_device(metal, coding, 5, 768)
    result = download(metal, dequantize(metal, weight))
    assert np.array_equal(result.view(np.uint32), values.view(np.uint32))
    halves = download(metal, dequantize(metal, weight, "bf16"))
    assert np.array_equal(halves.view(np.uint16), values.astype(DTYPES["bf16"]).view(np.uint16))


@pytest.mark.parametrize("coding", ENCODABLE)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_quantize_makes_the_bytes_of_the_cpu(dtype: str, coding: str) -> None:
    metal = context()
    values = numbers(9, 96, dtype=dtype) * numbers(9, 1, dtype=dtype, seed=1)
    values[0] = 0
    values[1] = 0.25
    values[1, 3:5] = (-2, 2)  # of two with the same magnitude the first counts
    values[2] = 0.5
    on_cpu = lbrx.tensor(values.astype(np.float32)).quantize(coding).realize()
    expected = download(metal, device_weight(metal, on_cpu).values)
    assert np.array_equal(download(metal, quantize(metal, up(metal, values), coding).values), expected)


@pytest.mark.parametrize("coding", ENCODABLE)
def test_quantize_makes_the_bytes_of_the_cpu_of_nan_infinities_and_subnormals(coding: str) -> None:
    metal, random = context(), np.random.default_rng(21)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38], np.float32)
    values = numbers(300, 64, seed=2)
    for row in values:
        count = random.integers(1, 12)
        row[random.integers(0, 64, count)] = random.choice(special, count)
    values[-1] = np.nan
    on_cpu = lbrx.tensor(values).quantize(coding).realize()
    expected = download(metal, device_weight(metal, on_cpu).values)
    assert np.array_equal(download(metal, quantize(metal, up(metal, values), coding).values), expected)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("coding", CODINGS)
def test_matrix_vector_on_blocks(coding: str, order: Order) -> None:
    metal = context(order)
    for rows, columns, vectors, variant in ((37, 768, 1, "2"), (3, 2304, 3, "split4")):
        weight, values = on_device(metal, coding, rows, columns)
        x = numbers(vectors, columns, seed=1)
        expected = x.astype(np.float64) @ values.astype(np.float64).T
        # sums of codes and of offsets are larger than those of the values
        spread = np.abs(x).astype(np.float64) @ (np.abs(values) + 2 * np.abs(values).max(1, keepdims=True)).T
        result = linear(metal, up(metal, x), weight, variant=variant)
        check(down(metal, result), expected, spread * (columns / 32 + 24) * 2.0**-23)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("coding", CODINGS)
def test_matmul_on_blocks(coding: str, order: Order) -> None:
    metal = context(order)
    weight, values = on_device(metal, coding, 37, 768)
    x = numbers(35, 768, seed=1)
    expected = x.astype(np.float64) @ values.astype(np.float64).T
    check(down(metal, linear(metal, up(metal, x), weight)), expected, product_bound(x, values.T))
    halves = x.astype(np.float16)
    bound = product_bound(x, values.T) * (1 + 2.0**-11 / (2.0**-23 * (x.shape[1] + 8)))
    result = linear(metal, up(metal, halves), weight, out_dtype="f32")
    check(down(metal, result), halves.astype(np.float64) @ values.astype(np.float64).T, bound)


@pytest.mark.parametrize("coding", [*CODINGS, "f32", "f16", "bf16"])
def test_embedding(coding: str) -> None:
    metal = context()
    if coding in DTYPES:
        values = numbers(7, 13, dtype=coding)
        weight = plain_weight(up(metal, values))
    else:
        weight, values = on_device(metal, coding, 5, 768)
    ids = np.array([[1, 0, 4], [4, 3, 1]])
    assert np.array_equal(down(metal, embedding(metal, ids, weight)), values.astype(np.float32)[ids])


def test_embedding_and_linear_agree_with_the_cpu() -> None:
    metal = context()
    tensor, _ = coded("q4_k", 37, 768)
    assert isinstance(tensor, Tensor)
    weight = device_weight(metal, tensor)
    assert np.array_equal(down(metal, embedding(metal, [3, 36], weight)), ops.embedding([3, 36], tensor))
    x = numbers(6, 768)
    on_cpu = ops.linear(x, tensor)
    # Both are within their own bounds of the exact product; on x86 the CPU codes the vectors as i16.
    check(down(metal, linear(metal, up(metal, x), weight)), on_cpu.astype(np.float64), 4e-3)


def test_weights_of_mapped_files_are_not_copied(tmp_path: Path) -> None:
    metal = context()
    stored = {"plain": numbers(9, 64, dtype="bf16"), "more": numbers(5, 64)}
    lbrx.save(tmp_path / "model.safetensors", {name: lbrx.tensor(values) for name, values in stored.items()})
    opened = lbrx.open(tmp_path / "model.safetensors")
    x = numbers(3, 64, seed=1)
    for name, values in stored.items():
        weight = device_weight(metal, opened[name])
        assert weight.values.buffer.read_only
        expected = x.astype(np.float64) @ values.astype(np.float64).T
        check(down(metal, linear(metal, up(metal, x), weight)), expected, product_bound(x, values.T))


def test_blocks_without_races() -> None:
    metal = context(find_races=True)
    weight, values = on_device(metal, "q4_k", 5, 768)
    assert np.array_equal(download(metal, dequantize(metal, weight)), values)
    down(metal, embedding(metal, [1, 1], weight))
    download(metal, quantize(metal, up(metal, numbers(2, 64)), "q8_0").values)
    x = numbers(33, 768)
    expected = x.astype(np.float64) @ values.astype(np.float64).T
    for rows in (2, 33):
        check(down(metal, linear(metal, up(metal, x[:rows]), weight)), expected[:rows], 1e-2)


def test_empty_weights() -> None:
    metal = context()
    none = upload(metal, np.zeros((0, 64), np.float32))
    for coding in ENCODABLE:
        weight = quantize(metal, none, coding)
        assert dequantize(metal, weight).shape == (0, 64)
        assert linear(metal, up(metal, numbers(2, 64)), weight).shape == (2, 0)
    assert embedding(metal, np.zeros((0,), np.int64), plain_weight(up(metal, numbers(3, 8)))).shape == (0, 8)


def test_what_does_not_fit_is_an_error() -> None:
    metal = context()
    x = upload(metal, np.zeros((2, 40), np.float32))
    with pytest.raises(ShapeError, match="q8_0: rows of 40 are no whole number of blocks of 32"):
        quantize(metal, x, "q8_0")
    with pytest.raises(UsageError, match="kernels cannot code as 'q4_k'; expected one of q4_0, q8_0"):
        quantize(metal, x, "q4_k")
    with pytest.raises(UsageError, match="token id 2 is out of range; the vocabulary has 2 tokens"):
        embedding(metal, [0, 2], plain_weight(x))
    with pytest.raises(DTypeError, match="token ids must be integers"):
        embedding(metal, [0.5], plain_weight(x))
    with pytest.raises(ShapeError, match="has 320 bytes; expected 36"):
        DeviceWeight("q4_0", (2, 32), x)
    with pytest.raises(ShapeError, match="affine4: rows of 80 in groups of 48"):
        DeviceWeight("affine4", (8, 80), x, x, x, 48)
    with pytest.raises(DTypeError, match="no coding 'q5_0'"):
        device_weight(metal, lbrx.tensor(np.zeros((1, 32), np.float32)).quantize("q5_0").realize())
