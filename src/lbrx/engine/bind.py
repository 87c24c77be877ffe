"""A pass bound to the inputs of one evaluation: storages, random streams and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.fuse import Input, Pass, PassLeaf
from lbrx.engine.program import Program
from lbrx.engine.scalars import scalar_value
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.coded import Decode, StoredKey, stored_key
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Counter, Expr, Rows, Source, Stored, StreamKey
from lbrx.tensors.shape import Shape
from lbrx.tensors.storage import Storage


@dataclass(slots=True)
class BoundLeaf:
    """A leaf of a pass with what it stands for; strides and offset in elements.

    With a ``codec``, the storage has blocks whose values are the elements; ``numbers`` is what it keeps apart.
    """

    origin: str
    dtype: DType
    storage: Storage | None
    key: StreamKey
    offset: int
    inner_stride: int = 1
    outer_strides: Shape = ()
    rows: Rows | None = None
    rows_axis: int = -1
    codec: Codec | None = None
    numbers: tuple[Storage | None, ...] = ()


@dataclass(slots=True)
class BoundPass:
    """A program with its inputs: ready to run once the sinks have a place to go."""

    program: Program
    space: Shape
    elements: int
    leaves: list[BoundLeaf]
    scalars: list[Any]
    columns: int
    outer_shape: Shape


class KthResult(NamedTuple):
    """The k-th largest element: its value, its sortable key and its linear index (-1 if nobody asked)."""

    value: Any
    key: Any
    index: Any


@dataclass(slots=True)
class Known:
    """One evaluation: the inputs of its structure, and what its passes found, by the identity of the expression.

    ``space`` is given if the structure does not depend on sizes. ``passes`` are those that a search has fused before.
    """

    inputs: Sequence[Source | Counter] = ()
    input_numbers: Sequence[float | int | bool] = ()
    space: Shape | None = None
    passes: dict[tuple[Any, ...], tuple[Pass, tuple[Expr, ...]]] = field(default_factory=dict)
    scalars: dict[int, Any] = field(default_factory=dict)
    stored: dict[StoredKey, Storage] = field(default_factory=dict)
    searches: dict[int, KthResult] = field(default_factory=dict)
    streamed: dict[StoredKey, Storage] = field(default_factory=dict)  # products, computed as they are read

    def source(self, expr: Source | Input) -> tuple[Storage, int]:
        """The storage of elements, and the first of them."""
        if isinstance(expr, Source):
            return expr.storage, expr.layout.offset
        given = self.inputs[expr.number]
        assert isinstance(given, Source)
        return given.storage, given.layout.offset + expr.layout.offset

    def bound(self, leaf: PassLeaf) -> BoundLeaf:
        """A leaf with what it reads in this evaluation."""
        expr, offset = leaf.expr, leaf.offset
        storage: Storage | None = None
        key: StreamKey = (0, 0)
        codec: Codec | None = None
        numbers: tuple[Storage | None, ...] = ()
        if isinstance(expr, Input):
            given = self.inputs[expr.number]
            offset += given.layout.offset
            if isinstance(given, Source):
                storage = given.storage
            else:
                key = given.key
        elif isinstance(expr, Source):
            storage = expr.storage
        elif isinstance(expr, Counter):
            key = expr.key
        elif isinstance(expr, Decode):
            codec, (storage, *others) = expr.codec, map(self._part, expr.parts)
            numbers = tuple(others)
        else:
            number = stored_key(expr.inner if isinstance(expr, Stored) else expr)
            storage = self.stored[number] if number in self.stored else self.streamed[number]
        walk = offset, leaf.inner_stride, leaf.outer_strides, leaf.rows, leaf.rows_axis
        return BoundLeaf(leaf.origin, expr.dtype, storage, key, *walk, codec, numbers)

    def _part(self, part: Expr | None) -> Storage | None:
        if part is None:
            return None
        return (
            self.source(part)[0]
            if isinstance(part, Source | Input) and part.is_whole
            else self.stored[stored_key(part)]
        )


def bind(fused: Pass, known: Known) -> BoundPass:
    """A pass with the inputs of an evaluation."""
    space = known.space or fused.space if fused.space else ()  # a pass over a single number stays one
    return BoundPass(
        fused.program,
        space,
        math.prod(space),
        [known.bound(leaf) for leaf in fused.leaves],
        [scalar_value(expr, known) for expr in fused.scalars],
        fused.columns,
        fused.outer_shape,
    )
