"""Evaluation: the plan of expressions, run with their leaves and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lbrx.base import system
from lbrx.base.threads import run_chunks
from lbrx.engine.bind import Known, bind
from lbrx.engine.destination import ArrayDestination, Destination, EncodeTarget, MemoryDestination, PartOf
from lbrx.engine.device import CPU, PreparedPass, device, run_pass
from lbrx.engine.fuse import Input, InputNumber
from lbrx.engine.plan_cache import Planned, is_counting, plan_of
from lbrx.engine.program import FLAT
from lbrx.engine.reductions import combined
from lbrx.engine.scalars import scalar_value
from lbrx.engine.schedule import BlockTarget, PassStep, Plan, ProductStep, SearchStep, StoreTask, Target
from lbrx.errors import MemoryBudgetError
from lbrx.memory import budget, format_bytes
from lbrx.memory.resident import resident_window
from lbrx.settings import settings
from lbrx.tensors.coded import U8, Blocks, stored_key
from lbrx.tensors.expr import Coded, Expr, MatMul, Source, values_of
from lbrx.tensors.storage import CpuStorage, MmapStorage, Storage

COPY_BYTES = 2 << 20
MOST_BYTES = 256 << 10  # of a file's tensor that is read, or of a result that is written, by a single call
NOT_SMALL = object()


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


@system.guarded
def evaluate_stores(stores: Sequence[tuple[Expr, Destination]]) -> None:
    """Compute expressions into destinations, sharing passes; of Blocks, copy the bytes."""
    computed = []
    for expr, destination in stores:
        if isinstance(expr, Blocks):
            _copy(expr.storage, 0, expr.nbytes, destination)
        else:
            computed.append((expr, destination))
    if computed:
        planned = plan_of([(expr, destination.dtype) for expr, destination in computed])
        _store(planned, [destination for _, destination in computed])


def _store(planned: Planned, destinations: Sequence[Destination]) -> None:
    if len(destinations) != 1 or not small_store(planned, destinations[0]):
        _run(planned, destinations)


@system.guarded
def evaluate_exprs(exprs: list[Expr]) -> list[Any]:
    """The values of expressions: an array each (bytes for packed dtypes), or a NumPy scalar without axes."""
    if len(exprs) == 1 and isinstance(exprs[0], MatMul):
        return [_array_of(exprs[0], evaluate_product(exprs[0]))]
    exprs = [values_of(expr) for expr in exprs]
    roots = [(expr, None if isinstance(expr, MatMul) or not expr.shape else expr.dtype) for expr in exprs]
    planned = plan_of(roots)
    if len(exprs) == 1 and not exprs[0].shape:
        value = small_value(planned)
        if value is not NOT_SMALL:
            return [value]
    outputs = [None if dtype is None else ArrayDestination(dtype, math.prod(expr.shape)) for expr, dtype in roots]
    if len(outputs) != 1 or outputs[0] is None or not small_store(planned, outputs[0]):
        known = _run(planned, outputs)
    results: list[Any] = []
    for expr, root, output in zip(exprs, planned.plan.roots, outputs, strict=True):
        if output is None:
            results.append(
                _array_of(root, known.stored[id(root)]) if isinstance(root, MatMul) else scalar_value(root, known)
            )
        else:
            results.append(output.whole if expr.dtype.is_packed else output.array(expr.shape))
    return results


def _array_of(expr: MatMul, storage: Storage) -> Any:
    in_memory = storage if storage.device == CPU else device(storage.device).load(storage)
    return in_memory.read_at(0, in_memory.nbytes).view(np.float32).reshape(expr.shape)


@system.guarded
def evaluate_product(expr: MatMul) -> Storage:
    """A product in the memory of the device that computes it."""
    if not is_counting():
        from lbrx.engine.products import product_of_stored

        _check_budget(expr)
        product = product_of_stored(expr)
        if product is not None:
            return product
    return _run(plan_of([(expr, None)]), [None]).stored[id(expr)]


def _run(planned: Planned, outputs: Sequence[Destination | None]) -> Known:
    plan, inputs, numbers, space = planned
    known = Known(inputs, numbers, space, plan.passes)
    destinations = list(outputs)
    for expr in plan.intermediates:
        memory = _intermediate(expr)
        known.stored[stored_key(expr)] = CpuStorage(memory.whole)
        destinations.append(memory)
    for step in plan.steps:
        if isinstance(step, PassStep):
            _run_pass(step, known, destinations)
        elif isinstance(step, SearchStep):
            from lbrx.engine.kth import find_kth

            find_kth(step.space, step.searches, known)
        elif isinstance(step, ProductStep):
            _begin_products(step, known)
        else:
            _run_alone(step, known, destinations)
    return known


def _begin_products(step: ProductStep, known: Known) -> None:
    """Compute products, and have those ready that passes compute as they read them."""
    from lbrx.engine.products import ProductRows, multiplied

    for product in step.streamed:
        known.streamed[id(product)] = ProductRows(product, known)
    for task in step.whole:
        _check_budget(task)
        if isinstance(task, MatMul):
            known.stored[id(task)] = multiplied(task, known)
        else:
            from lbrx.engine.axis_reductions import reduced

            known.stored[id(task)] = reduced(task, known, evaluate_exprs)


def _intermediate(expr: Expr) -> ArrayDestination:
    _check_budget(expr)
    if isinstance(expr, Coded):
        return ArrayDestination(U8, expr.nbytes)
    return ArrayDestination(expr.dtype, math.prod(expr.shape))


def _check_budget(expr: Expr) -> None:
    nbytes = expr.nbytes if isinstance(expr, Coded) else expr.dtype.nbytes(math.prod(expr.shape))
    limit = budget().limit_bytes
    if nbytes > limit:
        raise MemoryBudgetError(
            f"an intermediate {expr.dtype} of shape {expr.shape} has to be stored: that takes "
            f"{format_bytes(nbytes)}, the limit is {format_bytes(limit)}; raise it with LBRX_MEMORY"
        )


def _run_pass(step: PassStep, known: Known, destinations: list[Destination | None]) -> None:
    targets = [None if target is None else _sink_target(target, destinations) for target in step.targets]
    partials = run_pass(bind(step.fused, known), targets)
    reduced = [part for part in partials if part is not None]
    for reduction, (values, indices) in zip(step.reductions, reduced, strict=True):
        known.scalars[id(reduction)] = combined(reduction, values, indices)


def _sink_target(target: Target | BlockTarget, destinations: list[Destination | None]) -> Destination | EncodeTarget:
    if isinstance(target, BlockTarget):
        parts = [None if number is None else destinations[number] for number in target.numbers]
        return EncodeTarget(target.encoding, parts, target.start)
    destination = destinations[target.number]
    assert destination is not None
    return destination if target.part is None else PartOf(destination, *target.part)


def _run_alone(task: StoreTask, known: Known, destinations: list[Destination | None]) -> None:
    destination = _sink_target(task.target, destinations)
    assert not isinstance(destination, EncodeTarget)
    if not task.expr.shape:
        _store_scalar(scalar_value(task.expr, known), destination)
        return
    storage, first = known.source(task.expr)  # type: ignore[arg-type]
    item = task.dtype.itemsize
    _copy(storage, first * item, math.prod(known.space or task.expr.shape) * item, destination)


def _store_scalar(value: Any, destination: Destination) -> None:
    dtype = destination.dtype
    if dtype.is_packed:
        data = np.array([int(value) & ((1 << dtype.bits) - 1)], np.uint8)
    else:
        data = np.asarray(value).astype(dtype.numpy).reshape(1).view(np.uint8)
    destination.write(0, data)


@system.guarded
def evaluate_tensors(stores: Sequence[tuple[Expr | Planned, Destination]]) -> None:
    """Compute whole tensors into destinations: all at once, so that parts of one encoding share their values."""
    computed = []
    for expr, destination in stores:
        if isinstance(expr, Planned):
            _store(expr, [destination])
        elif math.prod(expr.shape):
            computed.append((expr, destination))
    evaluate_stores(computed)


# -- one pass over contiguous memory, called with addresses and numbers only ----------------


class SmallPass(NamedTuple):
    """A pass with one sink, and which inputs and numbers of the structure its leaves and scalars are."""

    call: PreparedPass
    leaves: list[int]
    numbers: list[int]


def _small_pass(plan: Plan) -> SmallPass | None:
    """The plan as one call of a kernel; None if it is more than that."""
    step = plan.steps[0] if len(plan.steps) == 1 else None
    if not isinstance(step, PassStep) or len(step.targets) != 1 or len(plan.roots) != 1:
        return None
    if isinstance(step.targets[0], BlockTarget):
        return None
    program = step.fused.program
    leaves = [leaf.expr for leaf in step.fused.leaves]
    if program.mode != FLAT or any(leaf.step != "unit" for leaf in program.leaves):
        return None
    if not all(isinstance(leaf, Input) and leaf.in_storage and not leaf.dtype.is_packed for leaf in leaves):
        return None
    if not all(isinstance(expr, InputNumber) for expr in step.fused.scalars):
        return None
    call = device(CPU).prepare(program)
    assert call is not None
    numbers = [expr.number for expr in (*leaves, *step.fused.scalars)]  # type: ignore[attr-defined]
    return SmallPass(call, numbers[: len(leaves)], numbers[len(leaves) :])


def _prepared(plan: Plan) -> SmallPass | None:
    if settings.device != CPU:
        return None
    if plan.small is None:
        plan.small = _small_pass(plan) or False
    return plan.small or None


def _addresses(small: SmallPass, planned: Planned) -> tuple[list[int], list[MmapStorage]] | None:
    """Where the leaves are, and those that are mapped files; None if one has no address or is too large."""
    addresses: list[int] = []
    mapped: list[MmapStorage] = []
    for number in small.leaves:
        source = planned.inputs[number]
        assert isinstance(source, Source)
        storage = source.storage
        if type(storage) is not CpuStorage:
            if not isinstance(storage, MmapStorage) or storage.nbytes > MOST_BYTES:
                return None
            mapped.append(storage)
        address = storage.address
        if address is None:
            return None
        addresses.append(address + source.layout.offset * source.dtype.itemsize)
    for file in {id(storage.file): storage.file for storage in mapped}.values():
        file.check_unchanged()
    return addresses, mapped


def small_store(planned: Planned, destination: Destination) -> bool:
    """Store the only output of a plan if that is a single call of a kernel."""
    small = _prepared(planned.plan)
    if small is None:
        return False
    elements = math.prod(planned.space or planned.plan.roots[0].shape)
    nbytes = destination.dtype.nbytes(elements)
    whole = destination.whole
    if destination.dtype.is_packed or not (elements and _is_plain(destination, nbytes)):
        return False
    found = _addresses(small, planned)
    if found is None:
        return False
    leaves, mapped = found
    buffer = destination.borrow_buffer(0, nbytes) if whole is None else whole
    numbers = [planned.numbers[number] for number in small.numbers]
    small.call.store(leaves, numbers, buffer.__array_interface__["data"][0], nbytes, elements)
    if whole is None:
        destination.submit(0, buffer)
    _release(mapped)
    return True


def _is_plain(destination: Destination, nbytes: int) -> bool:
    """Whether bytes can be handed over as they are: to memory of the CPU, or a few at a time."""
    if isinstance(destination, MemoryDestination):
        return destination.device == CPU
    return destination.whole is None and nbytes <= MOST_BYTES


def _release(mapped: list[MmapStorage]) -> None:
    for storage in mapped:
        if storage.file.pinned is not None:
            resident_window.touched(storage.file.pinned, storage.offset, storage.nbytes)


def small_value(planned: Planned) -> Any:
    """The value without axes of a plan if that is a single call of a kernel, else NOT_SMALL."""
    small = _prepared(planned.plan)
    elements = 0 if small is None or planned.space is None else math.prod(planned.space)
    found = None if small is None or not elements else _addresses(small, planned)
    if small is None or found is None:
        return NOT_SMALL
    leaves, mapped = found
    (reduction,) = planned.plan.steps[0].reductions  # type: ignore[union-attr]
    numbers = [planned.numbers[number] for number in small.numbers]
    value = small.call.reduce(leaves, numbers, elements, partial(combined, reduction))
    _release(mapped)
    root = planned.plan.roots[0]
    if root is reduction:
        return value
    return scalar_value(root, Known(planned.inputs, planned.numbers, scalars={id(reduction): value}))
