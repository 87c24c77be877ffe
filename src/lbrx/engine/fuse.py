"""From expressions to passes: which leaves a pass reads, how it walks them, and the program it runs.

``fuse`` takes sinks over expressions that share one iteration space. Everything element-wise goes into one loop;
what has to be known before the loop begins (a scalar, a stored intermediate) is an input of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.program import FLAT, ROWS, STRIDED, Instruction, Leaf, Program, Sink
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import (
    BOOL,
    Counter,
    Expr,
    Kth,
    Map,
    Rank,
    Reduce,
    Rows,
    Scalar,
    Stored,
    View,
    common_dtype,
    values_of,
)
from lbrx.tensors.shape import Layout, Shape, coalesce

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ROUNDED = frozenset({"f16", "bf16", "f8_e4m3", "f8_e5m2", "i4", "i2"})
_SCALAR_BASE, _BODY_BASE = 1 << 20, 1 << 40


class Input(View):
    """A leaf of a structure: the source or counter with a number of the expression that is evaluated."""

    __slots__ = ("in_storage", "number", "origin")

    def __init__(self, number: int, origin: str, dtype: DType, layout: Layout, rows: Rows | None = None) -> None:
        super().__init__(dtype, layout, rows, is_simple=True)
        self.number = number
        self.origin = origin
        self.in_storage = origin == "source"

    def through(self, layout: Layout, rows: Rows | None = None) -> Expr:
        if layout.shape or self.in_storage:
            return Input(self.number, self.origin, self.dtype, layout, rows)
        single = Input(self.number, self.origin, self.dtype, Layout((1,), (0,), layout.offset))
        return Stored(single, Layout.contiguous(()))  # only passes make values of counters


class InputNumber(Scalar):
    """A number of a structure: the one with a number of the expression that is evaluated."""

    __slots__ = ("number",)

    def __init__(self, number: int, dtype: DType) -> None:
        Expr.__init__(self, dtype, (), is_simple=True)  # without a value
        self.number = number


@dataclass(slots=True)
class PassLeaf:
    """How a pass walks a leaf; strides and offset in elements."""

    origin: str
    expr: Expr
    offset: int = 0
    inner_stride: int = 1
    outer_strides: Shape = ()
    rows: Rows | None = None
    rows_axis: int = -1


@dataclass(frozen=True, slots=True)
class Pass:
    """A program and the expressions that its leaves and scalars stand for."""

    program: Program
    space: Shape
    leaves: list[PassLeaf]
    scalars: list[Expr]
    columns: int
    outer_shape: Shape


@dataclass(slots=True)
class SinkRequest:
    """A sink over expressions: its operation, the dtype it stores, and its arguments."""

    op: str
    dtype: DType
    args: tuple[Expr, ...]


def needs_whole_rows(expr: Reduce | Rank, space: Shape) -> bool:
    """Whether the expression can be computed inside a pass over ``space``, row by row."""
    if isinstance(expr, Rank):
        return expr.args[0].shape == space
    if not (expr.last_axis and expr.keepdims):
        return False
    return all(arg.shape == space for arg in expr.args)


def fuse(space: Shape, sinks: Sequence[SinkRequest]) -> Pass:
    """One pass over ``space`` that feeds all the sinks."""
    return _Fusion(space).finish(sinks)


class _Fusion:
    def __init__(self, space: Shape) -> None:
        self.space = space
        self.values: dict[int, int] = {}
        self.leaves: list[PassLeaf] = []
        self.layouts: list[Layout] = []
        self.scalar_types: list[str] = []
        self.scalars: list[Expr] = []
        self.body: list[Instruction] = []
        self.casts: dict[tuple[int, str], int] = {}
        self.scalar_numbers: dict[tuple[int, str], int] = {}
        self.by_row = False

    # -- values -------------------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> int:
        value = self.values.get(id(expr))
        if value is None:
            value = self.values[id(expr)] = self._new_value(expr)
        return value

    def _new_value(self, expr: Expr) -> int:
        if not expr.shape:
            return self._scalar(expr, expr.dtype.compute)
        if isinstance(expr, Map):
            return self._map(expr)
        if isinstance(expr, Input | Counter):
            return self._leaf(expr.origin, expr, expr.layout, expr.rows)
        if isinstance(expr, View):
            return self._leaf("source", expr, expr.layout, expr.rows)
        if isinstance(expr, (Reduce, Rank)) and needs_whole_rows(expr, self.space):
            return self._along_row(expr)
        if values_of(expr) is not expr:
            return self.value(values_of(expr))
        return self._leaf("source", expr, Layout.contiguous(expr.shape))

    def _leaf(self, origin: str, source: Expr, layout: Layout, rows: Rows | None = None) -> int:
        rows_axis = -1 if rows is None else len(self.space) - len(layout.shape)
        self.leaves.append(PassLeaf(origin, source, rows=rows, rows_axis=rows_axis))
        self.layouts.append(layout)
        return len(self.leaves) - 1

    def _scalar(self, expr: Expr, dtype: DType) -> int:
        known = self.scalar_numbers.get((id(expr), dtype.name))
        if known is not None:
            return known
        self.scalar_types.append(dtype.name)
        self.scalars.append(expr)
        number = _SCALAR_BASE + len(self.scalars) - 1
        if isinstance(expr, Kth):  # one scalar for all that is compared with it
            self.scalar_numbers[(id(expr), dtype.name)] = number
        return number

    def _emit(self, op: str, type_name: str, args: tuple[int, ...]) -> int:
        self.body.append(Instruction(op, type_name, args))
        return _BODY_BASE + len(self.body) - 1

    def _converted(self, expr: Expr, dtype: DType) -> int:
        """The value of an expression in the register type of ``dtype`` (a compute type)."""
        if not expr.shape:
            return self._scalar(expr, dtype)
        value = self.value(expr)
        if expr.dtype.compute is dtype:
            return value
        converted = self.casts.get((value, dtype.name))
        if converted is None:
            converted = self.casts[(value, dtype.name)] = self._emit("cast", dtype.name, (value,))
        return converted

    def _map(self, expr: Map) -> int:
        op = expr.op
        if op == "cast":
            target = expr.dtype
            if target.name in _ROUNDED:
                return self._emit("cast", target.name, (self.value(expr.args[0]),))
            return self._converted(expr.args[0], target)
        if op == "where":
            condition = self._converted(expr.args[0], BOOL)
            return self._emit(
                op, expr.dtype.name, (condition, *(self._converted(a, expr.dtype) for a in expr.args[1:]))
            )
        dtype = expr.dtype
        if op in _COMPARISONS or op in ("isnan", "order_key"):
            dtype = common_dtype(expr.args)
        return self._emit(op, expr.dtype.name, tuple(self._converted(arg, dtype) for arg in expr.args))

    def _along_row(self, expr: Reduce | Rank) -> int:
        self.by_row = True
        if isinstance(expr, Rank):
            op = "rank_descending" if expr.descending else "rank_ascending"
            return self._emit(op, "i64", (self.value(expr.args[0]),))
        dtype = common_dtype(expr.args)
        args = tuple(self._converted(arg, dtype) for arg in expr.args)
        return self._emit(f"row_{expr.op}", expr.dtype.name, args)

    # -- the pass -----------------------------------------------------------------------------------------------

    def finish(self, requests: Sequence[SinkRequest]) -> Pass:
        sinks = [self._sink(request) for request in requests]
        steps, columns, outer = self._walk()
        mode = ROWS if self.by_row else STRIDED if columns is not None else FLAT
        leaves = tuple(
            Leaf(leaf.origin, leaf.expr.dtype.name, step, leaf.rows is not None)
            for leaf, step in zip(self.leaves, steps, strict=True)
        )
        first_scalar, first_body = len(leaves), len(leaves) + len(self.scalars)

        def number(ref: int) -> int:
            if ref >= _BODY_BASE:
                return ref - _BODY_BASE + first_body
            return ref - _SCALAR_BASE + first_scalar if ref >= _SCALAR_BASE else ref

        body = tuple(Instruction(i.op, i.type, tuple(map(number, i.args))) for i in self.body)
        program = Program(
            mode,
            leaves,
            tuple(self.scalar_types),
            body,
            tuple(Sink(sink.op, sink.type, tuple(map(number, sink.args))) for sink in sinks),
        )
        return Pass(program, self.space, self.leaves, self.scalars, columns or 1, outer)

    def _sink(self, request: SinkRequest) -> Sink:
        if request.op in ("store", "row_store"):
            value = self.value(request.args[0])
            if not request.args[0].shape:
                raise AssertionError("a tensor without axes is not stored by a pass")
            stored = request.dtype.compute if request.dtype.is_packed else request.dtype  # packed after the pass
            return Sink(request.op, stored.name, (value,))
        dtype = common_dtype(request.args)
        return Sink(request.op, request.dtype.name, tuple(self._converted(arg, dtype) for arg in request.args))

    def _walk(self) -> tuple[list[str], int | None, Shape]:
        """Set the strides of the leaves; returns (steps, columns or None if flat, sizes of outer axes)."""
        space = self.space
        if not self.by_row and self._set_if_contiguous():
            return ["unit"] * len(self.leaves), None, ()
        layouts = [layout.broadcast_to(space) for layout in self.layouts]
        for leaf, layout in zip(self.leaves, layouts, strict=True):
            leaf.offset = layout.offset
        shape, strides = self._merged(space, [layout.strides for layout in layouts])
        if len(shape) <= 1 and not self.by_row and not any(leaf.rows is not None for leaf in self.leaves):
            inner = [walk[0] if walk else 0 for walk in strides]
            if all(stride in (0, 1) for stride in inner):
                steps = ["unit" if stride else "zero" for stride in inner]
                return steps, None, ()
        outer, columns = shape[:-1], shape[-1] if shape else 1
        steps = []
        for leaf, walk in zip(self.leaves, strides, strict=True):
            leaf.inner_stride = walk[-1] if walk else 0
            leaf.outer_strides = walk[:-1]
            steps.append({0: "zero", 1: "unit"}.get(leaf.inner_stride, "any"))
        return steps, columns, outer

    def _set_if_contiguous(self) -> bool:
        space = self.space
        for leaf, layout in zip(self.leaves, self.layouts, strict=True):
            if leaf.rows is not None or layout.shape != space or not layout.is_contiguous:
                return False
        for leaf, layout in zip(self.leaves, self.layouts, strict=True):
            leaf.offset = layout.offset
        return True

    def _merged(self, space: Shape, strides: list[Shape]) -> tuple[Shape, list[Shape]]:
        """Axes merged where all leaves allow it, but never across a gathered axis or into a row that is needed."""
        gathered = {leaf.rows_axis for leaf in self.leaves if leaf.rows is not None}
        if self.by_row and gathered:
            return space, strides
        if self.by_row:
            outer, merged = coalesce(space[:-1], [walk[:-1] for walk in strides])
            return (*outer, space[-1]), [(*own, walk[-1]) for own, walk in zip(merged, strides, strict=True)]
        if not gathered:
            return coalesce(space, strides)
        if len(gathered) == 1 and gathered == {0} and len(space) > 1:
            inner, merged = coalesce(space[1:], [walk[1:] for walk in strides])
            if not inner:
                inner, merged = (1,), [(0,) for _ in strides]
            return (space[0], *inner), [(walk[0], *own) for own, walk in zip(merged, strides, strict=True)]
        return (*space, 1), [(*walk, 0) for walk in strides]
