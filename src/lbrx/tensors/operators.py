"""Operators and element-wise functions of tensors. They build expressions and compute nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lbrx.errors import DTypeError
from lbrx.tensors import views
from lbrx.tensors.dtype import dtype
from lbrx.tensors.expr import BOOL, Expr, Scalar, Source, apply, cast, constant
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import CpuStorage


def array_expr(array: npt.NDArray[Any]) -> Expr:
    """Return the elements of an array. Its memory is shared if it is contiguous and in native byte order."""
    if array.dtype.kind in "OUS":
        raise DTypeError(f"lbrx has no dtype for a NumPy array of {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    own = dtype(array.dtype)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    layout = Layout.contiguous(array.shape)
    if own.is_packed:
        return cast(Source(CpuStorage.from_array(contiguous.astype(np.int8)), dtype("i8"), layout), own)
    return Source(CpuStorage.from_array(contiguous), own, layout)


def operand(value: Any) -> Expr:
    """Return the expression of a tensor, an array or a number."""
    if isinstance(value, Arithmetic):
        return value.expr
    return array_expr(value) if isinstance(value, np.ndarray) else constant(value)


class Arithmetic(ABC):
    """Operators and functions of an expression."""

    __slots__ = ()
    expr: Expr

    @abstractmethod
    def _made(self, expr: Expr) -> Self:
        """Return a new object of the same class over another expression."""

    def _binary(self, op: str, other: Any) -> Self:
        return self._made(apply(op, self.expr, operand(other)))

    def _reflected(self, op: str, other: Any) -> Self:
        return self._made(apply(op, operand(other), self.expr))

    def __add__(self, other: Any) -> Self:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Self:
        return self._reflected("add", other)

    def __sub__(self, other: Any) -> Self:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self._reflected("sub", other)

    def __mul__(self, other: Any) -> Self:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Self:
        return self._reflected("mul", other)

    def __truediv__(self, other: Any) -> Self:
        return self._binary("div", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._reflected("div", other)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._reflected("floordiv", other)

    def __mod__(self, other: Any) -> Self:
        return self._binary("mod", other)

    def __rmod__(self, other: Any) -> Self:
        return self._reflected("mod", other)

    def __pow__(self, exponent: Any) -> Self:
        """Raise to a power. Squares and square roots have their own fast paths.

        >>> import lbrx
        >>> (lbrx.tensor([3.0, 4.0]) ** 2).tolist()
        [9.0, 16.0]
        """
        number = isinstance(exponent, (int, float)) and not isinstance(exponent, bool)
        own = self.expr.dtype
        if number and exponent == 2 and own is not BOOL and not (isinstance(exponent, float) and not own.is_float):
            return self * self
        if number and exponent == 0.5:
            return self.sqrt()
        if isinstance(exponent, int) and exponent < 0 and not own.is_float:
            raise DTypeError(f"cannot raise integers to the power {exponent}; cast the tensor with .to() first")
        return self._binary("pow", exponent)

    def __rpow__(self, base: Any) -> Self:
        return self._reflected("pow", base)

    def __pos__(self) -> Self:
        return self

    def __neg__(self) -> Self:
        return self._made(apply("neg", self.expr))

    def __abs__(self) -> Self:
        return self._made(apply("abs", self.expr))

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("eq", other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("ne", other)

    def __lt__(self, other: Any) -> Self:
        return self._binary("lt", other)

    def __le__(self, other: Any) -> Self:
        return self._binary("le", other)

    def __gt__(self, other: Any) -> Self:
        return self._binary("gt", other)

    def __ge__(self, other: Any) -> Self:
        return self._binary("ge", other)

    def __and__(self, other: Any) -> Self:
        return self._binary("and", other)

    def __rand__(self, other: Any) -> Self:
        return self._reflected("and", other)

    def __or__(self, other: Any) -> Self:
        return self._binary("or", other)

    def __ror__(self, other: Any) -> Self:
        return self._reflected("or", other)

    def __xor__(self, other: Any) -> Self:
        return self._binary("xor", other)

    def __rxor__(self, other: Any) -> Self:
        return self._reflected("xor", other)

    def __invert__(self) -> Self:
        return self._made(apply("not", self.expr))

    __hash__ = object.__hash__

    def abs(self) -> Self:
        """Return absolute values.

        >>> import lbrx
        >>> lbrx.tensor([-1.5, 2.0]).abs().tolist()
        [1.5, 2.0]
        """
        return self._made(apply("abs", self.expr))

    def sign(self) -> Self:
        """Return -1, 0 or 1 by sign. NaN stays NaN.

        >>> import lbrx
        >>> lbrx.tensor([-1.5, 0.0, 2.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        return self._made(apply("sign", self.expr))

    def sqrt(self) -> Self:
        """Return square roots. Negative numbers give NaN.

        >>> import lbrx
        >>> lbrx.tensor([4.0, 6.25]).sqrt().tolist()
        [2.0, 2.5]
        """
        return self._made(apply("sqrt", self.expr))

    def exp(self) -> Self:
        """Return e to the power of each element.

        >>> import lbrx
        >>> lbrx.tensor([0.0]).exp().tolist()
        [1.0]
        """
        return self._made(apply("exp", self.expr))

    def log(self) -> Self:
        """Return natural logarithms. Zero gives minus infinity, negative numbers NaN.

        >>> import lbrx
        >>> lbrx.tensor([1.0, 0.0]).log().tolist()
        [0.0, -inf]
        """
        return self._made(apply("log", self.expr))

    def sin(self) -> Self:
        """Return sines of angles in radians.

        >>> import lbrx
        >>> lbrx.tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._made(apply("sin", self.expr))

    def cos(self) -> Self:
        """Return cosines of angles in radians.

        >>> import lbrx
        >>> lbrx.tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._made(apply("cos", self.expr))

    def acos(self) -> Self:
        """Return arc cosines in [0, pi]. Numbers outside [-1, 1] give NaN.

        >>> import lbrx
        >>> lbrx.tensor([1.0]).acos().tolist()
        [0.0]
        """
        return self._made(apply("acos", self.expr))

    def tanh(self) -> Self:
        """Return hyperbolic tangents.

        >>> import lbrx
        >>> lbrx.tensor([0.0, 100.0]).tanh().tolist()
        [0.0, 1.0]
        """
        return self._made(apply("tanh", self.expr))

    def erf(self) -> Self:
        """Return the error function of each element.

        >>> import lbrx
        >>> lbrx.tensor([0.0, 100.0]).erf().tolist()
        [0.0, 1.0]
        """
        return self._made(apply("erf", self.expr))

    def floor(self) -> Self:
        """Round down to integers. Integers do not change.

        >>> import lbrx
        >>> lbrx.tensor([-1.5, 2.5]).floor().tolist()
        [-2.0, 2.0]
        """
        return self._made(apply("floor", self.expr))

    def round(self, decimals: int = 0) -> Self:
        """Round to a number of decimals, halves to even. Integers do not change.

        >>> import lbrx
        >>> lbrx.tensor([0.5, 1.5, 2.25]).round().tolist(), lbrx.tensor([2.25]).round(1).tolist()
        ([0.0, 2.0, 2.0], [2.2])
        """
        if not decimals or not self.expr.dtype.is_float:
            return self._made(apply("round", self.expr))
        scale = 10.0 ** abs(decimals)
        return (self * scale).round() / scale if decimals > 0 else (self / scale).round() * scale

    def isnan(self) -> Self:
        """Return whether each element is NaN.

        >>> import lbrx
        >>> lbrx.tensor([1.0, float('nan')]).isnan().tolist()
        [False, True]
        """
        return self._made(apply("isnan", self.expr))

    def isinf(self) -> Self:
        """Return whether each element is positive or negative infinity.

        >>> import lbrx
        >>> lbrx.tensor([1.0, float("-inf")]).isinf().tolist()
        [False, True]
        """
        return self.abs()._compared_with_infinity("eq", integers=False)

    def isfinite(self) -> Self:
        """Return whether each element is neither infinite nor NaN.

        >>> import lbrx
        >>> lbrx.tensor([1.0, float("inf"), float("nan")]).isfinite().tolist()
        [True, False, False]
        """
        return self.abs()._compared_with_infinity("lt", integers=True)

    def _compared_with_infinity(self, op: str, integers: bool) -> Self:
        if not self.expr.dtype.is_float:
            return self._made(views.broadcast(Scalar(integers), self.expr.shape))
        return self._binary(op, float("inf"))

    def minimum(self, other: Any) -> Self:
        """Return the smaller of two elements, or NaN if either is NaN.

        >>> import lbrx
        >>> lbrx.tensor([1.0, 5.0]).minimum(3).tolist()
        [1.0, 3.0]
        """
        return self._binary("minimum", other)

    def maximum(self, other: Any) -> Self:
        """Return the larger of two elements, or NaN if either is NaN.

        >>> import lbrx
        >>> lbrx.tensor([1.0, 5.0]).maximum(3).tolist()
        [3.0, 5.0]
        """
        return self._binary("maximum", other)

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """Limit values to ``min`` and ``max``. NaN stays NaN.

        >>> import lbrx
        >>> lbrx.tensor([-3.0, 0.5, 7.0]).clip(-1, 1).tolist()
        [-1.0, 0.5, 1.0]
        """
        result = self if min is None else self.maximum(min)
        return result if max is None else result.minimum(max)
