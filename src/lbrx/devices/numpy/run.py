"""An interpreter of passes: block by block, one array for each value of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.codecs.decode import decode
from lbrx.devices.numpy.operations import OPERATIONS, Array, cast, decoded, encoded, order_key, typed
from lbrx.devices.numpy.random import normal, uniform
from lbrx.engine.bind import BoundLeaf, BoundPass
from lbrx.engine.block_sizes import BINS, REDUCTION_BLOCK
from lbrx.engine.destination import CollectState, Destination, HistogramState, SinkTarget
from lbrx.engine.program import BLOCK_REDUCTIONS, RANK_OPS, ROW_OPS, ROWS, Instruction, Leaf, Sink
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.storage import drop_behind

Ints = npt.NDArray[np.int64]
Partials = tuple[list[Any], list[int]]
_STREAMS = {"uniform": uniform, "normal": normal}
_PACKED_TOGETHER = 4  # blocks: four elements of two bits share a byte


def run_pass(bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
    """Run the pass; for each sink, the partial results of its blocks if it is a reduction, else None."""
    block = REDUCTION_BLOCK
    if bound.program.mode == ROWS:
        block = max(1, REDUCTION_BLOCK // max(bound.columns, 1)) * max(bound.columns, 1)
    packs = any(getattr(target, "dtype", DTYPES["u8"]).is_packed for target in targets)
    size = block * _PACKED_TOGETHER if packs else block
    partials: list[Partials] = [([], []) for _ in targets]
    with np.errstate(all="ignore"):
        for lo in range(0, bound.elements, size):
            index = np.arange(lo, min(lo + size, bound.elements))
            values = chunk_values(bound, index)
            for sink, target, found in zip(bound.program.sinks, targets, partials, strict=True):
                args = [_flat(values[arg], index.size) for arg in sink.args]
                if sink.op in BLOCK_REDUCTIONS:
                    for start in range(0, index.size, block):
                        _reduce(sink.op, [arg[start : start + block] for arg in args], lo + start, found)
                elif isinstance(target, HistogramState):
                    _count(target, args[0])
                elif isinstance(target, CollectState):
                    _collect(target, args[0], index)
                else:
                    assert target is not None
                    _store(bound, sink, target, values[sink.args[0]], index)
    sinks = zip(bound.program.sinks, partials, strict=True)
    return [_as_arrays(bound, sink, found) if sink.op in BLOCK_REDUCTIONS else None for sink, found in sinks]


def chunk_values(bound: BoundPass, index: Ints) -> list[Array]:
    """All values of a program for some elements of its space: (rows, columns) in a pass over rows, else a vector."""
    program = bound.program
    coordinates = _coordinates(bound, index)
    leaves = zip(program.leaves, bound.leaves, strict=True)
    values: list[Array] = [_leaf_values(spec, leaf, coordinates) for spec, leaf in leaves]
    values += [typed(number, name) for number, name in zip(bound.scalars, program.scalars, strict=True)]
    if program.mode == ROWS:
        values = [each.reshape(-1, bound.columns) if each.ndim else each for each in values]
    for instruction in program.body:
        values.append(_computed(instruction, [values[arg] for arg in instruction.args]))
    return values


def _coordinates(bound: BoundPass, index: Ints) -> tuple[Ints, ...]:
    """The positions of elements along the outer axes and the columns; along the only axis of a flat pass."""
    if not bound.outer_shape:
        return (index,)
    return tuple(np.unravel_index(index, (*bound.outer_shape, bound.columns)))


def _leaf_values(spec: Leaf, leaf: BoundLeaf, coordinates: tuple[Ints, ...]) -> Array:
    inner_stride = {"zero": 0, "unit": 1}.get(spec.step, leaf.inner_stride)
    index = np.full(coordinates[0].shape, leaf.offset, np.int64)
    for axis, (position, stride) in enumerate(zip(coordinates, (*leaf.outer_strides, inner_stride), strict=True)):
        index += (position if axis != leaf.rows_axis or leaf.rows is None else leaf.rows[position]) * stride
    if leaf.origin == "index":
        return index
    if leaf.origin in _STREAMS:
        return _STREAMS[leaf.origin](leaf.key, index)
    assert leaf.storage is not None
    bits = leaf.dtype.bits
    start, stop = int(index.min()) * bits // 8, -(-(int(index.max()) + 1) * bits // 8)
    if leaf.codec is not None:
        data = np.empty(stop - start, np.uint8)
        decode(leaf.codec, leaf.storage, leaf.numbers, start, data)
        return decoded(data, index - start * 8 // bits, leaf.dtype)
    elements = decoded(leaf.storage.read_at(start, stop - start), index - start * 8 // bits, leaf.dtype)
    drop_behind(leaf.storage, start, stop - start)
    return elements


def _computed(instruction: Instruction, args: list[Array]) -> Array:
    dtype = DTYPES[instruction.type]
    if instruction.op == "cast":
        return cast(args[0], dtype)
    if instruction.op in ROW_OPS:
        return _along_rows(instruction.op.removeprefix("row_"), args).astype(dtype.compute.numpy)
    if instruction.op in RANK_OPS:
        return _ranks(args[0], descending=instruction.op == "rank_descending")
    result: Array = OPERATIONS[instruction.op](*args)
    return result


def _along_rows(op: str, args: list[Array]) -> Array:
    """A reduction of the last axis, which stays with size 1."""
    args = list(np.broadcast_arrays(*args))
    if op == "argmax":
        return np.asarray(args[0].argmax(axis=-1, keepdims=True))
    if op in ("min", "max"):
        return np.asarray(args[0].min(axis=-1, keepdims=True) if op == "min" else args[0].max(axis=-1, keepdims=True))
    wide = [arg.astype(np.float64 if arg.dtype.kind == "f" else np.int64) for arg in args]
    products = wide[0] if op == "sum" else wide[0] * wide[-1]
    return np.asarray(products.sum(axis=-1, keepdims=True))


def _ranks(values: Array, *, descending: bool) -> Array:
    keys = order_key(values)
    order = np.argsort(~keys if descending else keys, axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


# -- sinks ------------------------------------------------------------------------------------------------------------


def _flat(values: Array, count: int) -> Array:
    """A value for each element: those of whole rows and scalars are repeated."""
    values = np.asarray(values)
    if values.ndim == 2:
        values = np.broadcast_to(values, (values.shape[0], count // values.shape[0]))
    return np.broadcast_to(values.reshape(-1), (count,))


def _reduce(op: str, args: list[Array], first: int, partials: Partials) -> None:
    """Add the result of one block, whose first element has an index in the whole space."""
    found = _along_rows(op, args)[0]
    partials[0].append(args[0][found] if op == "argmax" else found)
    partials[1].append(first + int(found) if op == "argmax" else 0)


def _as_arrays(bound: BoundPass, sink: Sink, partials: Partials) -> tuple[Array, Ints | None]:
    is_float = DTYPES[bound.program.value_types()[sink.args[0]]].is_float
    values = np.array(partials[0], np.float64 if is_float else np.int64)
    return values, np.array(partials[1], np.int64) if sink.op == "argmax" else None


def _count(target: HistogramState, values: Array) -> None:
    bins = (order_key(values).astype(np.int64) >> target.shift) - target.first
    target.counts += np.bincount(bins[(bins >= 0) & (bins < BINS)], minlength=BINS)


def _collect(target: CollectState, values: Array, index: Ints) -> None:
    keys = order_key(values).astype(np.int64)
    inside = (keys >= target.low) & (keys <= target.high)
    target.add(int(np.count_nonzero(inside)), int(np.count_nonzero(keys > target.high)), keys[inside], index[inside])


def _store(bound: BoundPass, sink: Sink, target: Destination, values: Array, index: Ints) -> None:
    lo, count = int(index[0]), index.size
    if sink.op == "row_store":
        lo, count = lo // bound.columns, count // bound.columns
    data = encoded(np.ascontiguousarray(_flat(values, count)), target.dtype)
    whole = target.whole
    if whole is None or target.dtype.is_packed:
        target.write(lo, data)
    else:
        start = lo * target.dtype.itemsize
        whole[start : start + data.size] = data
