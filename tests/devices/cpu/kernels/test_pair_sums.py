"""The three products of two tensors are summed together: each is what it is alone."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.codegen.pass_source import kernel_source
from lbrx.engine.program import Leaf, Program, Sink
from lbrx.jobs.merge.methods.spherical import pairwise_dots
from lbrx.tensors.tensor import Tensor


def _values(elements: int, dtype_name: str, seed: int) -> Tensor:
    numbers = np.random.default_rng(seed).standard_normal(elements).astype(np.float32)
    return lbrx.tensor(lbrx.tensor(numbers).to(dtype_name).numpy())


def _bits(values: list[float]) -> list[bytes]:
    return [np.float64(value).tobytes() for value in values]


def _together(tensors: list[Tensor], axis: int | None = None) -> list[np.ndarray]:
    rows = pairwise_dots(tensors, axis)
    return list(lbrx.evaluate(*(dot for i, row in enumerate(rows) for dot in row[i:])))


def _alone(tensors: list[Tensor], axis: int | None = None) -> list[np.ndarray]:
    keep = axis is not None
    return [left.dot(right, axis, keepdims=keep).numpy() for i, left in enumerate(tensors) for right in tensors[i:]]


@pytest.mark.parametrize("dtype_name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("elements", [0, 1, 15, 16, 17, 1023, 1024, 1025, 70_001])
def test_together_as_alone(dtype_name: str, elements: int) -> None:
    pair = [_values(elements, dtype_name, seed) for seed in (1, 2)]
    assert _bits(_together(pair)) == _bits(_alone(pair))
    exact = [float(np.dot(x, y)) for x, y in ((_f64(pair[i]), _f64(pair[j])) for i, j in ((0, 0), (0, 1), (1, 1)))]
    assert [float(value) for value in _together(pair)] == pytest.approx(exact, rel=1e-12, abs=1e-9)


def _f64(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.numpy()).astype(np.float64)


@pytest.mark.parametrize(
    "dtype_names", [("bf16", "f16"), ("f32", "f64"), ("bf16", "bf16", "bf16"), ("f32", "bf16", "f32")]
)
def test_mixed_and_more_tensors(dtype_names: tuple[str, ...]) -> None:
    tensors = [_values(5000, dtype_name, seed) for seed, dtype_name in enumerate(dtype_names)]
    assert _bits(_together(tensors)) == _bits(_alone(tensors))


def test_differences() -> None:
    base, *models = [_values(33_000, "bf16", seed) for seed in range(3)]
    changes = [model - base for model in models]
    assert _bits(_together(changes)) == _bits(_alone(changes))


@pytest.mark.parametrize("columns", [1, 7, 16, 1024, 1500])
def test_rows(columns: int) -> None:
    pair = [_values(9 * columns, "bf16", seed).reshape(9, columns) for seed in (1, 2)]
    for together, alone in zip(_together(pair, -1), _alone(pair, -1), strict=True):
        assert together.tobytes() == alone.tobytes()


def test_what_is_not_finite() -> None:
    numbers = np.ones(2048, np.float32)
    first, second = numbers.copy(), numbers.copy()
    first[100], second[2000] = np.inf, np.nan
    square, dot, other = (float(value) for value in _together([lbrx.tensor(first), lbrx.tensor(second)]))
    assert square == np.inf
    assert np.isnan(dot)
    assert np.isnan(other)


def test_one_loop_for_three_products() -> None:
    """That the kernel has one: results would be the same with three."""
    leaves = (Leaf("source", "bf16", "unit", False),) * 2
    sinks = tuple(Sink("dot", "f64", args) for args in ((0, 0), (0, 1), (1, 1)))
    source = kernel_source(Program("flat", leaves, (), (), sinks))
    assert "tile_pair_bf16" in source
    assert "tile_dot" not in source
