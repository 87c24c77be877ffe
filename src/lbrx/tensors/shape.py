"""Shapes and layouts: the position of element (i, j, ...) of a tensor in its storage.

A Layout is a shape with one stride per axis and an offset, all in elements. Slicing, transposing, broadcasting and (if
the strides allow it) reshaping return a new Layout over the same storage. A view of a view is a view of the base.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as as_index
from types import EllipsisType

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError

Shape = tuple[int, ...]
IndexItem = int | slice | EllipsisType | None
Index = IndexItem | tuple[IndexItem, ...]


def contiguous_strides(shape: Shape) -> Shape:
    """Return row-major strides in elements.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all shapes broadcast to, by NumPy's rules.

    >>> broadcast_shapes((4, 1), (3,))
    (4, 3)
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size == 1 or size == result[axis]:
                continue
            if result[axis] != 1:
                raise ShapeError(
                    f"shapes {' and '.join(map(str, shapes))} do not broadcast: axis {axis - rank} differs"
                )
            result[axis] = size
    return tuple(result)


def product_shape(a: Shape, b: Shape, transpose_b: bool = False) -> Shape:
    """Return the shape of a [..., n, k] times b [..., k, m] ([..., m, k] with ``transpose_b``); vectors lack n or m.

    >>> product_shape((7, 1, 2, 3), (5, 3, 4))
    (7, 5, 2, 4)
    """
    if not a or not b:
        raise ShapeError("matmul needs arrays with axes; multiply by a number with *")
    inner, columns = (b[0], ()) if len(b) == 1 else (b[-1], b[-2:-1]) if transpose_b else (b[-2], b[-1:])
    if a[-1] != inner:
        layout = "[..., m, k]" if transpose_b else "[..., k, m]"
        raise ShapeError(f"matmul: shapes {a} and {b} do not match; expected [..., n, k] and {layout} with the same k")
    return (*broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *columns)


def normalize_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front, after a range check."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for a tensor of {rank} axes")
    return axis % rank


def checked_shape(shape: Sequence[int] | int) -> Shape:
    """Return a caller's shape as a tuple of non-negative ints."""
    try:
        sizes = (as_index(shape),) if not isinstance(shape, Sequence) else tuple(as_index(size) for size in shape)
    except TypeError as error:
        raise ShapeError(f"shape {shape!r} does not consist of whole numbers") from error
    if any(size < 0 for size in sizes):
        raise ShapeError(f"shape {sizes} has a negative size")
    return sizes


