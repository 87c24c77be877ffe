"""matmul: NumPy's rules for axes, any dtypes and layouts, panels and runs of rows, any number of threads."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.errors import ShapeError
from lbrx.ops import matmul
from support.references import THREADS, normal, weight_of, wide

DTYPE_NAMES = ["f32", "f16", "bf16", "f64"]


def assert_close(got: Any, a: Any, b: Any) -> None:
    left, right = wide(a), wide(b)
    bound = (left.shape[-1] + 1) * 2.0**-23 * (abs(left) @ abs(right)) + 1e-37
    expected = left @ right
    assert got.shape == expected.shape
    assert (abs(got - expected) <= bound).all()


@st.composite
def operands(draw: st.DrawFn) -> tuple[Any, Any]:
    """Arrays of 1 to 4 axes that fit, with empty axes too."""
    size = st.integers(0, 6)
    inner, batch = draw(size), draw(st.lists(st.integers(1, 3), max_size=2))
    left = [1 if draw(st.booleans()) else axis for axis in batch][draw(st.integers(0, len(batch))) :]
    shape_a = draw(st.sampled_from([(inner,), (*batch, draw(size), inner), (*left, draw(size), inner)]))
    shape_b = draw(st.sampled_from([(inner,), (*batch, inner, draw(size)), (*left, inner, draw(size))]))
    return normal(*shape_a, seed=1), normal(*shape_b, seed=2)


@settings(max_examples=150, deadline=None)
@given(operands(), st.sampled_from(DTYPE_NAMES), st.sampled_from(DTYPE_NAMES), st.booleans())
def test_any_shapes(arrays: tuple[Any, Any], first: str, second: str, are_tensors: bool) -> None:
    a, b = lbrx.tensor(arrays[0]).to(first).realize(), lbrx.tensor(arrays[1]).to(second).realize()
    got = matmul(a, b) if are_tensors else matmul(a.numpy(), b.numpy())
    assert got.dtype == np.float32
    assert_close(got, a, b)
    if b.ndim > 1:
        turned = b.transpose(*range(b.ndim - 2), b.ndim - 1, b.ndim - 2)
        assert_close(matmul(a, turned, transpose_b=True), a, b)
        assert_close(matmul(a.numpy(), turned.numpy(), transpose_b=True), a, b)


@pytest.mark.parametrize("type_name", ["f32", "bf16", "q8_0", "q4_k", "q3_k"])
@pytest.mark.parametrize("transposed", [False, True])
def test_weights_on_the_right(type_name: str, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(7, 512), weight_of(type_name, 512, 512)
    for panel_bytes in (16 << 20, 100 * 4 * 512):
        monkeypatch.setattr(sys.modules["lbrx.devices.cpu.ops.matmul"], "_PANEL_BYTES", panel_bytes)
        got = matmul(x, weight.T if transposed else weight)
        assert_close(got, x, weight.dequantize().T if transposed else weight)


def test_the_first_operand_in_runs_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = weight_of("bf16", 45, 96), weight_of("f16", 30, 96)
    monkeypatch.setattr(sys.modules["lbrx.devices.cpu.ops.matmul"], "_ROWS_BYTES", 10 * 4 * 96)
    assert_close(matmul(a, b, transpose_b=True), a, b.T)
    assert_close(matmul(a, b.T), a, b.T)


def test_large_products_in_a_batch() -> None:
    a, b = normal(2, 300, 256), normal(1, 256, 300, seed=5)
    assert_close(matmul(a, b), a, b)


def test_operator() -> None:
    a, b = weight_of("bf16", 5, 8), weight_of("f32", 8, 3)
    np.testing.assert_array_equal((a @ b).numpy(), matmul(a, b))
    np.testing.assert_array_equal((normal(2, 5) @ a).numpy(), matmul(normal(2, 5), a))
    assert isinstance(normal(2, 5) @ a, lbrx.Tensor)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_same_bytes_on_any_number_of_threads(transposed: bool) -> None:
    a, b = normal(3, 130, 257), lbrx.tensor(normal(3, 257, 300, seed=3)).to("bf16").realize()
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(matmul(a, b.transpose(0, 2, 1), transpose_b=True) if transposed else matmul(a, b))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_infinities_and_nan() -> None:
    a, b = normal(5, 6), normal(6, 7, seed=1)
    a[0, 0], a[1, 1], b[2, 2] = np.inf, np.nan, 3e38
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.isfinite(matmul(a, b)), np.isfinite((wide(a) @ wide(b)).astype(np.float32)))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 3\).*\[..., k, m\]"):
        matmul(normal(2, 3), normal(2, 3))
    with pytest.raises(ShapeError, match=r"\[..., m, k\]"):
        matmul(normal(2, 3), normal(3, 2), transpose_b=True)
    with pytest.raises(ShapeError, match="multiply by a number"):
        matmul(normal(2, 3), np.float32(2))
    with pytest.raises(ShapeError):
        matmul(normal(2, 2, 3), normal(3, 3, 4))
