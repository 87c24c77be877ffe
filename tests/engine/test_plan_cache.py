"""Plans are shared by structure alone: random expressions against NumPy, with new and with kept plans."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.engine import plan_cache
from lbrx.errors import UsageError

Array = npt.NDArray[Any]
Pair = tuple[lbrx.Tensor, Array]
"""A tensor and its values. All values are halves of small integers, so that no dtype and no order rounds them."""

FLOATS = ("f32", "f64", "f16", "bf16")
INTEGERS = ("i8", "i4", "i32")
SIZES = (1, 2, 3, 5, 32)


@pytest.fixture(autouse=True)
def _no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_plans", {})


def _same(got: Any, want: Array) -> None:
    assert np.shape(got) == want.shape
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), want.astype(np.float64))


class _Program:
    """A random expression: ``structure`` chooses its nodes, ``data`` its values, ``rows`` the size of axis 0."""

    def __init__(self, structure: int, data: int, rows: int | None = None) -> None:
        self.choose = random.Random(structure)
        self.values = np.random.default_rng(data)
        shape = [self.choose.choice(SIZES) for _ in range(self.choose.choice((1, 2, 2, 3)))]
        self.shape = (shape[0] if rows is None else rows, *shape[1:])

    def pairs(self) -> list[Pair]:
        """Leaves, operations over them, and the last results."""
        made = [self._leaf() for _ in range(self.choose.choice((1, 2, 3)))]
        for _ in range(self.choose.choice((2, 4, 8))):
            operation = self.choose.choice(_OPERATIONS)
            pair = operation(self, self.choose.choice(made[-4:]), self.choose.choice(made))
            if pair[1].size <= 1 << 16:
                made.append(pair)
        return made[-2:]

    def number(self) -> float | int | bool:
        """Its type belongs to the structure, its value to the data."""
        number = float(self.values.integers(-4, 5)) / 2
        return self.choose.choice((float, int, bool))(number)

    def _array(self, shape: tuple[int, ...], halves: bool) -> Array:
        return self.values.integers(-8, 8, shape) / (2.0 if halves else 1.0)

    def _leaf(self) -> Pair:
        name = self.choose.choice(FLOATS + INTEGERS)
        shape = self.choose.choice((self.shape, self.shape, self.shape, (1, *self.shape[1:]), self.shape[1:], ()))
        array = self._array(tuple(2 * size + 1 for size in shape), name in FLOATS)
        whole = lbrx.tensor(array, name).to("f64" if name == "f64" else "f32")
        corner = tuple(slice(1, size + 1) for size in shape)
        form = self.choose.choice(("whole", "whole", "slice", "step", "transpose", "rows", "quantized", "concat"))
        if form == "slice":
            return whole[corner], array[corner]
        if form == "step":
            skip = tuple(slice(1, None, 2) for _ in shape)
            return whole[skip], array[skip]
        if form == "transpose":
            turned = np.ascontiguousarray(array[corner].T)
            return lbrx.tensor(turned, "f32").T, turned.T
        if form == "rows" and shape:
            numbers = self.values.integers(0, 2 * shape[0] + 1, shape[0])
            inner = (slice(None), *corner[1:])
            return whole.rows(numbers)[inner], array[numbers][inner]
        own = np.ascontiguousarray(array[corner])
        if form == "quantized" and shape and shape[-1] % 32 == 0:
            coded = lbrx.tensor(own, "f32").quantize("q8_0").realize()
            return coded, coded.dequantize().numpy()
        if form == "concat" and shape and shape[0] > 1:
            return lbrx.concatenate([lbrx.tensor(own[:1], "f32"), lbrx.tensor(own[1:], "f32")]), own
        return lbrx.tensor(own, name).to("f32"), own


def _pair(function: Callable[..., Any]) -> Callable[[_Program, Pair, Pair], Pair]:
    """An operation that tensors and arrays share."""
    return lambda _program, a, _b: (function(a[0]), np.asarray(function(a[1])))


def _both(tensors: Callable[[Any, Any], Any], arrays: Callable[[Any, Any], Any]) -> Callable[..., Pair]:
    """An operation of two pairs, if they broadcast."""

    def operation(_program: _Program, a: Pair, b: Pair) -> Pair:
        try:
            np.broadcast_shapes(a[1].shape, b[1].shape)
        except ValueError:
            return a
        return tensors(a[0], b[0]), np.asarray(arrays(a[1], b[1]))

    return operation


def _numbered(function: Callable[[Any, Any], Any]) -> Callable[[_Program, Pair, Pair], Pair]:
    """An operation of a pair and a number; results stay small."""

    def operation(program: _Program, a: Pair, _b: Pair) -> Pair:
        number = program.number()
        result = function(a[0], number).clip(-64.0, 64.0)
        return result, np.asarray(np.clip(function(a[1], number), -64.0, 64.0))

    return operation


def _reduction(name: str) -> Callable[[_Program, Pair, Pair], Pair]:
    def operation(program: _Program, a: Pair, _b: Pair) -> Pair:
        options: dict[str, Any] = program.choose.choice(({}, {"axis": -1}, {"axis": -1, "keepdims": True}))
        if not a[1].shape:
            options = {}
        result = getattr(a[0], name)(**options).to("f64")
        return result, np.asarray(getattr(np, name)(a[1], **options), np.float64)

    return operation


def _kth(program: _Program, a: Pair, _b: Pair) -> Pair:
    k = program.choose.randrange(1, a[1].size + 1) if a[1].size else 0
    if not k:
        return a
    ordered = np.sort(a[1], axis=None)[::-1]
    if program.choose.random() < 0.5:
        return a[0].kth_largest(k), np.asarray(ordered[k - 1])
    mask = np.zeros(a[1].size)
    mask[np.argsort(-a[1], axis=None, kind="stable")[:k]] = 1
    return a[0].top_k_mask(k).to("f32"), mask.reshape(a[1].shape)


def _concat(_program: _Program, a: Pair, b: Pair) -> Pair:
    if not (a[1].ndim == b[1].ndim > 0 and a[1].shape[1:] == b[1].shape[1:]):
        return a
    return lbrx.concatenate([a[0].to("f64"), b[0].to("f64")]), np.concatenate([a[1], b[1]])


def _product(_program: _Program, a: Pair, b: Pair) -> Pair:
    if a[1].ndim != 2 or b[1].ndim != 2 or a[1].shape[1] != b[1].shape[1]:
        return a
    product = a[1].clip(-8, 8) @ b[1].clip(-8, 8).T
    return (a[0].clip(-8.0, 8.0) @ b[0].clip(-8.0, 8.0).T).clip(-64.0, 64.0), product.clip(-64, 64)


_OPERATIONS: list[Callable[[_Program, Pair, Pair], Pair]] = [
    _both(lambda a, b: (a + b).clip(-64.0, 64.0), lambda a, b: np.clip(a + b, -64, 64)),
    _both(lambda a, b: (a * b).floor().clip(-64.0, 64.0), lambda a, b: np.clip(np.floor(a * b), -64, 64)),
    _both(lambda a, b: a.minimum(b) - b, lambda a, b: np.minimum(a, b) - b),
    _both(lambda a, b: lbrx.where(a > b, a, b * 0.5), lambda a, b: np.where(a > b, a, b * 0.5)),
    _numbered(lambda a, number: a + number),
    _numbered(lambda a, number: number - a),
    _numbered(lambda a, number: (a > number) * 0.5),
    _pair(lambda value: abs(value)),
    _pair(lambda value: value.T),
    _pair(lambda value: value.reshape(-1)),
    _pair(lambda value: value[::-1] if value.shape else value),
    *map(_reduction, ("sum", "max", "min", "argmax")),
    _kth,
    _concat,
    _product,
]


def _check(structure: int, data: int, rows: int | None = None) -> None:
    for tensor, values in _Program(structure, data, rows).pairs():
        _same(tensor.numpy(), values)
    tensors, arrays = zip(*_Program(structure, data, rows).pairs(), strict=True)
    for got, want in zip(lbrx.evaluate(*tensors), arrays, strict=True):
        _same(got, want)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_random_expressions_with_new_and_kept_plans(first: int) -> None:
    """The same structure with other values, then with other sizes, gives what NumPy gives."""
    with lbrx.using(device="numpy"):
        for structure in range(first, first + 50):
            for data, rows in ((1, None), (2, None), (3, 7), (4, 1)):
                _check(structure, data, rows)
    assert plan_cache._plans


def test_random_expressions_in_many_threads() -> None:
    with lbrx.using(device="numpy"), ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(_check, structure % 20, data) for data in range(5) for structure in range(40)]
        for call in calls:
            call.result()


@pytest.mark.parametrize(("threads", "chunk_elements"), [(1, 1 << 20), (2, 3)])
def test_random_expressions_with_compiled_kernels(threads: int, chunk_elements: int) -> None:
    with lbrx.using(threads=threads, chunk_elements=chunk_elements):
        for structure in range(1000, 1010):
            for data, rows in ((1, None), (2, None), (3, 7)):
                _check(structure, data, rows)


# -- structures that look alike --------------------------------------------------------------------------------------


def _rows(count: int, first: int) -> Pair:
    array = np.arange(first, first + 2 * count, dtype=np.float32).reshape(count, 2)
    return lbrx.tensor(array), array


def test_joins_of_the_same_leaves_in_other_groups() -> None:
    (a, x), (b, y), (c, z) = _rows(2, 0), _rows(1, 10), _rows(1, 20)
    join = lbrx.concatenate
    _same((join([a, b]) + join([c, c, c])).numpy(), np.concatenate([x, y]) + np.concatenate([z, z, z]))
    _same((join([a, b, join([c, c])]) + c).numpy(), np.concatenate([x, y, z, z]) + z)


def test_a_reduction_of_one_number_next_to_tensors_of_any_size() -> None:
    """The plan is the same for tensors of all sizes, the reduction is not over them."""
    for size in (3, 5):
        values = np.arange(size, dtype=np.float32)
        _same((lbrx.tensor(values) - lbrx.full((), 2, "f32").sum()).numpy(), values - 2)
        assert float(lbrx.tensor(values).sum() + lbrx.full((), 1, "f32").norm()) == values.sum() + 1


def test_a_reduction_as_a_number_and_as_a_tensor() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = lbrx.tensor(values)
    total = tensor.sum()
    _same((tensor + total + total.broadcast_to((2, 3))).numpy(), values + 30)
    assert [float(value) for value in lbrx.evaluate(total, total.T, total.kth_largest(1))] == [15.0] * 3


def test_reductions_of_empty_vectors() -> None:
    empty = lbrx.tensor(np.zeros(0, np.float32))
    np.ones(1 << 16)  # memory that is used again is not all zero
    assert [float(value) for value in (empty.sum(-1), empty.norm(-1), empty.dot(empty, -1))] == [0.0] * 3


def test_more_structures_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST_PLANS", 5)
    with lbrx.using(device="numpy"):
        for structure in range(30):
            _check(structure % 10, structure)
    assert 0 < len(plan_cache._plans) <= 5


@pytest.mark.parametrize("leaves", [190, 220])
def test_expressions_of_many_nodes(leaves: int) -> None:
    """Plans of more than 400 nodes are not kept."""
    for first in (1.0, 2.0):
        sums = [lbrx.tensor(np.full(3, first * number, np.float32)) for number in range(leaves)]
        while len(sums) > 1:
            sums = [
                *(left + right for left, right in zip(sums[::2], sums[1::2], strict=False)),
                *sums[len(sums) & ~1 :],
            ]
        with lbrx.using(device="numpy"):
            _same(sums[0].numpy(), np.full(3, first * sum(range(leaves))))
    assert len(plan_cache._plans) == (leaves < 200)


def test_hundreds_of_nested_operations_are_computed() -> None:
    x = lbrx.tensor(np.ones(4, np.float32))
    total = x
    for _ in range(300):
        total = total + x
    assert total.tolist() == [301.0] * 4


def test_too_many_nested_operations_are_refused_with_a_remedy() -> None:
    total = x = lbrx.tensor(np.ones(4, np.float32))
    for _ in range(4000):
        total = total + x
    with pytest.raises(UsageError, match=r"nests too many operations .* with \.realize\(\)"):
        total.numpy()
