"""One plan for all expressions of one structure.

Sorting an expression into stages and fusing its passes takes longer than the loop over a thousand elements. Both
depend only on the structure: the nodes, their dtypes and their layouts. `split` separates the structure from the leaves
(storages and random streams) and the numbers, and the structure selects the plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from lbrx.engine.fuse import Input, InputNumber
from lbrx.engine.schedule import Plan, Root, make_plan
from lbrx.errors import UsageError
from lbrx.tensors.coded import Blocks, Encode, Encoding
from lbrx.tensors.expr import Counter, Expr, Kth, KthSearch, Map, Reduce, Scalar, Source, StreamKey, View
from lbrx.tensors.shape import Layout, Shape, contiguous_strides
from lbrx.tensors.tensor import Tensor

DEEP_RECURSION = 10_000  # Python's limit for deep expressions: about 2,000 nested operations
MOST_PLANS = 1000
MOST_NODES = 400  # of an expression whose plan is kept
_strides = lru_cache(contiguous_strides)


class _NotCached(Exception):
    """The expression has something that a structure does not describe."""


class Split:
    """The structure of expressions, their leaves and their numbers.

    ``signature`` describes the nodes in the order of a walk: equal signatures and shapes are equal structures. A
    structure does not depend on sizes if all leaves are contiguous and of one shape and nothing depends on rows.
    """

    __slots__ = ("inputs", "numbers", "shapes", "signature", "sized", "visited")

    def __init__(self) -> None:
        self.signature: list[Any] = []
        self.inputs: list[Source | Counter] = []
        self.numbers: list[float | int | bool] = []
        self.shapes: dict[Shape, int] = {}
        self.sized = False
        self.visited: dict[int, int] = {}

    @property
    def space(self) -> Shape | None:
        """The shape of all leaves, if the structure does not depend on it."""
        if self.sized or len(self.shapes) != 1:
            return None
        (shape,) = self.shapes
        return shape if shape and 0 not in shape else None

    def read(self, expr: Expr) -> None:
        """Add a node and all below it."""
        visited = self.visited
        seen = visited.get(id(expr))
        if seen is not None:
            self.signature.append(seen)
            return
        if len(visited) >= MOST_NODES:
            raise _NotCached
        visited[id(expr)] = len(visited)
        node_type = type(expr)
        if node_type is Map:
            self.signature += (expr.op, expr.dtype.name)  # type: ignore[attr-defined]
            for arg in expr.args:
                self.read(arg)
        elif node_type is Scalar:
            self.signature += (Scalar, expr.dtype.name)
            self.numbers.append(expr.value)  # type: ignore[attr-defined]
        elif node_type is Source or node_type is Counter:
            self._leaf(expr)  # type: ignore[arg-type]
        elif node_type is Reduce and not expr.last_axis:  # type: ignore[attr-defined]
            self.signature += (Reduce, expr.op, len(expr.args))  # type: ignore[attr-defined]
            for arg in expr.args:
                self.read(arg)
        else:
            self._other(expr)

    def _leaf(self, expr: Source | Counter) -> None:
        layout = expr.layout
        self.signature += (None, expr.origin, expr.dtype.name, self.shapes.setdefault(layout.shape, len(self.shapes)))
        if layout.strides != _strides(layout.shape):
            self.signature.append(layout.strides)
            self.sized = True
        if expr.rows is not None:
            raise _NotCached
        self.inputs.append(expr)

    def _other(self, expr: Expr) -> None:
        if isinstance(expr, Blocks):
            self.read(expr.values)
            return
        if expr.facts is None or (isinstance(expr, View) and expr.rows is not None):
            raise _NotCached
        self.sized = True
        self.signature += (type(expr), len(expr.args))
        self.signature += [getattr(expr, name) for name in expr.facts]
        if isinstance(expr, Kth):
            search = self.visited.setdefault(id(expr.search), len(self.visited))
            self.signature += (search, expr.search.k, expr.search.needs_index)
        elif isinstance(expr, Encode):
            if expr.encoding.importance is not None:
                raise _NotCached
            encoding = self.visited.setdefault(id(expr.encoding), len(self.visited))
            self.signature += (encoding, expr.encoding.codec)
        for arg in expr.args:
            self.read(arg)


class _Structure:
    """Builds the structure of expressions: leaves and numbers become inputs, in the order of `Split.read`."""

    def __init__(self) -> None:
        self._built: dict[int, Expr] = {}
        self._searches: dict[int, KthSearch] = {}
        self._encodings: dict[int, Encoding] = {}
        self._inputs = self._numbers = 0

    def of(self, expr: Expr) -> Expr:
        built = self._built.get(id(expr))
        if built is None:
            built = self._built[id(expr)] = self._new(expr)
        return built

    def _new(self, expr: Expr) -> Expr:
        if isinstance(expr, Scalar):
            self._numbers += 1
            return InputNumber(self._numbers - 1, expr.dtype)
        if isinstance(expr, Source | Counter):
            self._inputs += 1
            layout = Layout(expr.layout.shape, expr.layout.strides)
            return Input(self._inputs - 1, expr.origin, expr.dtype, layout)
        if isinstance(expr, Blocks):
            return self.of(expr.values)
        if isinstance(expr, Encode):
            values = self.of(expr.encoding.values)
            encoding = self._encodings.setdefault(id(expr.encoding), Encoding(values, expr.encoding.codec))
            return Encode(encoding, expr.part)
        if isinstance(expr, Kth):
            search = expr.search
            arg = self.of(search.arg)
            own = self._searches.setdefault(id(search), KthSearch(arg, search.k, search.needs_index))
            return Kth(own, expr.part)
        return expr.over(tuple(map(self.of, expr.args)))


class Planned(NamedTuple):
    """A plan with the leaves and numbers of one evaluation.

    ``space`` is the shape of all leaves if the structure does not depend on it.
    """

    plan: Plan
    inputs: Sequence[Source | Counter] = ()
    numbers: Sequence[float | int | bool] = ()
    space: Shape | None = None


_plans: dict[tuple[Any, ...], Plan] = {}
_requested: ContextVar[list[Plan] | None] = ContextVar("requested", default=None)  # plans, where somebody counts them


def is_counting() -> bool:
    """Whether somebody counts the plans that are requested."""
    return _requested.get() is not None


def plan_of(roots: Sequence[Root]) -> Planned:
    """The plan of some expressions, kept or new, with their leaves and numbers."""
    try:
        planned = _planned(roots)
    except RecursionError:
        planned = _planned_deep(roots)
    requested = _requested.get()
    if requested is not None:
        requested.append(planned.plan)
    return planned


def _planned_deep(roots: Sequence[Root]) -> Planned:
    """The plan of expressions with hundreds of nested operations. Python's limit stays raised: kernels need it too."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEP_RECURSION))
    try:
        return _planned(roots)
    except RecursionError:
        raise UsageError(
            f"the expression nests too many operations (Python's recursion limit is {sys.getrecursionlimit():,}); "
            "compute a part of it first, with .realize()"
        ) from None


