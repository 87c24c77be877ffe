"""Attention on the emulated device, against float64 and against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lbrx import ops
from lbrx.devices.metal.context.profiler import ProfiledContext
from lbrx.devices.metal.ops.arrays import upload
from lbrx.devices.metal.ops.attention import Kernel, attention, block_names
from lbrx.engine.attention_options import AttentionOptions
from lbrx.errors import ShapeError, UsageError
from support.kernel_contexts import Array, check, context, down, numbers, up
from support.metal_shaders import Order, needs_clang

pytestmark = needs_clang
KERNELS: tuple[Kernel, ...] = ("long", "vector")
# heads, heads of keys, queries, keys, elements of a head, elements of a value, and options
CASES: tuple[tuple[tuple[int, int, int, int, int, int], dict[str, Any]], ...] = (
    ((1, 1, 1, 1, 64, 64), {}),
    ((4, 2, 33, 33, 64, 64), {}),
    ((3, 1, 5, 70, 80, 72), {"causal": False}),
    ((2, 2, 9, 41, 128, 128), {"offset": 32}),
    ((2, 1, 17, 40, 96, 96), {"window": 6, "offset": 20}),
    ((2, 1, 35, 30, 64, 64), {"window": 3, "causal": False, "softcap": 2.0, "scale": 0.5}),
    ((1, 1, 10, 20, 256, 256), {"softcap": 30.0}),
    ((1, 1, 4, 3, 13, 5), {"offset": 40, "window": 2}),  # sees nothing
)


def expected_attention(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Array:
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = len(q) // len(k)
    scores = np.einsum("hqd,hkd->hqk", q, np.repeat(k, group, 0)) * options.get("scale", q.shape[2] ** -0.5)
    if "softcap" in options:
        scores = options["softcap"] * np.tanh(scores / options["softcap"])
    positions = np.arange(q.shape[1])[:, None] + options.get("offset", 0)
    keys = np.arange(k.shape[1])[None, :]
    seen = np.ones((q.shape[1], k.shape[1]), bool)
    if options.get("causal", True):
        seen &= keys <= positions
    if "window" in options:
        seen &= np.abs(keys - positions) < options["window"]
    weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    totals = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    return weights @ np.repeat(v, group, 0)


def inputs(sizes: tuple[int, int, int, int, int, int], dtype: str) -> tuple[Array, Array, Array]:
    heads, kv_heads, queries, keys, size, value_size = sizes
    return (
        numbers(heads, queries, size, dtype=dtype, seed=1),
        numbers(kv_heads, keys, size, dtype=dtype, seed=2),
        numbers(kv_heads, keys, value_size, dtype=dtype, seed=3),
    )


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_attention(dtype: str, kernel: Kernel, order: Order) -> None:
    metal = context(order)
    for sizes, options in CASES:
        q, k, v = inputs(sizes, dtype)
        result = attention(metal, up(metal, q), up(metal, k), up(metal, v), AttentionOptions(**options), kernel=kernel)
        largest = float(np.abs(v.astype(np.float64)).max())
        rounded_weights = 2.0**-10 * largest if dtype == "f16" and kernel == "long" else 0.0
        check(down(metal, result), expected_attention(q, k, v, options), 4e-6 * largest + rounded_weights, dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_every_division_of_the_work_gives_the_same(dtype: str) -> None:
    metal = context()
    q, k, v = inputs((2, 1, 35, 50, 64, 64), dtype)
    names = block_names(metal, dtype, 64, 64)
    assert names == ("4x32", "4x16", "4x8", "2x16", "2x8")
    for name in names:
        result = attention(
            metal, up(metal, q), up(metal, k), up(metal, v), kernel="long", variant=name, out_dtype="f32"
        )
        bound = 2e-5 if dtype == "f32" else 2.0**-10 * float(np.abs(v).max())
        check(down(metal, result), expected_attention(q, k, v, {}), bound)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_keys_can_be_shared_by_threadgroups(order: Order) -> None:
    metal = context(order)
    for sizes, options in CASES:
        q, k, v = inputs(sizes, "f32")
        for parts in ("2", "16"):
            result = attention(
                metal,
                up(metal, q),
                up(metal, k),
                up(metal, v),
                AttentionOptions(**options),
                kernel="vector",
                variant=parts,
            )
            largest = float(np.abs(v).max())
            check(down(metal, result), expected_attention(q, k, v, options), 4e-6 * largest)


def test_keys_are_shared_where_there_are_many_and_few_queries() -> None:
    metal = ProfiledContext(context())
    k = up(metal, numbers(1, 600, 64))
    attention(metal, up(metal, numbers(2, 1, 64)), k, k, AttentionOptions(causal=False))
    attention(metal, up(metal, numbers(2, 1, 64)), up(metal, numbers(1, 100, 64)), up(metal, numbers(1, 100, 64)))
    names = [call.kernel for call in metal.profile().calls]
    assert names == ["attention_vector", "attention_combine", "attention_vector"]


def test_large_heads_take_smaller_blocks() -> None:
    metal = context()
    assert block_names(metal, "f32", 128, 128)[0] == "4x16"
    assert block_names(metal, "f32", 256, 256) == ("2x8",)
    assert block_names(metal, "f16", 256, 256)[0] == "4x16"


@pytest.mark.parametrize("queries", [1, 4, 5])
def test_attention_agrees_with_the_cpu(queries: int) -> None:
    metal = context()
    q, k, v = inputs((4, 2, queries, 37, 64, 64), "bf16")
    result = attention(metal, up(metal, q), up(metal, k), up(metal, v), AttentionOptions(offset=30), out_dtype="f32")
    check(down(metal, result), ops.attention(q, k, v, offset=30).astype(np.float64), 1e-5)


def test_types_can_differ() -> None:
    metal = context()
    q, k, v = numbers(2, 6, 64, seed=1), numbers(1, 9, 64, dtype="f16", seed=2), numbers(1, 9, 64, dtype="bf16", seed=3)
    result = attention(metal, up(metal, q), up(metal, k), up(metal, v), AttentionOptions(causal=False))
    check(down(metal, result), expected_attention(q, k, v, {"causal": False}), 2e-5)


def test_empty_attention() -> None:
    metal = context()

    def zeros(*shape: int) -> Any:
        return upload(metal, np.zeros(shape, np.float32))

    assert attention(metal, zeros(2, 0, 64), zeros(1, 3, 64), zeros(1, 3, 64)).shape == (2, 0, 64)
    for queries in (1, 9):
        result = attention(metal, zeros(2, queries, 64), zeros(1, 0, 64), zeros(1, 0, 64))
        assert not down(metal, result).any()


def test_attention_without_races() -> None:
    metal = context(find_races=True)
    q, k, v = inputs((2, 1, 20, 23, 64, 72), "f32")
    for kernel, variant in (("long", None), ("vector", "1"), ("vector", "4")):
        result = attention(metal, up(metal, q), up(metal, k), up(metal, v), kernel=kernel, variant=variant)
        check(down(metal, result), expected_attention(q, k, v, {}), 2e-5)


def test_what_does_not_fit_is_an_error() -> None:
    metal = context()
    q, k = upload(metal, np.zeros((3, 2, 64), np.float32)), upload(metal, np.zeros((2, 2, 64), np.float32))
    large = upload(metal, np.zeros((1, 1, 264), np.float32))
    with pytest.raises(ShapeError, match="3 heads of queries cannot share 2 heads of keys"):
        attention(metal, q, k, k)
    with pytest.raises(ShapeError, match="at most 256 fit"):
        attention(metal, large, large, large)
    with pytest.raises(UsageError, match="a window of 0 positions"):
        attention(metal, q, q, q, AttentionOptions(window=0))
