"""Planning: expressions sorted into stages, every stage in as few passes as possible.

Reductions, searches and stored intermediates that an expression needs come first. Whatever belongs to one stage and
one iteration space shares one pass, so several reductions of the same data read it once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.fuse import Input, Pass, SinkRequest, fuse, needs_whole_rows
from lbrx.tensors.coded import Decode, Encode, Encoding, StoredKey, is_stored, stored_key
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import F32, Expr, Kth, KthSearch, Map, MatMul, Rank, Reduce, Source, Stored, values_of
from lbrx.tensors.reductions import AxisReduce
from lbrx.tensors.shape import Layout, Shape, broadcast_shapes
from lbrx.tensors.views import row_breaks, row_range

MAX_SINKS = 64  # of one pass; more would only make a kernel that compiles for a long time
SEARCH_PASSES = 3  # of a search for the k-th largest element, at most, unless very many elements are equal
Root = tuple[Expr, DType | None]
"""An expression to compute and the dtype of its destination; None for a value without axes or a whole product."""


class Target(NamedTuple):
    """Elements of an output or intermediate of a plan, by its number."""

    number: int
    part: tuple[int, int] | None = None  # the first element, and how many; None for all of them


class BlockTarget(NamedTuple):
    """Blocks of an encoding, from an element on: the outputs or intermediates of its parts, None if unwanted."""

    encoding: Encoding
    numbers: list[int | None]
    start: int = 0


@dataclass(frozen=True, slots=True)
class StoreTask:
    """An expression whose elements are stored as a dtype."""

    expr: Expr
    dtype: DType
    target: Target | BlockTarget

    @property
    def is_copy(self) -> bool:
        """Whether the stored bytes are those of a storage."""
        expr = self.expr
        return (
            isinstance(self.target, Target)
            and isinstance(expr, Source | Input)
            and expr.in_storage
            and expr.rows is None
            and expr.dtype is self.dtype
            and not expr.dtype.is_packed
            and expr.layout.is_contiguous
        )


Task = StoreTask | Reduce | KthSearch | MatMul | AxisReduce


class PassStep(NamedTuple):
    """A pass, where its stores go (None for a reduction), and its reductions."""

    fused: Pass
    targets: list[Target | BlockTarget | None]
    reductions: list[Reduce]


class SearchStep(NamedTuple):
    """Searches over one space."""

    space: Shape
    searches: list[KthSearch]


class ProductStep(NamedTuple):
    """Products and reductions along axes that are computed into memory, and products that passes compute."""

    whole: list[MatMul | AxisReduce]
    streamed: list[MatMul]


Step = PassStep | SearchStep | ProductStep | StoreTask
"""A store task is a copy of stored elements, or a value without axes."""


@dataclass(slots=True)
class Plan:
    """The steps of an evaluation. Outputs are numbered as the roots are, intermediates after them.

    ``passes`` are those that searches have fused. ``small`` belongs to `lbrx.engine.evaluate`.
    """

    roots: list[Expr]
    intermediates: list[Expr]
    steps: list[Step]
    pass_count: int
    passes: dict[tuple[Any, ...], tuple[Pass, tuple[Expr, ...]]] = field(default_factory=dict)
    small: Any = None


def make_plan(roots: Sequence[Root]) -> Plan:
    """The plan of some expressions."""
    stages = _Stages(len(roots))
    for number, (expr, dtype) in enumerate(roots):
        if isinstance(expr, MatMul) and dtype is None:
            stages.product(expr, is_whole=True)
        elif dtype is None:
            stages.level(expr, ())
        else:
            stages.add_store(expr, dtype, number)
    steps: list[Step] = []
    passes = 0
    for stage, tasks in sorted(stages.tasks.items()):
        streamed = [product for product, first in stages.streamed.values() if first == stage]
        products = ProductStep([task for task in tasks if isinstance(task, MatMul | AxisReduce)], streamed)
        steps += [products] if any(products) else []
        by_space = _by_space([task for task in tasks if not isinstance(task, MatMul | AxisReduce)])
        steps += [step for space, task_group in by_space.items() for step in _steps(space, *task_group)]
        passes += max(map(_pass_count, by_space.values()), default=0) + len(products.whole)
    return Plan([expr for expr, _ in roots], stages.intermediates, steps, passes)


class _Stages:
    """Tasks by the stage in which they can run: all that they need is known by then."""

    def __init__(self, outputs: int) -> None:
        self.tasks: dict[int, list[Task]] = defaultdict(list)
        self.streamed: dict[int, tuple[MatMul, int]] = {}  # with the first stage in which passes can read them
        self.intermediates: list[Expr] = []
        self._outputs = outputs
        self._levels: dict[tuple[int, Shape], int] = {}
        self._planned: dict[StoredKey, int] = {}
        self._values: dict[int, int] = {}  # of reductions and searches, which may also be stored
        self._encodings: dict[int, tuple[BlockTarget, int]] = {}
        self._keep: list[Expr] = []

    def level(self, expr: Expr, space: Shape) -> int:
        """The first stage in which a pass over ``space`` can compute the expression."""
        if expr.is_simple:
            return 0
        key = (id(expr), space)
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = self._new_level(expr, space)
            self._keep.append(expr)
        return level

    def _new_level(self, expr: Expr, space: Shape) -> int:
        if isinstance(expr, Map):
            return max(self.level(arg, space) for arg in expr.args if not arg.is_simple)
        if isinstance(expr, MatMul):
            return self.product(expr)
        if isinstance(expr, AxisReduce):
            return self._plan(expr, max(map(self._operand_level, expr.args)))
        if isinstance(expr, Stored) and isinstance(expr.inner, AxisReduce):
            return self.level(expr.inner, space)
        if isinstance(expr, Stored) and isinstance(expr.inner, MatMul):
            return self.product(expr.inner, expr.layout)
        if isinstance(expr, Stored):
            return self._store_first(expr.inner)
        if isinstance(expr, Decode):
            return max(self._store_first(part) for part in expr.args if not is_stored(part))
        if values_of(expr) is not expr:
            return self.level(values_of(expr), space)
        if isinstance(expr, Kth):
            return self._plan(expr.search, self.level(expr.search.arg, expr.search.arg.shape))
        if isinstance(expr, Reduce) and not expr.last_axis:
            inner = broadcast_shapes(*(arg.shape for arg in expr.args))
            return self._plan(expr, max(self.level(arg, inner) for arg in expr.args))
        if isinstance(expr, Reduce | Rank) and needs_whole_rows(expr, space):
            return max(self.level(arg, space) for arg in expr.args)
        return self._store_first(expr)

    def product(self, expr: MatMul, layout: Layout | None = None, is_whole: bool = False) -> int:
        """The first stage in which a pass can read a product through a layout: from memory, or as it is computed."""
        from lbrx.engine.products import is_streamed

        if id(expr) in self._planned:
            return self._planned[id(expr)]
        stage = max(map(self._operand_level, expr.args))
        if is_whole or not is_streamed(expr, layout):
            return self._plan(expr, stage)
        self.streamed[id(expr)] = expr, stage
        return stage

    def _operand_level(self, expr: Expr) -> int:
        """The first stage in which rows of an operand can be computed."""
        from lbrx.engine.products import can_be_cut

        return self.level(expr, expr.shape) if can_be_cut(expr) else self._store_first(expr)

    def _plan(self, task: Reduce | KthSearch | MatMul | AxisReduce, stage: int) -> int:
        is_whole = isinstance(task, MatMul | AxisReduce)
        planned: dict[Any, int] = self._planned if is_whole else self._values
        if id(task) not in planned:
            planned[id(task)] = stage + 1
            self.tasks[stage].append(task)
        return planned[id(task)]

    def _store_first(self, expr: Expr) -> int:
        if isinstance(expr, Encode) and len(expr.parts) > 1:
            return max(map(self._store_first, expr.parts))
        key = stored_key(expr)
        if key not in self._planned:
            self.intermediates.append(expr)
            number = self._outputs + len(self.intermediates) - 1
            self._planned[key] = self.add_store(expr, expr.dtype, number) + 1
        return self._planned[key]

    def add_store(self, expr: Expr, dtype: DType, number: int) -> int:
        """Plan the storing of a whole expression; returns the last stage in which a part of it is stored."""
        if isinstance(expr, Encode):
            return self._add_encoding(expr, number)
        return self._add_tasks(_store_tasks(expr, dtype, Target(number)))

    def _add_encoding(self, expr: Encode, number: int) -> int:
        """Plan the storing of blocks, together with other parts of the same encoding."""
        encoding, part = expr.encoding, expr.part or 0
        target, stage = self._encodings.get(id(encoding), (None, 0))
        if target is None or target.numbers[part] is not None:
            encoding.codec.check_can_encode(has_importance=encoding.importance is not None)
            target = BlockTarget(encoding, [None] * max(len(encoding.codec.parts), 1))
            stage = self._add_tasks(_store_tasks(encoding.values, F32, target)) if encoding.blocks else 0
            self._encodings[id(encoding)] = target, stage
        target.numbers[part] = number
        return stage

    def _add_tasks(self, tasks: list[StoreTask]) -> int:
        latest = 0
        for task in tasks:
            stage = self._level_of_store(task.expr)
            self.tasks[stage].append(task)
            latest = max(latest, stage)
        return latest

    def _level_of_store(self, expr: Expr) -> int:
        if not expr.shape:
            return self.level(expr, ())
        if isinstance(expr, Reduce):
            space = broadcast_shapes(*(arg.shape for arg in expr.args))
            return max(self.level(arg, space) for arg in expr.args)
        return self.level(expr, expr.shape)


def _store_tasks(expr: Expr, dtype: DType, target: Target | BlockTarget) -> list[StoreTask]:
    """One task, or one for each run of rows between the seams of joined tensors."""
    breaks = sorted(row_breaks(expr) - {0}) if expr.shape and not expr.is_simple else []
    if not breaks or dtype.is_packed:
        return [StoreTask(expr, dtype, target)]
    row = math.prod(expr.shape[1:])
    tasks = []
    for start, stop in zip([0, *breaks], [*breaks, expr.shape[0]], strict=True):
        if isinstance(target, BlockTarget):
            piece: Target | BlockTarget = BlockTarget(target.encoding, target.numbers, start * row)
        else:
            piece = Target(target.number, (start * row, (stop - start) * row))
        tasks.append(StoreTask(values_of(row_range(expr, start, stop)), dtype, piece))
    return tasks


_PassTask = StoreTask | Reduce | KthSearch
_Group = tuple[list[StoreTask | Reduce], list[KthSearch]]


def _by_space(tasks: list[_PassTask]) -> dict[Shape, _Group]:
    """Tasks by their iteration space: those that share passes, and the searches."""
    by_space: dict[Shape, _Group] = {}
    for task in tasks:
        others, searches = by_space.setdefault(_space(task), ([], []))
        if isinstance(task, KthSearch):
            searches.append(task)
        else:
            others.append(task)
    return by_space


def _pass_count(group: _Group) -> int:
    others, searches = group
    return -(-len(others) // MAX_SINKS) + (SEARCH_PASSES if searches else 0)


def _space(task: _PassTask) -> Shape:
    if isinstance(task, KthSearch):
        return task.arg.shape
    expr = task.expr if isinstance(task, StoreTask) else task
    if isinstance(expr, Reduce):
        return broadcast_shapes(*(arg.shape for arg in expr.args))
    return expr.shape


def _steps(space: Shape, others: list[StoreTask | Reduce], searches: list[KthSearch]) -> list[Step]:
    steps: list[Step] = []
    fused: list[StoreTask | Reduce] = []
    for task in others:
        if isinstance(task, StoreTask) and isinstance(task.target, BlockTarget):
            steps.append(_pass_step(space, [task]))
        elif isinstance(task, StoreTask) and (task.is_copy or not task.expr.shape):
            steps.append(task)
        else:
            fused.append(task)
    steps += [_pass_step(space, fused[first : first + MAX_SINKS]) for first in range(0, len(fused), MAX_SINKS)]
    return [*steps, SearchStep(space, searches)] if searches else steps


def _pass_step(space: Shape, tasks: Sequence[StoreTask | Reduce]) -> PassStep:
    """The pass that does some tasks together."""
    requests: list[SinkRequest] = []
    for task in tasks:
        if isinstance(task, Reduce):
            requests.append(SinkRequest(task.op, task.dtype, task.args))
        else:
            op = "row_store" if isinstance(task.expr, Reduce) else "store"
            requests.append(SinkRequest(op, task.dtype, (_with_axis(task.expr),)))
    targets = [task.target if isinstance(task, StoreTask) else None for task in tasks]
    return PassStep(fuse(space, requests), targets, [task for task in tasks if isinstance(task, Reduce)])


def _with_axis(expr: Expr) -> Expr:
    """A reduction along rows in the form that a pass over its rows can take."""
    if isinstance(expr, Reduce) and not expr.keepdims:
        return Reduce(expr.op, expr.args, last_axis=True, keepdims=True)
    return expr