def checked_number(value: int, what: str) -> int:
    """Return a caller's number of bytes or elements as an int."""
    try:
        return as_index(value)
    except TypeError as error:
        raise UsageError(f"{what} is {value!r}; expected a whole number") from error


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides and offset, in elements.

    >>> Layout.contiguous((2, 3)).transpose((1, 0))
    Layout(shape=(3, 2), strides=(1, 3), offset=0)
    """

    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def contiguous(cls, shape: Shape, offset: int = 0) -> Layout:
        """Return the C-contiguous layout of a shape."""
        return cls(shape, contiguous_strides(shape), offset)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in C order."""
        if 0 in self.shape:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def span(self) -> tuple[int, int]:
        """Return the first and one past the last storage element that the layout touches."""
        if self.elements == 0:
            return self.offset, self.offset
        low = high = self.offset
        for size, stride in zip(self.shape, self.strides, strict=True):
            reach = (size - 1) * stride
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        return low, high + 1

    def broadcast_to(self, shape: Shape) -> Layout:
        """Return the layout repeated along new axes and axes of size 1."""
        if shape == self.shape:
            return self
        added = len(shape) - len(self.shape)
        if added < 0:
            raise ShapeError(f"shape {self.shape} does not broadcast to {shape}")
        strides = [0] * added
        for own, stride, size in zip(self.shape, self.strides, shape[added:], strict=True):
            if own != size and own != 1:
                raise ShapeError(f"shape {self.shape} does not broadcast to {shape}")
            strides.append(stride if own == size else 0)
        return Layout(shape, tuple(strides), self.offset)

    def transpose(self, axes: Sequence[int]) -> Layout:
        """Return the layout with its axes in another order."""
        rank = len(self.shape)
        order = tuple(normalize_axis(axis, rank) for axis in axes)
        if sorted(order) != list(range(rank)):
            raise ShapeError(f"axes {tuple(axes)} are not a permutation of the {rank} axes of shape {self.shape}")
        return Layout(tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order), self.offset)

    def slice(self, index: Index) -> Layout:
        """Apply basic indexing: integers, slices, Ellipsis and None."""
        items = index if isinstance(index, tuple) else (index,)
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        axis = 0
        for item in expand_ellipsis(items, len(self.shape)):
            if item is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = self.shape[axis], self.strides[axis]
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                length = len(range(start, stop, step))
                shape.append(length)
                strides.append(stride * step)
                offset += stride * start if length else 0
            else:
                position = as_index(item)
                if not -size <= position < size:
                    raise ShapeError(f"index {position} is out of range for axis {axis} of size {size}")
                offset += stride * (position % size)
            axis += 1
        return Layout(tuple(shape), tuple(strides), offset)

    def reshape(self, shape: Shape) -> Layout | None:
        """Return the layout under another shape with as many elements, or None if that needs a copy."""
        if self.is_contiguous:
            return Layout.contiguous(shape, self.offset)
        groups = _merged_axes(self.shape, self.strides)
        strides: list[int] = []
        position = 0
        remaining, inner = groups[0] if groups else (1, 0)
        wanted = [size for size in shape if size != 1]
        for size in wanted:
            while remaining == 1 and position + 1 < len(groups):
                position += 1
                remaining, inner = groups[position]
            if remaining % size:
                return None
            remaining //= size
            strides.append(inner * remaining)
        full = iter(strides)
        return Layout(shape, tuple(0 if size == 1 else next(full) for size in shape), self.offset)


def _merged_axes(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Merge neighboring axes that one stride covers: (size, stride) from slowest to fastest."""
    groups: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == stride * size:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    return groups


def expand_ellipsis(items: tuple[IndexItem, ...], rank: int) -> list[int | slice | None]:
    """Replace the Ellipsis, or the missing end of an index, by full slices."""
    for item in items:
        if isinstance(item, bool) or not (item is None or isinstance(item, (slice, EllipsisType)) or _is_integer(item)):
            raise ShapeError(f"index {item!r} is not an integer, a slice, None or an Ellipsis")
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        raise ShapeError(f"{used} indices for a tensor of {rank} axes")
    if sum(item is Ellipsis for item in items) > 1:
        raise ShapeError("an index has more than one Ellipsis")
    filler: list[int | slice | None] = [slice(None)] * (rank - used)
    result: list[int | slice | None] = []
    for item in items:
        if isinstance(item, EllipsisType):
            result += filler
            filler = []
        else:
            result.append(item)
    return result + filler


def _is_integer(item: object) -> bool:
    try:
        as_index(item)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def coalesce(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Merge neighboring axes that one stride covers in each of the stride lists. Drop axes of size 1.

    >>> coalesce((2, 3, 4), [(12, 4, 1), (0, 0, 1)])
    ((6, 4), [(4, 1), (0, 1)])
    """
    merged_shape: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if merged_shape and all(own[-1] == walk[axis] * size for own, walk in zip(merged, strides, strict=True)):
            merged_shape[-1] *= size
            for own, walk in zip(merged, strides, strict=True):
                own[-1] = walk[axis]
            continue
        merged_shape.append(size)
        for own, walk in zip(merged, strides, strict=True):
            own.append(walk[axis])
    return tuple(merged_shape), [tuple(own) for own in merged]
