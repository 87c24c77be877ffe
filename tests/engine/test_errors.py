"""What is wrong is refused when it is written down, with what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import DTypeError, LbrxError, ShapeError, UsageError
from lbrx.settings import Settings, using
from lbrx.settings import settings as current_settings

FLOATS = np.ones((2, 3), np.float32)


def x() -> lbrx.Tensor:
    return lbrx.tensor(FLOATS)


def u8() -> lbrx.Tensor:
    return lbrx.tensor(np.ones(3, np.uint8))


SHAPE_ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: x() + lbrx.tensor(np.ones(4, np.float32)), r"\(2, 3\) and \(4,\) do not broadcast: axis -1 differs"),
    (lambda: lbrx.where(x() > 0, x(), np.ones(2, np.float32)), "do not broadcast: axis -1 differs"),
    (lambda: x().dot(lbrx.tensor(np.ones(4, np.float32))), "do not broadcast"),
    (lambda: x()[2], "index 2 is out of range for axis 0 of size 2"),
    (lambda: x()[0, 0, 0], "3 indices for a tensor of 2 axes"),
    (
        lambda: x()["a"],  # type: ignore[index]
        "index 'a' is not an integer, a slice, None or an Ellipsis",
    ),
    (lambda: x().rows([0, 5]), "row 5 is out of range for axis 0 of size 2"),
    (lambda: x().rows([-3]), "row -3 is out of range for axis 0 of size 2"),
    (lambda: x().rows(np.zeros((2, 2), np.int64)), r"row numbers must be a vector, not of shape \(2, 2\)"),
    (lambda: lbrx.tensor(1.0).rows([0]), "cannot gather rows of a tensor without axes"),
    (lambda: x().reshape(5), r"shape \(2, 3\) with 6 elements cannot be reshaped to \(5,\)"),
    (lambda: x().reshape(-1, 4), r"shape \(2, 3\) cannot be reshaped to \(-1, 4\)"),
    (lambda: x().reshape(-1, -1), "at most one size may be -1"),
    (lambda: x().transpose(0), "are not a permutation of the 2 axes"),
    (lambda: x().transpose(0, 2), "axis 2 is out of range for a tensor of 2 axes"),
    (lambda: x().broadcast_to((3, 3)), r"shape \(2, 3\) does not broadcast to \(3, 3\)"),
    (lambda: bool(x()), r"a tensor of shape \(2, 3\) is not a single value; lbrx.where chooses by element"),
    (lambda: float(x()), "is not a single value"),
    (lambda: x()[:0].item(), r"a tensor of shape \(0, 3\) is not a single value"),
    (lambda: len(lbrx.tensor(1.0)), "a tensor without axes has no length"),
    (lambda: x().sum(axis=(0, 0)), r"axis \(0, 0\) contains the same axis twice"),
    (lambda: x().argmax(axis=(0, 1)), r"cannot return one index along axes \(0, 1\); expected one axis"),  # type: ignore[arg-type]
    (lambda: x().sum(axis=2), "axis 2 is out of range for a tensor of 2 axes"),
    (lambda: x().squeeze(0), "axis 0 has size 2; only axes of size 1 can be squeezed"),
    (lambda: x().split(2, axis=1), "cannot split 3 elements along axis 1 into 2 equal parts"),
    (lambda: x()[x() > 0], "tensors do not support boolean indexing; use lbrx.where"),  # type: ignore[index]
    (lambda: lbrx.tensor(1.0).mean(axis=-1), "axis -1 is out of range for a tensor of 0 axes"),
    (lambda: x()[:0].max(), r"max of a tensor of shape \(0, 3\) has no elements to choose from"),
    (lambda: x()[:, :0].argmax(axis=-1), r"argmax of a tensor of shape \(2, 0\) has no elements"),
    (lambda: x().kth_largest(0), r"k is 0, but a tensor of shape \(2, 3\) has 6 elements"),
    (lambda: x().kth_largest(7), r"k is 7, but a tensor of shape \(2, 3\) has 6 elements"),
    (lambda: x().top_k_mask(-1), "k is -1"),
    (lambda: lbrx.tensor(1.0).rank(), "rank needs a tensor with axes"),
    (lambda: lbrx.concatenate([]), "expected at least one tensor"),
    (lambda: lbrx.concatenate([x(), x()[:, :2]]), r"\(2, 3\) and \(2, 2\) differ outside axis 0"),
    (lambda: lbrx.concatenate([x()[0], x()[0, 0]]), r"\(3,\) and \(\) differ outside axis 0"),
    (lambda: lbrx.concatenate([x(), x()[:, 0]], axis=1), r"\(2, 3\) and \(2,\) differ outside axis 1"),
    (lambda: lbrx.concatenate([x(), x()[:1]], axis=1), r"\(2, 3\) and \(1, 3\) differ outside axis 1"),
    (lambda: lbrx.concatenate([x()], axis=2), "axis 2 is out of range for a tensor of 2 axes"),
    (lambda: lbrx.zeros(-1), r"shape \(-1,\) has a negative size"),
    (lambda: lbrx.full((2, -3), 0, "f32"), r"shape \(2, -3\) has a negative size"),
]


@pytest.mark.parametrize(("wrong", "message"), SHAPE_ERRORS)
def test_shapes_that_do_not_fit(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        wrong()


DTYPE_ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: x().to("f33"), "unknown dtype 'f33'; expected one of f64, f32, .*did you mean 'f32'"),
    (lambda: lbrx.full((2,), 1, "int31"), "unknown dtype 'int31'.*did you mean"),
    (lambda: lbrx.tensor(np.ones(2, np.complex64)), "NumPy dtype complex64 has no lbrx dtype"),
    (lambda: lbrx.tensor(np.ones(2, np.uint32)), "NumPy dtype uint32 has no lbrx dtype"),
    (lambda: lbrx.tensor(["a"]), "lbrx has no dtype for a NumPy array of <U1"),
    (
        lambda: lbrx.tensor([object()]),  # type: ignore[arg-type]
        "lbrx has no dtype for a NumPy array of object",
    ),
    (lambda: x() + "1", "expected a tensor or a number, not str"),
    (lambda: x() * 1j, "expected a tensor or a number, not complex"),
    (lambda: x() & x(), "'and' takes bool or integer tensors, not f32"),
    (lambda: ~x(), "'not' takes bool or integer tensors, not f32"),
    (lambda: -(x() > 0), "'neg' is not defined for bool; cast with .to\\('i8'\\) first"),
    (lambda: (x() > 0) - (x() > 1), "'sub' is not defined for bool"),
    (lambda: (x() > 0).sign(), "'sign' is not defined for bool"),
    (lambda: u8() + 256, "256 does not fit into u8; cast the tensor with .to\\(\\) first"),
    (lambda: u8() * -1, "-1 does not fit into u8"),
    (lambda: lbrx.where(u8() > 0, u8(), 300), "300 does not fit into u8"),
    (lambda: u8().clip(0, 300), "300 does not fit into u8"),
    (lambda: lbrx.arange(3) + 2**63, "9223372036854775808 does not fit into i64"),
    (lambda: lbrx.arange(3) < 2**63, "9223372036854775808 does not fit into i64"),
    (lambda: lbrx.concatenate([x(), x().to("f16")]), "cannot join f32 and f16; cast one with .to\\(\\)"),
    (lambda: x().T.raw(), "only a stored, contiguous tensor has raw bytes"),
    (lambda: (x() + 1).raw(), "call realize\\(\\) first"),
    (lambda: x().__array__(np.float64, copy=False), "a f32 tensor cannot be viewed as float64 without a copy"),
]


@pytest.mark.parametrize(("wrong", "message"), DTYPE_ERRORS)
def test_dtypes_that_do_not_fit(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        wrong()


def test_errors_are_errors_of_lbrx_and_of_python() -> None:
    assert issubclass(ShapeError, (LbrxError, ValueError))
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(UsageError, ValueError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads is 0; expected at least 1"),
        ({"chunk_elements": -5}, "chunk_elements is -5"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message), using(**options):
        raise AssertionError("the block must not run")


def test_settings_return_to_what_they_were_even_after_an_error() -> None:
    before = Settings(current_settings.threads, current_settings.chunk_elements, current_settings.device)
    with using(threads=5, chunk_elements=7):
        assert (current_settings.threads, current_settings.chunk_elements) == (5, 7)
    with pytest.raises(ShapeError), using(threads=5, chunk_elements=7):
        x().reshape(4)
    assert current_settings == before
