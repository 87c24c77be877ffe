"""Reductions and ranks of tensors. They build expressions and compute nothing.

Sums accumulate in f64 for floats and in i64 for integers. A sum over the whole tensor is f64 or i64. A sum of floats
along axes has the compute type of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from lbrx.errors import ShapeError
from lbrx.tensors import views
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import (
    BOOL,
    F64,
    I64,
    Expr,
    Kth,
    KthSearch,
    Rank,
    Reduce,
    Scalar,
    Stored,
    apply,
    cast,
    common_dtype,
    reduce_dtype,
)
from lbrx.tensors.operators import Arithmetic, operand
from lbrx.tensors.shape import Layout, Shape, broadcast_shapes, normalize_axis

Axis = int | Sequence[int] | None
"""The axes of a reduction: one, several, or None for all."""

STRIDED_ELEMENTS = 1 << 20  # an axis and the axes after it are read out of order (from the cache) up to this size
FACTORS = 16  # elements that one pass multiplies


class AxisReduce(Expr):
    """sum, min, max or argmax along an axis that is not the last, over blocks of rows in order."""

    __slots__ = ("axis", "op")
    facts = None  # separate evaluations compute it

    def __init__(self, op: str, arg: Expr, axis: int) -> None:
        if op != "sum" and not arg.shape[axis]:
            raise ShapeError(f"{op} of a tensor of shape {arg.shape} has no elements to choose from")
        shape = arg.shape[:axis] + arg.shape[axis + 1 :]
        super().__init__(reduce_dtype(op, (arg,), last_axis=True), shape, args=(arg,))
        self.op = op
        self.axis = axis


class Reductions(Arithmetic):
    """Operations that combine many elements: sums, extremes and ranks."""

    __slots__ = ()

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Sum over the whole tensor or along axes.

        >>> import lbrx
        >>> x = lbrx.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> float(x.sum()), x.sum(axis=0).tolist(), x.sum(axis=1, keepdims=True).tolist()
        (10.0, [4.0, 6.0], [[3.0], [7.0]])
        """
        return self._reduce("sum", (self.expr,), axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the mean over the whole tensor or along axes.

        >>> import lbrx
        >>> lbrx.tensor([[1.0, 2.0], [3.0, 4.0]]).mean(axis=0).tolist()
        [2.0, 3.0]
        """
        return self._reduce("sum", (self.expr,), axis, keepdims) / self._count(axis)

    def var(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Self:
        """Return the variance. ``ddof`` is subtracted from the number of elements.

        >>> import lbrx
        >>> x = lbrx.tensor([1.0, 2.0, 3.0, 4.0])
        >>> float(x.var()), round(float(x.var(ddof=1)), 4)
        (1.25, 1.6667)
        """
        centre = self.mean() if axis is None else self.mean(axis, keepdims=True)
        squares = self._reduce("sumsq", ((self - centre).expr,), axis, keepdims)
        count = max(self._count(axis) - ddof, 0)
        return (squares / count)._as_along(axis, self.expr.dtype)

    def std(self, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Self:
        """Return the standard deviation. ``ddof`` is subtracted from the number of elements.

        >>> import lbrx
        >>> float(lbrx.tensor([1.0, 3.0]).std())
        1.0
        """
        return self.var(axis, ddof, keepdims).sqrt()

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the product over the whole tensor or along axes. Intermediate products of 16 elements are stored.

        >>> import lbrx
        >>> x = lbrx.tensor([[1, 2], [3, 4]])
        >>> int(x.prod()), x.prod(axis=0).tolist()
        (24, [3, 8])
        """
        shape = self.expr.shape
        axes = tuple(range(len(shape))) if axis is None else _axes(axis, len(shape))
        wide = F64 if self.expr.dtype.is_float else I64
        kept = _without(shape, axes)
        first = views.transposed(
            cast(self.expr, wide), (*axes, *(each for each in range(len(shape)) if each not in axes))
        )
        product = _multiplied(views.reshaped(first, (self._count(axis), *kept)))
        return self._made(views.reshaped(product, _reduced_shape(shape, axes, keepdims)))._as_along(
            axis, self.expr.dtype
        )

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the smallest element, or NaN if there is one.

        >>> import lbrx
        >>> lbrx.tensor([[1.0, 4.0], [3.0, 2.0]]).min(axis=0).tolist()
        [1.0, 2.0]
        """
        return self._reduce("min", (self.expr,), axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the largest element, or NaN if there is one.

        >>> import lbrx
        >>> lbrx.tensor([[1.0, 4.0], [3.0, 2.0]]).max(axis=0).tolist()
        [3.0, 4.0]
        """
        return self._reduce("max", (self.expr,), axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the first largest element. NaN counts as largest.

        >>> import lbrx
        >>> x = lbrx.tensor([[1.0, 4.0], [3.0, 2.0]])
        >>> int(x.argmax()), x.argmax(axis=0).tolist()
        (1, [1, 0])
        """
        return self._reduce("argmax", (self.expr,), axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the first smallest element. NaN counts as smallest.

        >>> import lbrx
        >>> lbrx.tensor([[1.0, 4.0], [3.0, 2.0]]).argmin(axis=1).tolist()
        [0, 1]
        """
        opposite = apply("neg" if self.expr.dtype.is_float else "not", self.expr)
        return self._reduce("argmax", (opposite,), axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return whether any element is not zero.

        >>> import lbrx
        >>> lbrx.tensor([[0, 1], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return self._decided("max", axis, keepdims, if_empty=False)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return whether no element is zero.

        >>> import lbrx
        >>> lbrx.tensor([[0, 1], [2, 3]]).all(axis=1).tolist()
        [False, True]
        """
        return self._decided("min", axis, keepdims, if_empty=True)

    def _decided(self, op: str, axis: Axis, keepdims: bool, if_empty: bool) -> Self:
        if not self._count(axis):
            shape = self.expr.shape
            axes = tuple(range(len(shape))) if axis is None else _axes(axis, len(shape))
            return self._made(views.broadcast(Scalar(if_empty), _reduced_shape(shape, axes, keepdims)))
        is_set = self.expr if self.expr.dtype is BOOL else self._binary("ne", 0).expr
        return self._reduce(op, (is_set,), axis, keepdims)

    def norm(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the Euclidean norm.

        >>> import lbrx
        >>> float(lbrx.tensor([3.0, 4.0]).norm())
        5.0
        """
        return self._reduce("sumsq", (self.expr,), axis, keepdims).sqrt()._as_along(axis, self.expr.dtype)

    def dot(self, other: Any, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the sum of products with a tensor that broadcasts to the same shape.

        >>> import lbrx
        >>> float(lbrx.tensor([1.0, 2.0]).dot(lbrx.tensor([3.0, 4.0])))
        11.0
        """
        return self._reduce("dot", (self.expr, operand(other)), axis, keepdims)

    def _count(self, axis: Axis) -> int:
        """Return the number of elements that one element of the result combines."""
        shape = self.expr.shape
        return math.prod(shape if axis is None else (shape[each] for each in _axes(axis, len(shape))))

    def _as_along(self, axis: Axis, dtype: DType) -> Self:
        """Cast a result along axes to the dtype of sums along axes."""
        return self._made(cast(self.expr, dtype.compute)) if axis is not None and dtype.is_float else self

    def _reduce(self, op: str, args: tuple[Expr, ...], axis: Axis, keepdims: bool) -> Self:
        if axis is None and not keepdims:
            return self._made(Reduce(op, args, last_axis=False))
        shape = broadcast_shapes(*(arg.shape for arg in args))
        if axis is None:
            return self._made(views.reshaped(Reduce(op, args, last_axis=False), (1,) * len(shape)))
        axes = _axes(axis, len(shape))
        if op == "argmax" and len(axes) != 1:
            raise ShapeError(f"cannot return one index along axes {axis}; expected one axis")
        common = common_dtype(args)
        args = tuple(arg if arg.shape == shape else views.broadcast(cast(arg, common), shape) for arg in args)
        if axes == (len(shape) - 1,):
            return self._made(_along_rows(op, args, keepdims))
        return self._made(views.reshaped(_along(op, args, axes), _reduced_shape(shape, axes, keepdims)))

    # -- order ----------------------------------------------------------------------------------------------------

    def kth_largest(self, k: int) -> Self:
        """Return the k-th largest element (k from 1), exactly and without sorting. NaN counts as largest.

        >>> import lbrx
        >>> float(lbrx.tensor([3.0, 1.0, 2.0]).kth_largest(2))
        2.0
        """
        return self._made(Kth(self._search(k), "value"))

    def top_k_mask(self, k: int) -> Self:
        """Return True for exactly k elements, the largest. Ties go to the lowest index.

        >>> import lbrx
        >>> lbrx.tensor([3.0, 1.0, 2.0]).top_k_mask(2).tolist()
        [True, False, True]
        """
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
        """Return the position (from 0) of each element in its sorted row (the last axis). Ties keep their order.

        >>> import lbrx
        >>> lbrx.tensor([30.0, 10.0, 20.0]).rank().tolist()
        [2, 0, 1]
        """
        return self._made(Rank(self.expr, descending))


def _axes(axis: int | Sequence[int], rank: int) -> Shape:
    """Return the axes of a reduction, counted from the front, in order."""
    axes = sorted(normalize_axis(each, rank) for each in (axis if isinstance(axis, Sequence) else (axis,)))
    if len(set(axes)) < len(axes):
        raise ShapeError(f"axis {axis} contains the same axis twice")
    return tuple(axes)


def _without(shape: Shape, axes: Shape) -> Shape:
    return tuple(size for number, size in enumerate(shape) if number not in axes)


def _reduced_shape(shape: Shape, axes: Shape, keepdims: bool) -> Shape:
    if not keepdims:
        return _without(shape, axes)
    return tuple(1 if number in axes else size for number, size in enumerate(shape))


def _moved_last(expr: Expr, axes: Shape) -> Expr:
    kept = (number for number in range(len(expr.shape)) if number not in axes)
    return views.transposed(expr, (*kept, *axes))


def _along_rows(op: str, args: tuple[Expr, ...], keepdims: bool = False) -> Expr:
    """Reduce along the last axis."""
    shape = args[0].shape
    reduced = Reduce(op, args, last_axis=True, keepdims=keepdims)
    if not shape[-1]:
        return views.broadcast(cast(Scalar(0), reduced.dtype), reduced.shape)
    if len(shape) == 1 and not keepdims:
        return views.sliced(Reduce(op, args, last_axis=True, keepdims=True), 0)
    return reduced


def _along(op: str, args: tuple[Expr, ...], axes: Shape) -> Expr:
    """Reduce arguments of one shape along some axes.

    Neighboring axes are reduced as one. The axis is moved to the end if that reads only a small part of the tensor out
    of order. Otherwise blocks of rows are reduced one after the other.
    """
    shape, result_dtype = args[0].shape, reduce_dtype(op, args, last_axis=True)
    if len(axes) == len(shape):
        return cast(Reduce(op, args, last_axis=False), result_dtype)
    if not axes:  # each element is its own sum
        return _along_rows(op, tuple(views.reshaped(arg, (*shape, 1)) for arg in args))
    own = tuple(axis for number, axis in enumerate(axes) if axis == axes[0] + number)
    if own != axes:
        op, arg = _as_sum(op, args)
        others = tuple(axis - len(own) for axis in axes[len(own) :])
        return cast(_along(op, (_along(op, (arg,), own),), others), result_dtype)
    if math.prod(shape[own[0] :]) > STRIDED_ELEMENTS and math.prod(shape[own[-1] + 1 :]) > 1:
        op, arg = ("argmax", args[0]) if op == "argmax" else _as_sum(op, args)
        for axis in reversed(own):
            arg = AxisReduce(op, arg, axis)
        return cast(arg, result_dtype)
    size = math.prod(shape[axis] for axis in own)
    moved = (views.reshaped(_moved_last(arg, own), (*_without(shape, own), size)) for arg in args)
    return _along_rows(op, tuple(moved))


def _as_sum(op: str, args: tuple[Expr, ...]) -> tuple[str, Expr]:
    """Return an equivalent reduction of one argument that can be split into steps without rounding twice."""
    if op in ("min", "max"):
        return op, args[0]
    wide = [cast(arg, F64 if common_dtype(args).is_float else I64) for arg in args]
    return "sum", wide[0] if op == "sum" else apply("mul", wide[0], wide[-1])


def _multiplied(expr: Expr) -> Expr:
    """Multiply along axis 0 and remove it: 16 parts at a time until one element is left."""
    size, *others = expr.shape
    if not size:
        return views.broadcast(cast(Scalar(1), expr.dtype), tuple(others))
    while size > 1:
        parts = min(FACTORS, size)
        length = size // parts
        product = views.sliced(expr, slice(0, length))
        for part in range(1, parts):
            product = apply("mul", product, views.sliced(expr, slice(part * length, (part + 1) * length)))
        joined = views.joined([product, views.sliced(expr, slice(parts * length, None))], 0)
        expr, size = Stored(joined, Layout.contiguous(joined.shape)), joined.shape[0]
    return views.sliced(expr, 0)
