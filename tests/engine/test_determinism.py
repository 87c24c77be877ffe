"""Results are the same bytes for any number of threads and any size of chunk, for every family of operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.settings import using
from lbrx.tensors.dtype import dtype
from support.strategies import numpy_type

ROWS, COLUMNS = 617, 523  # neither divides a block of 65,536 elements, and whole rows fill it to an odd number
SCHEDULES = [(threads, chunk) for threads in (1, 2, 4, 7) for chunk in (1, 100_000, 1 << 20)]


@cache
def array(name: str, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)) * 3
    return values.astype(numpy_type(name))


def f32() -> lbrx.Tensor:
    return lbrx.tensor(array("f32"))


def bf16() -> lbrx.Tensor:
    return lbrx.tensor(array("bf16", 1))


def cube() -> lbrx.Tensor:
    """Elements near 1, so that products stay finite and depend on the order of their factors."""
    return (f32()[:610] * 1e-3 + 1).reshape(61, 10, COLUMNS)


def softmax(x: lbrx.Tensor) -> lbrx.Tensor:
    weights = (x - x.max(axis=-1, keepdims=True)).exp()
    return weights / weights.sum(axis=-1, keepdims=True)


FAMILIES: dict[str, Callable[[], list[lbrx.Tensor]]] = {
    "elementwise": lambda: [f32() * 0.3 + bf16(), (f32() / bf16()).to("bf16")],
    "functions": lambda: [abs(f32()).log() + bf16().sin()],
    "comparison and choice": lambda: [lbrx.where(f32() > bf16(), f32(), 0)],
    "casts": lambda: [f32().to("f16"), f32().to("f8_e4m3"), f32().to("i8")],
    "packed": lambda: [f32().to("i4").realize(), f32().to("i2").realize()],
    "packed by row": lambda: [(f32() - f32().min(axis=-1, keepdims=True)).to("i4").realize()],
    "transposed": lambda: [f32().T * 2 + 1, bf16()[::-2, 1::3] - 1],
    "broadcast": lambda: [f32() - f32()[:, :1] + bf16()[0]],
    "whole sums": lambda: [f32().sum(), bf16().norm(), f32().dot(bf16()), f32().mean()],
    "whole extremes": lambda: [f32().min(), f32().max(), bf16().argmax()],
    "sums of a view": lambda: [f32().T.sum(), f32()[:, ::-2].norm()],
    "integer sums": lambda: [lbrx.tensor(array("i32")).sum(), lbrx.tensor(array("i8")).dot(lbrx.tensor(array("i8")))],
    "column reductions": lambda: [f32().sum(axis=0), bf16().mean(axis=0), f32().max(axis=0), f32().std(axis=0)],
    "reductions over middle and several axes": lambda: [
        cube().sum(axis=1),
        cube().prod(axis=(0, 2)),
        cube().var(axis=(0, 1), keepdims=True),
        cube().argmax(axis=1),
    ],
    "row reductions": lambda: [f32().sum(axis=-1), bf16().max(axis=-1), f32().dot(bf16(), axis=-1)],
    "softmax": lambda: [softmax(f32())],
    "sum of softmax": lambda: [softmax(f32()).sum(), softmax(f32()).max()],
    "kth largest": lambda: [f32().kth_largest(1000), abs(bf16()).kth_largest(200_000)],
    "mask": lambda: [abs(bf16()).top_k_mask(150_000)],
    "rank": lambda: [bf16().rank(), bf16().rank(descending=True)],
    "random": lambda: [lbrx.uniform((ROWS, COLUMNS), 4), lbrx.normal((ROWS, COLUMNS), 4, "x").T],
    "rows": lambda: [f32().rows(np.arange(ROWS)[::-1]) * 2],
    "join": lambda: [lbrx.concatenate([f32(), f32() * 2]), lbrx.concatenate([f32(), -f32()], axis=1)],
}


def as_bytes(tensors: list[lbrx.Tensor]) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in lbrx.evaluate(*tensors)]


@pytest.mark.parametrize("family", FAMILIES)
def test_same_bytes_for_all_schedules(family: str) -> None:
    results = []
    for threads, chunk_elements in SCHEDULES:
        with using(threads=threads, chunk_elements=chunk_elements):
            results.append(as_bytes(FAMILIES[family]()))
    assert all(result == results[0] for result in results)


def test_the_same_sum_whatever_else_is_computed_with_it() -> None:
    x, y = f32(), bf16()
    alone = as_bytes([x.sum()])
    together = as_bytes([x.sum(), (x * y).sum(), x.max(), x.norm()])
    assert together[0] == alone[0]


def test_packed_rows_are_right_for_all_schedules() -> None:
    wide = array("f32")
    want = np.clip(np.trunc(wide - wide.min(-1, keepdims=True)), -8, 7).astype(numpy_type("i4"))
    for threads, chunk_elements in SCHEDULES[:4]:
        with using(threads=threads, chunk_elements=chunk_elements):
            x = f32()
            got = (x - x.min(axis=-1, keepdims=True)).to("i4").realize()
            np.testing.assert_array_equal(got.numpy().astype(np.int8), want.astype(np.int8))
            assert got.dtype is dtype("i4")
