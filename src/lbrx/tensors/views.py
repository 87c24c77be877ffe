"""Views of expressions: slices, transposes, broadcasts and reshapes, pushed down to the leaves.

A view of an element-wise expression is the expression of views, so nothing is computed or copied here. If a view cannot
be pushed down (through a reduction, or a reshape across strides), the expression is stored first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from lbrx.errors import ShapeError
from lbrx.tensors.expr import Concat, Counter, Expr, Map, Reduce, Scalar, Stored, StreamKey, View, cast, values_of
from lbrx.tensors.shape import Index, IndexItem, Layout, Shape, expand_ellipsis

Transform = Callable[[Layout], Layout | None]


def counter(origin: str, layout: Layout, key: StreamKey = (0, 0)) -> Expr:
    """Return a Counter. One without axes is stored first, because only passes compute such values."""
    if layout.shape:
        return Counter(origin, layout, key)
    return Stored(Counter(origin, Layout((1,), (0,), layout.offset), key), Layout.contiguous(()))


def joined(parts: Sequence[Expr], axis: int) -> Expr:
    """Join expressions along an axis: a join of the non-empty parts along axis 0, seen through views."""
    first = parts[0]
    whole = Concat(tuple(parts), axis)
    full = tuple(part for part in parts if part.shape[axis])
    if len(full) <= 1:
        return full[0] if full else first
    if axis:
        order = (axis, *(other for other in range(len(whole.shape)) if other != axis))
        turned = joined([transposed(part, order) for part in full], 0)
        return transposed(turned, [order.index(other) for other in range(len(order))])
    if first.dtype.is_packed:  # a part's first element may be inside a byte of the joined tensor
        return cast(Concat(tuple(cast(part, first.dtype.compute) for part in full), 0), first.dtype)
    return Concat(full, 0)


def sliced(expr: Expr, index: Index) -> Expr:
    """Apply basic indexing."""
    items = index if isinstance(index, tuple) else (index,)
    if isinstance(expr, View) and expr.rows is not None:
        return _sliced_rows(expr, expand_ellipsis(items, len(expr.shape)))
    if isinstance(expr, Reduce) and expr.last_axis and not expr.keepdims:
        return _sliced_reduction(expr, items)
    return _transformed(expr, lambda layout: layout.slice(index))


def transposed(expr: Expr, axes: Sequence[int]) -> Expr:
    return _transformed(expr, lambda layout: layout.transpose(axes))


def broadcast(expr: Expr, shape: Shape) -> Expr:
    if shape == expr.shape:
        return expr
    return _transformed(expr, lambda layout: layout.broadcast_to(shape))


def reshaped(expr: Expr, shape: Sequence[int]) -> Expr:
    sizes = _inferred(expr.shape, tuple(shape))
    return expr if sizes == expr.shape else _transformed(expr, lambda layout: layout.reshape(sizes))


def gathered(expr: Expr, rows: np.ndarray) -> Expr:
    """Return the rows (axis 0) with the given numbers, in their order."""
    if not expr.shape:
        raise ShapeError("cannot gather rows of a tensor without axes")
    numbers = np.ascontiguousarray(rows, dtype=np.int64)
    if numbers.ndim != 1:
        raise ShapeError(f"row numbers must be a vector, not of shape {numbers.shape}")
    size = expr.shape[0]
    if numbers.size and not (-size <= int(numbers.min()) and int(numbers.max()) < size):
        bad = numbers[(numbers < -size) | (numbers >= size)][0]
        raise ShapeError(f"row {int(bad)} is out of range for axis 0 of size {size}")
    return _gathered(values_of(expr), np.where(numbers < 0, numbers + size, numbers))


def _gathered(expr: Expr, rows: np.ndarray) -> Expr:
    if isinstance(expr, View):
        if expr.rows is not None:
            rows = expr.rows[rows]
        return _rows_of(expr, rows, Layout((rows.size, *expr.shape[1:]), expr.layout.strides, expr.layout.offset))
    if isinstance(expr, Map):
        return Map(expr.op, tuple(_gathered_argument(arg, expr.shape, rows) for arg in expr.args), expr.dtype)
    return _gathered(Stored(expr, Layout.contiguous(expr.shape)), rows)


def _rows_of(expr: View, rows: np.ndarray, layout: Layout) -> Expr:
    """Return a leaf whose axis 0 is looked up in ``rows``. One row is a plain view, so that it can be broadcast."""
    if rows.size == 1:
        offset = layout.offset + int(rows[0]) * layout.strides[0]
        return expr.through(Layout(layout.shape, layout.strides, offset))
    picked = expr.through(layout, np.ascontiguousarray(rows))
    # Passes look up rows between runs of columns, so a vector of gathered elements is stored first.
    return picked if len(layout.shape) > 1 else Stored(picked, Layout.contiguous(layout.shape))


def _gathered_argument(arg: Expr, shape: Shape, rows: np.ndarray) -> Expr:
    """Gather an argument of a Map of ``shape``. An argument that is the same for every row does not change."""
    if len(arg.shape) < len(shape) or arg.shape[0] == 1 != shape[0]:
        return arg
    return _gathered(arg, rows)


def _transformed(expr: Expr, transform: Transform) -> Expr:
    expr = values_of(expr)
    pushed = _pushed(expr, transform)
    if pushed is not None:
        return pushed
    layout = transform(Layout.contiguous(expr.shape))
    assert layout is not None
    return Stored(expr, layout)


def _pushed(expr: Expr, transform: Transform) -> Expr | None:
    if isinstance(expr, View) and expr.rows is None:
        layout = transform(expr.layout)
        return None if layout is None else expr.through(layout)
    if isinstance(expr, Counter):
        layout = transform(expr.layout)
        return None if layout is None else counter(expr.origin, layout, expr.key)
    if isinstance(expr, Map):
        return _pushed_map(expr, transform)
    return None


def _pushed_map(expr: Map, transform: Transform) -> Expr | None:
    if not expr.shape:
        return _pushed_constant(expr, transform)
    args: list[Expr] = []
    for arg in expr.args:
        if not arg.shape:
            args.append(arg)
            continue
        whole = broadcast(arg, expr.shape)
        pushed = _pushed(whole, transform)
        if pushed is None:
            return None
        args.append(pushed)
    return Map(expr.op, tuple(args), expr.dtype)


def _pushed_constant(expr: Map, transform: Transform) -> Expr | None:
    """Return a Map without axes seen through a transform: the same value everywhere."""
    layout = transform(Layout.contiguous(()))
    return None if layout is None else Stored(expr, layout)


def _sliced_rows(expr: View, items: list[int | slice | None]) -> Expr:
    assert expr.rows is not None
    first, rest = items[0], tuple(items[1:])
    inner = Layout(expr.shape[1:], expr.layout.strides[1:], expr.layout.offset)
    if isinstance(first, slice) and None not in rest:
        rows = expr.rows[first]
        tail = inner.slice(rest)
        return _rows_of(
            expr, rows, Layout((rows.size, *tail.shape), (expr.layout.strides[0], *tail.strides), tail.offset)
        )
    stored = Stored(expr, Layout.contiguous(expr.shape))
    return Stored(expr, stored.layout.slice(tuple(items)))


def _sliced_reduction(expr: Reduce, items: tuple[IndexItem, ...]) -> Expr:
    """Return ``r[..., None]`` of a reduction along rows as the same reduction with its axis kept."""
    written = expand_ellipsis(items, len(expr.shape))
    if written[-1] is None and all(item == slice(None) for item in written[:-1]):
        return Reduce(expr.op, expr.args, last_axis=True, keepdims=True)
    return Stored(expr, Layout.contiguous(expr.shape).slice(tuple(items)))


def row_range(expr: Expr, start: int, stop: int) -> Expr:
    """Return rows ``start`` to ``stop``. A join along axis 0 passes them on to its parts."""
    if isinstance(expr, Concat) and expr.axis == 0:
        return _concat_range(expr, start, stop)
    if isinstance(expr, Map):
        args = tuple(
            arg
            if len(arg.shape) < len(expr.shape) or arg.shape[0] == 1 != expr.shape[0]
            else row_range(arg, start, stop)
            for arg in expr.args
        )
        return Map(expr.op, args, expr.dtype)
    if isinstance(expr, Scalar):
        return expr
    return sliced(expr, slice(start, stop))


def _concat_range(expr: Concat, start: int, stop: int) -> Expr:
    pieces: list[Expr] = []
    position = 0
    for part in expr.args:
        low, high = max(start - position, 0), min(stop - position, part.shape[0])
        if low < high:
            pieces.append(part if (low, high) == (0, part.shape[0]) else row_range(part, low, high))
        position += part.shape[0]
    if not pieces:
        return sliced(expr.args[0], slice(0, 0))
    return pieces[0] if len(pieces) == 1 else Concat(tuple(pieces), 0)


def row_breaks(expr: Expr) -> set[int]:
    """Return the rows of axis 0 at which a join begins a new part, through element-wise operations only."""
    breaks: set[int] = set()
    seen: set[tuple[int, int]] = set()
    waiting: list[tuple[Expr, int]] = [(expr, 0)]
    while waiting:
        node, start = waiting.pop()
        if node.is_simple or (id(node), start) in seen:
            continue
        seen.add((id(node), start))
        if isinstance(node, Concat) and node.axis == 0:
            for part in node.args:
                breaks.add(start)
                waiting.append((part, start))
                start += part.shape[0]
        elif isinstance(node, Map):
            rows = node.shape[:1]
            waiting += [(a, start) for a in node.args if len(a.shape) == len(node.shape) and a.shape[:1] == rows]
    return breaks


def _inferred(old: Shape, new: Shape) -> Shape:
    """Return the new shape with its -1, if any, filled in."""
    elements = math.prod(old)
    if new.count(-1) > 1 or any(size < -1 for size in new):
        raise ShapeError(f"shape {new} cannot be inferred: at most one size may be -1")
    if -1 in new:
        known = math.prod(size for size in new if size != -1)
        if known == 0 or elements % known:
            raise ShapeError(f"a tensor of shape {old} cannot be reshaped to {new}")
        new = tuple(elements // known if size == -1 else size for size in new)
    if math.prod(new) != elements:
        raise ShapeError(f"a tensor of shape {old} with {elements} elements cannot be reshaped to {new}")
    return new