def _planned(roots: Sequence[Root]) -> Planned:
    split = Split()
    try:
        for expr, dtype in roots:
            split.signature.append(None if dtype is None else dtype.name)
            split.read(expr)
    except _NotCached:
        return Planned(make_plan(roots))
    space = split.space
    key = (*split.signature, None if space else tuple(split.shapes))
    plan = _plans.get(key)
    if plan is None:
        structure = _Structure()
        plan = make_plan([(structure.of(expr), dtype) for expr, dtype in roots])
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        _plans[key] = plan
    return Planned(plan, split.inputs, split.numbers, space)


def passes_of(build: Callable[[], Tensor]) -> tuple[int, bool]:
    """How many passes building and evaluating a tensor takes, and whether building it evaluates anything.

    A product that is stored first counts as a pass; one that a pass computes as it reads it does not.
    """
    expr, plans = _watched(lambda: build().expr)
    plan = make_plan([(expr, expr.dtype)])
    return sum(each.pass_count for each in (*plans, plan)), bool(plans)


def _watched(build: Callable[[], Expr]) -> tuple[Expr, list[Plan]]:
    """What a function builds, and the plans of what it evaluates for that."""
    plans: list[Plan] = []
    token = _requested.set(plans)
    try:
        return build(), plans
    finally:
        _requested.reset(token)


_CallLeaf = tuple[Counter | None, int | None]
"""A leaf of a call: the input with a number, a counter, or a counter with the random stream of an input."""


class PlannedCalls:
    """The plans of a pure function that builds expressions: one call is enough for all inputs of the same types.

    A call that evaluates something, or whose expression has other leaves than its inputs and their random streams, is
    made again for every tensor.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], tuple[Planned, list[_CallLeaf]] | None] = {}

    def planned(
        self,
        key: tuple[Any, ...],
        inputs: Sequence[Expr],
        stream_of: Callable[[int], StreamKey],
        build: Callable[[], Expr],
    ) -> Planned | Expr:
        """The planned expression of a call, or the expression if it cannot be shared.

        ``key`` is what the call is given besides the inputs; ``stream_of`` gives the random stream of an input.
        """
        for each in inputs:
            if type(each) is not Source or each.rows is not None or each.layout.strides != _strides(each.shape):
                return build()
            key += (each.dtype.name, each.shape)
        if key not in self._calls:
            self._calls[key] = self._called(inputs, stream_of, build)
        call = self._calls[key]
        if call is None:
            return build()
        planned, leaves = call
        bound: list[Any] = [None] * len(leaves)
        for position, (leaf, number) in enumerate(leaves):
            if number is None:
                bound[position] = leaf
            elif leaf is None:
                bound[position] = inputs[number]
            else:
                bound[position] = Counter(leaf.origin, leaf.layout, stream_of(number))
        return planned._replace(inputs=bound)

    def _called(
        self, inputs: Sequence[Expr], stream_of: Callable[[int], StreamKey], build: Callable[[], Expr]
    ) -> tuple[Planned, list[_CallLeaf]] | None:
        expr, evaluated = _watched(build)
        if evaluated or type(expr) is Source:
            return None
        planned = _planned([(expr, expr.dtype)])
        streams = [stream_of(number) for number in range(len(inputs))]
        leaves: list[_CallLeaf] = []
        for leaf in planned.inputs:
            if isinstance(leaf, Counter):
                if leaf.origin != "index" and leaf.key not in streams:
                    return None
                leaves.append((leaf, None if leaf.origin == "index" else streams.index(leaf.key)))
                continue
            number = next((number for number, each in enumerate(inputs) if each is leaf), None)
            if number is None:
                return None
            leaves.append((None, number))
        return (planned._replace(inputs=()), leaves) if leaves else None
