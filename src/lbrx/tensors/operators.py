"""What can be computed with a tensor: operators, functions, reductions and order. Nothing here computes yet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lbrx.errors import DTypeError, ShapeError
from lbrx.tensors import views
from lbrx.tensors.dtype import dtype
from lbrx.tensors.expr import (
    Expr,
    Kth,
    KthSearch,
    Rank,
    Reduce,
    Scalar,
    Source,
    apply,
    cast,
    common_dtype,
    constant,
)
from lbrx.tensors.shape import Layout, broadcast_shapes, normalize_axis
from lbrx.tensors.storage import CpuStorage


def array_expr(array: npt.NDArray[Any]) -> Expr:
    """The elements of an array, whose memory is shared where it is contiguous and of this machine's byte order."""
    if array.dtype.kind in "OUS":
        raise DTypeError(f"an array of {array.dtype} has no lbrx dtype")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    own = dtype(array.dtype)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    layout = Layout.contiguous(array.shape)
    if own.is_packed:
        return cast(Source(CpuStorage.from_array(contiguous.astype(np.int8)), dtype("i8"), layout), own)
    return Source(CpuStorage.from_array(contiguous), own, layout)


def operand(value: Any) -> Expr:
    """The expression of a tensor, an array or a number."""
    if isinstance(value, Arithmetic):
        return value.expr
    return array_expr(value) if isinstance(value, np.ndarray) else constant(value)


class Arithmetic(ABC):
    """Operators and functions over an expression."""

    __slots__ = ()
    expr: Expr

    @abstractmethod
    def _made(self, expr: Expr) -> Self:
        """A new object of the same kind over another expression."""

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

    def __invert__(self) -> Self:
        return self._made(apply("not", self.expr))

    __hash__ = object.__hash__

    def abs(self) -> Self:
        return self._made(apply("abs", self.expr))

    def sign(self) -> Self:
        return self._made(apply("sign", self.expr))

    def sqrt(self) -> Self:
        return self._made(apply("sqrt", self.expr))

    def exp(self) -> Self:
        return self._made(apply("exp", self.expr))

    def log(self) -> Self:
        return self._made(apply("log", self.expr))

    def sin(self) -> Self:
        return self._made(apply("sin", self.expr))

    def cos(self) -> Self:
        return self._made(apply("cos", self.expr))

    def acos(self) -> Self:
        return self._made(apply("acos", self.expr))

    def floor(self) -> Self:
        return self._made(apply("floor", self.expr))

    def round(self) -> Self:
        """To the nearest integer, halves to even."""
        return self._made(apply("round", self.expr))

    def isnan(self) -> Self:
        return self._made(apply("isnan", self.expr))

    def minimum(self, other: Any) -> Self:
        return self._binary("minimum", other)

    def maximum(self, other: Any) -> Self:
        return self._binary("maximum", other)

    def clip(self, low: Any = None, high: Any = None) -> Self:
        """Values below ``low`` become it, values above ``high`` become that; NaN stays."""
        result = self if low is None else self.maximum(low)
        return result if high is None else result.minimum(high)

    # -- reductions -----------------------------------------------------------------------------------------------

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Whole tensor (axis None) or along the last axis. Floats accumulate in f64, integers in i64."""
        return self._reduce("sum", (self.expr,), axis, keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Self:
        total = self._reduce("sum", (self.expr,), axis, keepdims)
        return total / (math.prod(self.expr.shape) if axis is None else self.expr.shape[-1])

    def min(self, axis: int | None = None, keepdims: bool = False) -> Self:
        return self._reduce("min", (self.expr,), axis, keepdims)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Self:
        return self._reduce("max", (self.expr,), axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the first largest element; NaN counts as largest, as in NumPy."""
        return self._reduce("argmax", (self.expr,), axis, keepdims)

    def norm(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The Euclidean length."""
        length = self._reduce("sumsq", (self.expr,), axis, keepdims).sqrt()
        return (
            self._made(cast(length.expr, self.expr.dtype.compute))
            if axis is not None and self.expr.dtype.is_float
            else length
        )

    def dot(self, other: Self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The sum of products with a tensor that broadcasts to the same shape."""
        return self._reduce("dot", (self.expr, operand(other)), axis, keepdims)

    def _reduce(self, op: str, args: tuple[Expr, ...], axis: int | None, keepdims: bool) -> Self:
        if axis is not None and normalize_axis(axis, len(self.expr.shape)) != len(self.expr.shape) - 1:
            raise ShapeError(f"reductions run over the whole tensor or the last axis, not axis {axis}; transpose first")
        if axis is None and keepdims:
            raise ShapeError("keepdims goes with axis=-1")
        if axis is None:
            return self._made(Reduce(op, args, last_axis=False))
        shape = broadcast_shapes(*(arg.shape for arg in args))
        common = common_dtype(args)
        args = tuple(arg if arg.shape == shape else views.broadcast(cast(arg, common), shape) for arg in args)
        reduced = Reduce(op, args, last_axis=True, keepdims=keepdims)
        if not shape[-1]:
            return self._made(views.broadcast(cast(Scalar(0), reduced.dtype), reduced.shape))
        if len(shape) == 1 and not keepdims:
            return self._made(views.sliced(Reduce(op, args, last_axis=True, keepdims=True), 0))
        return self._made(reduced)

    # -- order ----------------------------------------------------------------------------------------------------

    def kth_largest(self, k: int) -> Self:
        """The k-th largest element (k from 1), exact, without sorting. NaN counts as largest."""
        return self._made(Kth(self._search(k), "value"))

    def top_k_mask(self, k: int) -> Self:
        """True for exactly k elements, the largest; among equals those with the lowest index."""
        if k == 0:
            return self._made(views.broadcast(Scalar(False), self.expr.shape))
        search = self._search(k)
        if not self.expr.shape:
            return self._made(Scalar(True))
        search.needs_index = True
        keys = self._made(apply("order_key", self.expr))
        index = self._made(views.counter("index", Layout.contiguous(self.expr.shape)))
        key, last = self._made(Kth(search, "key")), self._made(Kth(search, "index"))
        return (keys > key) | ((keys == key) & (index <= last))

    def _search(self, k: int) -> KthSearch:
        if not 1 <= k <= math.prod(self.expr.shape):
            raise ShapeError(
                f"k is {k}, but a tensor of shape {self.expr.shape} has {math.prod(self.expr.shape)} elements"
            )
        return KthSearch(views.broadcast(self.expr, (1,)) if not self.expr.shape else self.expr, k)

    def rank(self, descending: bool = False) -> Self:
        """The place (from 0) of each element among its row, i.e. along the last axis; equals keep their order."""
        return self._made(Rank(self.expr, descending))
