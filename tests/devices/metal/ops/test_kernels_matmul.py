"""Products of matrices of plain numbers on the emulated device, against float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from lbrx import ops
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import KernelCall, ProfiledContext
from lbrx.devices.metal.driver import GpuFamily
from lbrx.devices.metal.generations import GENERATIONS
from lbrx.devices.metal.ops import linear as linear_module
from lbrx.devices.metal.ops import matmul as matmul_module
from lbrx.devices.metal.ops.arrays import DeviceArray, upload
from lbrx.devices.metal.ops.epilogue import Activation
from lbrx.devices.metal.ops.linear import VECTOR_VARIANTS, linear
from lbrx.devices.metal.ops.matmul import VARIANTS, matmul
from lbrx.errors import DTypeError, ShapeError, UsageError
from support.kernel_contexts import Array, check, context, down, numbers, product_bound, up
from support.metal_shaders import Order, needs_clang

pytestmark = needs_clang
SHAPES = ((1, 1, 1), (7, 9, 5), (33, 65, 17), (70, 40, 35), (64, 64, 32))


def turned(matrix: Array, wanted: bool) -> Array:
    return np.ascontiguousarray(np.swapaxes(matrix, -1, -2)) if wanted else matrix


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_matmul_of_odd_shapes_and_orientations(dtype: str, variant: str, order: Order) -> None:
    metal = context(order)
    for number, (rows, columns, inner) in enumerate(SHAPES):
        a, b = numbers(rows, inner, dtype=dtype, seed=1), numbers(inner, columns, dtype=dtype, seed=2)
        for transpose_a, transpose_b in (
            ((False, False), (True, True)) if number % 2 else ((False, True), (True, False))
        ):
            result = matmul(
                metal,
                up(metal, turned(a, transpose_a)),
                up(metal, turned(b, transpose_b)),
                transpose_a=transpose_a,
                transpose_b=transpose_b,
                variant=variant,
            )
            expected = a.astype(np.float64) @ b.astype(np.float64)
            check(down(metal, result), expected, product_bound(a, b), dtype)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_of_whole_quads_are_read_by_quads(variant: str, transposed: bool) -> None:
    a, b = numbers(64, 48, seed=1), numbers(48, 128, seed=2)
    metal = context()
    operands = up(metal, turned(a, transposed)), up(metal, turned(b, transposed))
    result = matmul(metal, *operands, transpose_a=transposed, transpose_b=transposed, variant=variant)
    check(down(metal, result), a.astype(np.float64) @ b.astype(np.float64), product_bound(a, b))


@pytest.mark.parametrize("rows", [2, 40])
def test_operands_in_the_middle_of_a_buffer(rows: int) -> None:
    """Rows of whole quads that do not begin at a multiple of 16 bytes."""
    metal = context()
    x, weight = numbers(rows, 64, seed=1), numbers(33, 64, seed=2)

    def shifted(array: Array) -> DeviceArray:
        whole = up(metal, np.concatenate([[np.nan], array.reshape(-1), [np.nan]]).astype(np.float32))
        return DeviceArray(whole.buffer, "f32", array.shape, 4, whole.owner)

    result = linear(metal, shifted(x), shifted(weight))
    check(down(metal, result), x.astype(np.float64) @ weight.astype(np.float64).T, product_bound(x, weight.T))


def test_bf16_tiles_on_gpus_that_compute_in_bf16() -> None:
    metal = context(generation="M3")
    a, b = numbers(33, 50, dtype="bf16", seed=1), numbers(50, 35, dtype="bf16", seed=2)
    result = matmul(metal, up(metal, a), up(metal, b), out_dtype="f32")
    check(down(metal, result), a.astype(np.float64) @ b.astype(np.float64), product_bound(a, b))


def test_types_of_tiles_by_generation() -> None:
    tile = matmul_module._tile_type
    infos = [context(generation=name).info for name in GENERATIONS]
    assert [tile(info, "bf16", "bf16") for info in infos] == ["f32", "f32", "bf16", "bf16", "bf16"]
    assert tile(replace(infos[-1], language=(3, 0)), "bf16", "bf16") == "f32"  # no bfloat before 3.1
    assert tile(infos[-1], "f16", "f16") == tile(infos[0], "f16", "q4_0") == "f16"
    assert tile(infos[-1], "f32", "f16") == tile(infos[-1], "bf16", "q4_0") == "f32"


def test_defaults_go_by_family_and_shape() -> None:
    choose = linear_module._default_variant
    assert [choose(family, 4096, 4096) for family in GpuFamily] == ["2", "2", "4", "4"]
    assert choose(GpuFamily.APPLE7, 512, 4096) == choose(GpuFamily.APPLE10, 512, 4096) == "split8"
    names = [
        call.kernel
        for name in ("M1", "M3")
        for call in _profile_of_product(context(generation=name), 384, 384)  # 36 large tiles: enough for an M1
    ]
    assert names == ["matmul_64x64", "matmul_32x32"]


def _profile_of_product(metal: MetalContext, rows: int, columns: int) -> tuple[KernelCall, ...]:
    profiled = ProfiledContext(metal)
    matmul(profiled, up(profiled, numbers(rows, 1, dtype="bf16")), up(profiled, numbers(1, columns, dtype="bf16")))
    return profiled.profile().calls


def test_batches_broadcast() -> None:
    metal = context()
    a, b = numbers(2, 1, 5, 7, seed=1), numbers(3, 7, 4, seed=2)
    result = matmul(metal, up(metal, a), up(metal, b))
    check(down(metal, result), a.astype(np.float64) @ b.astype(np.float64), product_bound(a, b))


def test_batches_larger_than_one_dispatch() -> None:
    metal = context()
    a, b = numbers(515, 1, 3, seed=1), numbers(515, 3, 1, seed=2)
    result = matmul(metal, up(metal, a), up(metal, b))
    check(down(metal, result), a.astype(np.float64) @ b.astype(np.float64), product_bound(a, b))


def activated(values: Array, activation: str | None) -> Array:
    if activation == "silu":
        return values / (1 + np.exp(-values))
    if activation == "gelu":
        return values * 0.5 * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))
    if activation == "gelu_tanh":
        return values * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)))
    return values


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh"])
def test_epilogue_of_products(activation: Activation | None, rows: int) -> None:
    """Two rows go through the matrix-vector kernel, forty through tiles."""
    metal = context()
    x, weight = numbers(rows, 33, seed=1), numbers(37, 33, seed=2)
    bias, residual = numbers(37, seed=3, dtype="f16"), numbers(rows, 37, seed=4, dtype="bf16")
    result = linear(
        metal, up(metal, x), up(metal, weight), up(metal, bias), activation=activation, residual=up(metal, residual)
    )
    sums = x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)
    expected = activated(sums, activation) + residual.astype(np.float64)
    check(down(metal, result), expected, 1.2 * product_bound(x, weight.T) + 2e-6 * (1 + np.abs(sums)))


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("variant", VECTOR_VARIANTS)
@pytest.mark.parametrize("vectors", [1, 3, 4])
def test_matrix_vector(vectors: int, variant: str, order: Order) -> None:
    metal = context(order)
    for rows, columns, dtype in ((1, 1, "f32"), (37, 257, "f16"), (9, 2049, "bf16"), (66, 31, "f32")):
        x, weight = numbers(vectors, columns, seed=1), numbers(rows, columns, dtype=dtype, seed=2)
        result = linear(metal, up(metal, x), up(metal, weight), variant=variant)
        expected = x.astype(np.float64) @ weight.astype(np.float64).T
        bound = product_bound(x, weight.T) * (columns / 32 + 24) / (columns + 8)
        check(down(metal, result), expected, bound)


@pytest.mark.parametrize("rows", [3, 6])
def test_linear_agrees_with_the_cpu(rows: int) -> None:
    import lbrx

    metal = context()
    x, weight = numbers(2, rows, 96, seed=1), numbers(50, 96, dtype="bf16", seed=2)
    on_cpu = ops.linear(x, lbrx.tensor(weight))
    result = down(metal, linear(metal, up(metal, x), up(metal, weight)))
    check(result, on_cpu.astype(np.float64), 2 * product_bound(x, weight.T))


def test_empty_products() -> None:
    metal = context()

    def array(*shape: int) -> DeviceArray:
        return upload(metal, np.zeros(shape, np.float32))

    assert matmul(metal, array(0, 3), array(3, 2)).shape == (0, 2)
    assert matmul(metal, array(0, 2, 3), array(0, 3, 4)).shape == (0, 2, 4)
    assert linear(metal, array(0, 3), array(5, 3)).shape == (0, 5)
    assert linear(metal, array(2, 3), array(0, 3)).shape == (2, 0)
    assert not down(metal, matmul(metal, array(6, 0), array(0, 2))).any()
    bias = up(metal, np.array([1, 2], np.float32))
    assert down(metal, linear(metal, array(1, 0), array(2, 0), bias)).tolist() == [[1.0, 2.0]]


def test_products_without_races() -> None:
    metal = context(find_races=True)
    a, b = numbers(40, 33, seed=1), numbers(33, 35, seed=2)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    check(down(metal, matmul(metal, up(metal, a), up(metal, b))), expected, product_bound(a, b))
    weight = up(metal, turned(b, True))
    for variant in ("2", "split4"):
        check(down(metal, linear(metal, up(metal, a[:2]), weight, variant=variant)), expected[:2], 1e-4)


def test_what_does_not_fit_is_an_error() -> None:
    metal = context()
    a, vector = upload(metal, np.zeros((2, 3), np.float32)), upload(metal, np.zeros(3, np.float32))
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 3\) do not fit: 3 and 2 products"):
        matmul(metal, a, a)
    with pytest.raises(ShapeError, match="expected at least two axes each"):
        matmul(metal, vector, a)
    with pytest.raises(ShapeError, match=r"the bias has shape \(3,\); expected \(2,\)"):
        linear(metal, a, a, vector)
    with pytest.raises(ShapeError, match="do not match the weight"):
        linear(metal, upload(metal, np.zeros((1, 4), np.float32)), a)
    with pytest.raises(UsageError, match="there is no variant '7'; expected one of 2, 4, 8, split4, split8"):
        linear(metal, a, a, variant="7")
    with pytest.raises(DTypeError, match="matmul: a has elements of i32"):
        matmul(metal, upload(metal, np.zeros((2, 3), np.int32)), a, transpose_b=True)
