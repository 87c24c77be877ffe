"""Evaluation: expressions sorted into stages, every stage in as few passes as possible.

Reductions, searches and stored intermediates that an expression needs come first. Whatever belongs to one stage and
one iteration space shares one pass, so several reductions of the same data read it once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import field
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.engine.bindings import MOST_KEPT_PASSES, NOTHING_BOUND, Bindings, Bound
from lbrx.engine.destination import ArrayDestination, Destination
from lbrx.engine.device import CPU, device, run_pass
from lbrx.engine.fuse import BoundPass, Known, SinkRequest, fuse, needs_whole_rows, rebound, unbound
from lbrx.engine.plan_cache import planned_value
from lbrx.engine.reductions import combined
from lbrx.engine.scalars import scalar_value
from lbrx.engine.sinks import EncodeTarget, piece_of
from lbrx.errors import MemoryBudgetError
from lbrx.memory import budget, format_bytes
from lbrx.settings import settings
from lbrx.tensors.coded import U8, Blocks, Decode, Encode, StoredKey, is_stored, stored_key
from lbrx.tensors.expr import F32, Coded, Expr, Kth, KthSearch, Map, MatMul, Rank, Reduce, Source, Stored, values_of
from lbrx.tensors.shape import Layout, Shape, broadcast_shapes
from lbrx.tensors.storage import CpuStorage, MmapStorage, Storage
from lbrx.tensors.views import row_breaks, row_range

COPY_BYTES = 2 << 20
MAX_SINKS = 64  # of one pass; more would only make a kernel that compiles for a long time
evaluations: ContextVar[list[Stages] | None] = ContextVar("evaluations", default=None)  # what is evaluated meanwhile


@dataclass(slots=True)
class StoreTask:
    """An expression whose elements go to a destination; of Blocks, the bytes."""

    expr: Expr
    destination: Destination | EncodeTarget


Task = StoreTask | Reduce | KthSearch | MatMul


@dataclass(slots=True)
class Stages:
    """Tasks by the stage in which they can run: all that they need is known by then."""

    tasks: dict[int, list[Task]] = field(default_factory=lambda: defaultdict(list))
    _levels: dict[tuple[int, Shape], int] = field(default_factory=dict)
    _planned: dict[StoredKey, int] = field(default_factory=dict)
    _keep: list[Expr] = field(default_factory=list)
    _encodings: dict[int, tuple[EncodeTarget, int]] = field(default_factory=dict)
    stored: dict[StoredKey, tuple[Expr, ArrayDestination]] = field(default_factory=dict)
    streamed: dict[int, tuple[MatMul, int]] = field(default_factory=dict)  # with the stage from which on they can be

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
        if isinstance(expr, Stored) and isinstance(expr.inner, MatMul):
            return self.product(expr.inner, expr.layout)
        if isinstance(expr, Stored):
            return self._store_first(expr.inner)
        if isinstance(expr, Decode):
            return max(self._store_first(part) for part in expr.parts if part is not None and not is_stored(part))
        if values_of(expr) is not expr:
            return self.level(values_of(expr), space)
        if isinstance(expr, Kth):
            return self._plan(expr.search, self.level(expr.search.arg, expr.search.arg.shape))
        if isinstance(expr, Reduce) and not expr.last_axis:
            inner = broadcast_shapes(*(arg.shape for arg in expr.args))
            return self._plan(expr, max(self.level(arg, inner) for arg in expr.args))
        if isinstance(expr, Reduce) and needs_whole_rows(expr, space):
            return max(self.level(arg, space) for arg in expr.args)
        if isinstance(expr, Rank) and needs_whole_rows(expr, space):
            return self.level(expr.arg, space)
        return self._store_first(expr)

    def product(self, expr: MatMul, layout: Layout | None = None, is_whole: bool = False) -> int:
        """The first stage in which a pass can read a product through a layout: from memory, or as it is computed."""
        from lbrx.engine.products import can_be_cut, is_streamed

        if id(expr) in self._planned:
            return self._planned[id(expr)]
        operands = (expr.a, expr.b)
        stage = max(self.level(arg, arg.shape) if can_be_cut(arg) else self._store_first(arg) for arg in operands)
        if is_whole or not is_streamed(expr, layout):
            self._check_budget(expr)
            return self._plan(expr, stage)
        self.streamed[id(expr)] = expr, stage
        return stage

    def _plan(self, task: Reduce | KthSearch | MatMul, stage: int) -> int:
        if id(task) not in self._planned:
            self._planned[id(task)] = stage + 1
            self.tasks[stage].append(task)
        return self._planned[id(task)]

    def _store_first(self, expr: Expr) -> int:
        if isinstance(expr, Encode) and len(expr.parts) > 1:
            return max(map(self._store_first, expr.parts))
        key = stored_key(expr)
        if key not in self._planned:
            self._check_budget(expr)
            dtype, elements = (U8, expr.nbytes) if isinstance(expr, Coded) else (expr.dtype, math.prod(expr.shape))
            destination = ArrayDestination(dtype, elements)
            self.stored[key] = (expr, destination)
            self._planned[key] = self.add_store(expr, destination) + 1
        return self._planned[key]

    def _check_budget(self, expr: Expr) -> None:
        nbytes = expr.nbytes if isinstance(expr, Coded) else expr.dtype.nbytes(math.prod(expr.shape))
        limit = budget().limit_bytes
        if nbytes > limit:
            raise MemoryBudgetError(
                f"an intermediate {expr.dtype} of shape {expr.shape} has to be stored: that takes "
                f"{format_bytes(nbytes)}, the limit is {format_bytes(limit)}; raise it with LBRX_MEMORY"
            )

    def add_store(self, expr: Expr, destination: Destination) -> int:
        """Plan the storing of a whole expression; returns the last stage in which a part of it is stored."""
        if isinstance(expr, Encode):
            return self._add_encoding(expr, destination)
        return self._add_tasks([StoreTask(expr, destination)] if expr.is_simple else _store_tasks(expr, destination))

    def _add_encoding(self, expr: Encode, destination: Destination) -> int:
        """Plan the storing of blocks, together with other parts of the same encoding."""
        encoding, part = expr.encoding, expr.part or 0
        target, stage = self._encodings.get(id(encoding), (None, 0))
        if target is None or target.parts[part] is not None:
            encoding.codec.check_can_encode()
            target = EncodeTarget(encoding, [None] * max(len(encoding.codec.parts), 1))
            stage = self._add_tasks(_store_tasks(encoding.values, target)) if encoding.blocks else 0
            self._encodings[id(encoding)] = target, stage
        target.parts[part] = destination
        return stage

    def _add_tasks(self, tasks: list[StoreTask]) -> int:
        latest = 0
        for task in tasks:
            stage = self.level_of_store(task.expr)
            self.tasks[stage].append(task)
            latest = max(latest, stage)
        return latest

    def level_of_store(self, expr: Expr) -> int:
        if not expr.shape:
            return self.level(expr, ())
        if isinstance(expr, Reduce):
            space = broadcast_shapes(*(arg.shape for arg in expr.args))
            return max(self.level(arg, space) for arg in expr.args)
        return self.level(expr, expr.shape)


def _store_tasks(expr: Expr, destination: Destination | EncodeTarget) -> list[StoreTask]:
    """One task, or one for each run of rows between the seams of joined tensors."""
    breaks = sorted(row_breaks(expr) - {0}) if expr.shape else []
    if not breaks or destination.dtype.is_packed:
        return [StoreTask(expr, destination)]
    row = math.prod(expr.shape[1:])
    tasks = []
    for start, stop in zip([0, *breaks], [*breaks, expr.shape[0]], strict=True):
        part = piece_of(destination, start * row, (stop - start) * row)
        tasks.append(StoreTask(values_of(row_range(expr, start, stop)), part))
    return tasks


def _copy(storage: Storage, start: int, nbytes: int, destination: Destination) -> None:
    """Copy bytes on all threads."""
    chunks = -(-nbytes // COPY_BYTES)
    bits = destination.dtype.bits

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            low, high = number * COPY_BYTES, min(nbytes, (number + 1) * COPY_BYTES)
            first = 8 * low // bits  # an element: some share bytes
            if not isinstance(storage, MmapStorage):
                destination.write(first, storage.read_at(start + low, high - low))
            elif destination.whole is not None:
                storage.read_into(start + low, destination.whole[low:high])
            else:
                buffer = destination.borrow_buffer(first, high - low)
                storage.read_into(start + low, buffer)
                destination.submit(first, buffer)

        return step

    run_chunks(chunks, settings.threads, worker)


def _is_plain_copy(expr: Expr, destination: Destination) -> bool:
    return (
        isinstance(expr, Source)
        and expr.rows is None
        and expr.dtype is destination.dtype
        and not expr.dtype.is_packed
        and expr.layout.is_contiguous
    )


def evaluate_stores(stores: list[tuple[Expr, Destination]], bindings: Bindings = NOTHING_BOUND) -> None:
    """Compute expressions into destinations, sharing passes."""
    stages = Stages()
    for expr, destination in stores:
        stages.add_store(expr, destination)
    _run(stages, Known(bindings=bindings))


def evaluate_exprs(exprs: list[Expr]) -> list[Any]:
    """The values of expressions: an array each (bytes for packed dtypes), or a NumPy scalar without axes."""
    value = planned_value(exprs[0]) if len(exprs) == 1 and settings.device == CPU else None
    if value is not None:
        return [value]
    stages, known = Stages(), Known()
    outputs: list[ArrayDestination | None] = []
    exprs = [values_of(expr) for expr in exprs]
    for expr in exprs:
        if isinstance(expr, MatMul) or not expr.shape:
            _ = stages.product(expr, is_whole=True) if isinstance(expr, MatMul) else stages.level(expr, ())
            outputs.append(None)
            continue
        array = ArrayDestination(expr.dtype, math.prod(expr.shape))
        stages.add_store(expr, array)
        outputs.append(array)
    _run(stages, known)
    results: list[Any] = []
    for expr, output in zip(exprs, outputs, strict=True):
        if output is None:
            results.append(_product_array(expr, known) if isinstance(expr, MatMul) else scalar_value(expr, known))
        else:
            results.append(output.whole if expr.dtype.is_packed else output.array(expr.shape))
    return results


def _product_array(expr: MatMul, known: Known) -> Any:
    storage = known.stored[id(expr)]
    in_memory = storage if storage.device == CPU else device(storage.device).load(storage)
    return in_memory.read_at(0, in_memory.nbytes).view(np.float32).reshape(expr.shape)


def evaluate_product(expr: MatMul) -> Storage:
    """A product in the memory of the device that computes it."""
    stages, known = Stages(), Known()
    stages.product(expr, is_whole=True)
    _run(stages, known)
    return known.stored[id(expr)]


def _run(stages: Stages, known: Known) -> None:
    evaluated = evaluations.get()
    if evaluated is not None:
        evaluated.append(stages)
    only = stages.tasks[0] if len(stages.tasks) == 1 and 0 in stages.tasks else []
    is_one_pass = len(only) == 1 and not stages.stored and not stages.streamed
    if is_one_pass and isinstance(only[0], (StoreTask, Reduce)):
        _run_pass(_space(only[0]), only, known)
        return
    for stage in sorted(stages.tasks):
        _begin_products(stages, stage, known)
        for space, (others, searches) in by_space(stages.tasks[stage]).items():
            for first in range(0, len(others), MAX_SINKS):
                _run_pass(space, others[first : first + MAX_SINKS], known)
            if searches:
                from lbrx.engine.kth import find_kth

                find_kth(space, searches, known)
        for key, (_, destination) in stages.stored.items():
            if key not in known.stored:
                known.stored[key] = CpuStorage(destination.whole)


def _begin_products(stages: Stages, stage: int, known: Known) -> None:
    """Compute the products of a stage, and have those ready that its passes compute as they read them."""
    streamed = [product for product, first in stages.streamed.values() if first == stage]
    whole = [task for task in stages.tasks[stage] if isinstance(task, MatMul)]
    if streamed or whole:
        from lbrx.engine.products import ProductRows, multiplied

        known.streamed |= {id(product): ProductRows(product, known) for product in streamed}
        for product in whole:
            known.stored[id(product)] = multiplied(product, known)


def by_space(tasks: list[Task]) -> dict[Shape, tuple[list[StoreTask | Reduce], list[KthSearch]]]:
    """Tasks by their iteration space: those that share passes, and the searches."""
    groups: dict[Shape, tuple[list[StoreTask | Reduce], list[KthSearch]]] = {}
    for task in tasks:
        if isinstance(task, MatMul):
            continue
        others, searches = groups.setdefault(_space(task), ([], []))
        if isinstance(task, KthSearch):
            searches.append(task)
        else:
            others.append(task)
    return groups


def _space(task: Task) -> Shape:
    if isinstance(task, KthSearch):
        return task.arg.shape
    expr = task.expr if isinstance(task, StoreTask) else task
    if isinstance(expr, Reduce):
        return broadcast_shapes(*(arg.shape for arg in expr.args))
    return expr.shape


def _run_pass(space: Shape, tasks: list[Any], known: Known) -> None:
    requests: list[SinkRequest] = []
    targets: list[Any] = []
    reductions: list[Reduce] = []
    for task in tasks:
        if isinstance(task, Reduce):
            requests.append(SinkRequest(task.op, task.dtype, task.args))
            targets.append(None)
            reductions.append(task)
        elif isinstance(task.destination, EncodeTarget):
            request = SinkRequest("store", F32, (task.expr,))
            run_pass(_fused(space, [request], [task], known), [task.destination])
        elif isinstance(task.expr, Blocks):
            _copy(task.expr.storage, 0, task.expr.nbytes, task.destination)
        elif _is_plain_copy(task.expr, task.destination):
            item = task.expr.dtype.itemsize
            start = task.expr.layout.offset * item
            _copy(task.expr.storage, start, math.prod(task.expr.shape) * item, task.destination)
        elif not task.expr.shape:
            _store_scalar(task.expr, task.destination, known)
        else:
            op = "row_store" if isinstance(task.expr, Reduce) else "store"
            requests.append(SinkRequest(op, task.destination.dtype, (_with_axis(task.expr),)))
            targets.append(task.destination)
    if not requests:
        return
    partials = run_pass(_fused(space, requests, tasks, known), targets)
    reduced = [part for part in partials if part is not None]
    for reduction, (values, indices) in zip(reductions, reduced, strict=True):
        known.scalars[id(reduction)] = combined(reduction, values, indices)


def _fused(space: Shape, requests: list[SinkRequest], tasks: list[Any], known: Known) -> BoundPass:
    """The pass of some tasks, put together anew or as an earlier evaluation of the same expression did."""
    kept = known.bindings.passes
    if kept is None:
        return fuse(space, requests, known, scalar_value)
    nodes = [task.expr if isinstance(task, StoreTask) else task for task in tasks]
    key = (*map(id, nodes), *(request.dtype.name for request in requests))
    earlier = kept.get(key)
    if earlier is not None:
        return rebound(earlier[0], known, scalar_value)
    bound = fuse(space, requests, known, scalar_value)
    if len(kept) < MOST_KEPT_PASSES:
        kept[key] = unbound(bound), nodes  # which stay alive, so that their identities stay theirs
    return bound


def _with_axis(expr: Expr) -> Expr:
    """A reduction along rows in the form that a pass over its rows can take."""
    if isinstance(expr, Reduce) and not expr.keepdims:
        return Reduce(expr.op, expr.args, last_axis=True, keepdims=True)
    return expr


def _store_scalar(expr: Expr, destination: Destination, known: Known) -> None:
    dtype = destination.dtype
    value = np.asarray(scalar_value(expr, known))
    if dtype.is_packed:
        data = np.array([int(value) & ((1 << dtype.bits) - 1)], np.uint8)
    else:
        data = value.astype(dtype.numpy).reshape(1).view(np.uint8)
    destination.write(0, data)


def evaluate_tensors(stores: Sequence[tuple[Bound, Destination]]) -> None:
    """Compute whole tensors into destinations: all at once, so that parts of one encoding share their values."""
    full = [(bound, destination) for bound, destination in stores if math.prod(bound.expr.shape)]
    if full:
        evaluate_stores([(bound.expr, destination) for bound, destination in full], full[0][0].bindings)
