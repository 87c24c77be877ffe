"""Repeated evaluations: the plan of a simple expression, kept by its structure.

Sorting an expression into stages, fusing it and laying out a kernel's arguments takes longer than the loop over a
thousand elements. What comes out depends on the structure alone, so an expression over contiguous arrays of one shape,
which is stored whole or reduced to one number, is planned once; afterwards only addresses and numbers are put in.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

from lbrx.engine.destination import ArrayDestination
from lbrx.engine.device import CPU, PreparedPass, device
from lbrx.engine.fuse import Known, SinkRequest, fuse
from lbrx.engine.program import FLAT
from lbrx.engine.reductions import combined
from lbrx.engine.scalars import scalar_value
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr, Map, Reduce, Scalar, Source
from lbrx.tensors.shape import Shape, contiguous_strides
from lbrx.tensors.storage import CpuStorage

MOST_PLANS = 1000
MOST_NODES = 64
Signature = tuple[Any, ...]


_strides = lru_cache(contiguous_strides)


class _NotSimple(Exception):
    """The expression has something that a kept plan does not cover."""


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
        node_type = type(expr)
        if node_type is Scalar:
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
        if node_type is Source:
            self._leaf(expr)  # type: ignore[arg-type]
        elif node_type is Map:
            self.signature.append(expr.op)  # type: ignore[attr-defined]
            self.signature.append(expr.dtype.name)
            for arg in expr.args:  # type: ignore[attr-defined]
                self.read(arg)
        else:
            raise _NotSimple

    def _leaf(self, expr: Source) -> None:
        layout, storage, dtype = expr.layout, expr.storage, expr.dtype
        if type(storage) is not CpuStorage or expr.rows is not None or dtype.is_packed:
            raise _NotSimple
        if layout.shape != self.space or (layout.strides != _strides(self.space) and not layout.is_contiguous):
            raise _NotSimple
        assert storage.address is not None
        self.leaves.append(storage.address + layout.offset * dtype.itemsize)
        self.signature.append(None)
        self.signature.append(dtype.name)


_plans: dict[Signature, PreparedPass] = {}


def planned_value(expr: Expr) -> Any | None:
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
    planned = _planned("store", expr.dtype, (expr,), expr.shape) if elements else None
    if planned is None:
        return None
    plan, reader = planned
    destination = ArrayDestination(expr.dtype, elements)
    whole = destination.whole
    plan.store(reader.leaves, reader.numbers, whole.__array_interface__["data"][0], whole.nbytes, elements)
    return destination.array(expr.shape)


def _reduced(expr: Reduce) -> Any | None:
    space = expr.args[0].shape
    elements = math.prod(space)
    planned = _planned(expr.op, expr.dtype, expr.args, space) if elements else None
    if planned is None:
        return None
    plan, reader = planned
    return plan.reduce(reader.leaves, reader.numbers, elements, partial(combined, expr))


def _planned(sink: str, dtype: DType, args: tuple[Expr, ...], space: Shape) -> tuple[PreparedPass, _Reader] | None:
    reader = _Reader(space)
    reader.signature += (sink, dtype.name)
    try:
        for arg in args:
            reader.read(arg)
    except _NotSimple:
        return None
    signature = tuple(reader.signature)
    plan = _plans.get(signature)
    if plan is None:
        program = fuse(space, [SinkRequest(sink, dtype, args)], Known(), scalar_value).program
        if program.mode != FLAT or len(program.scalars) != len(reader.numbers):
            return None
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        plan = device(CPU).prepare(program)
        assert plan is not None
        _plans[signature] = plan
    return plan, reader
