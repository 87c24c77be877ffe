"""Repeated evaluations: the plan of a simple expression, kept by its structure.

Sorting an expression into stages, fusing it and laying out a kernel's arguments takes longer than the loop over a
thousand elements. What comes out depends on the structure alone, so an expression over contiguous arrays of one shape,
which is stored whole or reduced to one number, is planned once; afterwards only addresses and numbers are put in.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.cpu.build.kernel_cache import compiled
from lbrx.devices.cpu.codegen import streamed_stores
from lbrx.devices.cpu.run import REDUCTION_BLOCK, run_in_memory
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.fuse import Known, SinkRequest, fuse
from lbrx.engine.program import FLAT, Program
from lbrx.engine.reductions import combined
from lbrx.engine.scalars import scalar_value
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.expr import Expr, Map, Reduce, Scalar, Source
from lbrx.tensors.shape import Shape, contiguous_strides
from lbrx.tensors.storage import CpuStorage

MOST_PLANS = 1000
MOST_NODES = 64
Signature = tuple[Any, ...]


_strides = lru_cache(contiguous_strides)


class _NotSimple(Exception):
    """The expression has something that a kept plan does not cover."""


@dataclass(slots=True)
class _Arguments:
    """The arrays of one call of a kernel, and where they lie."""

    ints: npt.NDArray[np.int64]
    floats: npt.NDArray[np.float64]
    ints_address: int
    floats_address: int
    partials: npt.NDArray[Any] | None = None  # and places, of the blocks of a reduction
    places: npt.NDArray[np.int64] | None = None


class _Reader:
    """Walks an expression in the order in which fusing does, and takes down structure, leaves and numbers."""

    __slots__ = ("leaves", "numbers", "signature", "space", "visited")

    def __init__(self, space: Shape) -> None:
        self.space = space
        self.signature: list[Any] = []
        self.leaves: list[int] = []
        self.numbers: list[float | int | bool] = []
        self.visited: dict[int, int] = {}

    def read(self, expr: Expr) -> None:
        kind = type(expr)
        if kind is Scalar:
            self.signature.append(expr.dtype.name)
            self.numbers.append(expr.value)  # type: ignore[attr-defined]
            return
        seen = self.visited.get(id(expr))
        if seen is not None:
            self.signature.append(seen)
            return
        if len(self.visited) >= MOST_NODES:
            raise _NotSimple
        self.visited[id(expr)] = len(self.visited)
        if kind is Source:
            self._leaf(expr)  # type: ignore[arg-type]
        elif kind is Map:
            self.signature.append(expr.op)  # type: ignore[attr-defined]
            self.signature.append(expr.dtype.name)
            for arg in expr.args:  # type: ignore[attr-defined]
                self.read(arg)
        else:
            raise _NotSimple

    def _leaf(self, expr: Source) -> None:
        layout, storage, kind = expr.layout, expr.storage, expr.dtype
        if type(storage) is not CpuStorage or expr.rows is not None or kind.is_packed:
            raise _NotSimple
        if layout.shape != self.space or (layout.strides != _strides(self.space) and not layout.is_contiguous):
            raise _NotSimple
        assert storage.address is not None
        self.leaves.append(storage.address + layout.offset * kind.itemsize)
        self.signature.append(None)
        self.signature.append(kind.name)


class _Plan:
    """A compiled pass with one sink, and the places of its arguments."""

    __slots__ = ("_block_place", "_flag_place", "_free", "_leaf_places", "_number_places", "_sink_place", "compiled")

    def __init__(self, program: Program) -> None:
        found = compiled(program)
        slots = found.slots
        self.compiled = found
        self._leaf_places = [slots[f"leaf{number}.address"] for number in range(len(program.leaves))]
        self._number_places = [
            (True, slots.floats[number]) if number in slots.floats else (False, slots[f"scalar{number}"])
            for number in range(len(program.scalars))
        ]
        self._sink_place = slots["sink0.address" if program.sinks[0].kind == "store" else "sink0.partials"]
        self._block_place = slots["block"]
        self._flag_place = slots["is_streamed"] if slots.can_stream else None
        self._free: list[_Arguments] = []  # of calls that are over

    def _arguments(self, leaves: list[int], numbers: list[Any]) -> _Arguments:
        arguments = self._free.pop() if self._free else self._new_arguments()
        ints = arguments.ints
        for place, address in zip(self._leaf_places, leaves, strict=True):
            ints[place] = address
        for (is_float, place), number in zip(self._number_places, numbers, strict=True):
            if is_float:
                arguments.floats[place] = number
            else:
                ints[place] = number
        return arguments

    def _new_arguments(self) -> _Arguments:
        ints = np.zeros(len(self._leaf_places) + len(self._number_places) + 8, np.int64)
        floats = np.zeros(max(len(self._number_places), 1), np.float64)
        ints[self._block_place] = REDUCTION_BLOCK
        return _Arguments(ints, floats, ints.ctypes.data, floats.ctypes.data)

    def _run(self, arguments: _Arguments, elements: int) -> None:
        run_in_memory(self.compiled, arguments.ints_address, arguments.floats_address, elements, REDUCTION_BLOCK)

    def store(self, leaves: list[int], numbers: list[Any], target: int, nbytes: int, elements: int) -> None:
        """Store all elements at an address."""
        arguments = self._arguments(leaves, numbers)
        arguments.ints[self._sink_place] = target
        if self._flag_place is not None:
            arguments.ints[self._flag_place] = streamed_stores.pays(nbytes)
        self._run(arguments, elements)
        self._free.append(arguments)

    def reduce(self, leaves: list[int], numbers: list[Any], elements: int, expr: Reduce) -> Any:
        """The value of the reduction."""
        arguments = self._arguments(leaves, numbers)
        blocks = -(-elements // REDUCTION_BLOCK)
        if arguments.partials is None or arguments.partials.size != blocks:
            self._make_room(arguments, blocks)
        self._run(arguments, elements)
        assert arguments.partials is not None
        value = combined(expr, arguments.partials, arguments.places)
        self._free.append(arguments)
        return value

    def _make_room(self, arguments: _Arguments, blocks: int) -> None:
        """Memory for what the blocks find, and for where if it is an argmax: partials, then places."""
        sink = self.compiled.program.sinks[0]
        is_float = DTYPES[self.compiled.program.value_types()[sink.args[0]]].is_float
        arguments.partials = np.zeros(blocks, np.float64 if is_float else np.int64)
        arguments.ints[self._sink_place] = arguments.partials.ctypes.data
        if sink.kind == "argmax":
            arguments.places = np.zeros(blocks, np.int64)
            arguments.ints[self._sink_place + 1] = arguments.places.ctypes.data


_plans: dict[Signature, _Plan] = {}


def quick_value(expr: Expr) -> Any | None:
    """The value of an expression if it is simple: an array, or a number without axes. Else None."""
    if expr.shape:
        return _stored(expr) if type(expr) is Map and expr.is_simple and not expr.dtype.is_packed else None
    reduction = _only_reduction(expr)
    if reduction is None:
        return None
    value = _reduced(reduction)
    if value is None:
        return None
    return value if reduction is expr else scalar_value(expr, Known(scalars={id(reduction): value}))


def _only_reduction(expr: Expr) -> Reduce | None:
    """The reduction of a whole tensor that a number is made of, if it is made of one by functions of one argument."""
    while type(expr) is Map and len(expr.args) == 1:
        expr = expr.args[0]
    return expr if type(expr) is Reduce and not expr.last_axis else None


def _stored(expr: Expr) -> Any | None:
    elements = math.prod(expr.shape)
    found = _planned("store", expr.dtype, (expr,), expr.shape) if elements else None
    if found is None:
        return None
    plan, reader = found
    destination = ArrayDestination(expr.dtype, elements)
    whole = destination.whole
    plan.store(reader.leaves, reader.numbers, whole.__array_interface__["data"][0], whole.nbytes, elements)
    return destination.array(expr.shape)


def _reduced(expr: Reduce) -> Any | None:
    space = expr.args[0].shape
    elements = math.prod(space)
    found = _planned(expr.op, expr.dtype, expr.args, space) if elements else None
    if found is None:
        return None
    plan, reader = found
    return plan.reduce(reader.leaves, reader.numbers, elements, expr)


def _planned(sink: str, kind: DType, args: tuple[Expr, ...], space: Shape) -> tuple[_Plan, _Reader] | None:
    reader = _Reader(space)
    reader.signature += (sink, kind.name)
    try:
        for arg in args:
            reader.read(arg)
    except _NotSimple:
        return None
    signature = tuple(reader.signature)
    plan = _plans.get(signature)
    if plan is None:
        program = fuse(space, [SinkRequest(sink, kind, args)], Known(), scalar_value).program
        if program.mode != FLAT or len(program.scalars) != len(reader.numbers):
            return None
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        plan = _plans[signature] = _Plan(program)
    return plan, reader
