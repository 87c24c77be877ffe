"""A pass: one loop over the elements of an iteration space, in a form that any device can compile.

Values are numbered: first the leaves, then the scalars, then the instructions. A Program holds structure and
dtypes only, never constants, shapes or addresses, so that equal programs share one compiled kernel.
"""

from __future__ import annotations

from typing import NamedTuple

# How a program walks its space.
FLAT = "flat"  # every leaf is contiguous or constant: one run of elements
STRIDED = "strided"  # rows of columns; leaves have strides of their own
ROWS = "rows"  # whole rows, because something along the row is needed before the elements

ROW_OPS = frozenset({"row_sum", "row_sumsq", "row_dot", "row_min", "row_max", "row_argmax"})
RANK_OPS = frozenset({"rank_ascending", "rank_descending"})
BLOCK_REDUCTIONS = frozenset({"sum", "sumsq", "dot", "min", "max", "argmax"})
TILED_SINKS = BLOCK_REDUCTIONS | {"histogram", "collect"}


class Leaf(NamedTuple):
    """An input of a pass. ``step``: how it moves along the innermost axis: "unit", "zero" or "any"."""

    origin: str  # "source", "index", "uniform", "normal"
    dtype: str
    step: str
    gather: bool = False


class Instruction(NamedTuple):
    """One operation on earlier values. ``type`` is the dtype that results; a "cast" also rounds to it."""

    op: str
    type: str
    args: tuple[int, ...]


class Sink(NamedTuple):
    """Where values go: "store", "row_store", a block reduction, "histogram" or "collect"."""

    op: str
    type: str
    args: tuple[int, ...]


class Program(NamedTuple):
    """The structure of a pass."""

    mode: str
    leaves: tuple[Leaf, ...]
    scalars: tuple[str, ...]
    body: tuple[Instruction, ...]
    sinks: tuple[Sink, ...]

    def value_types(self) -> list[str]:
        """The dtype of every value in order."""
        leaf_types = ["i64" if leaf.origin == "index" else leaf.dtype for leaf in self.leaves]
        return [*leaf_types, *self.scalars, *(instruction.type for instruction in self.body)]

    def describe(self) -> str:
        """The pass in words, one value a line.

        >>> print(Program(FLAT, (Leaf("source", "bf16", "unit"),), ("f32",),
        ...     (Instruction("mul", "f32", (0, 1)),), (Sink("store", "bf16", (2,)),)).describe())
        v0 = source bf16 (unit)
        v1 = scalar f32
        v2 = mul f32 v0 v1
        store bf16 v2
        """
        lines = [f"{leaf.origin} {leaf.dtype} ({leaf.step})" for leaf in self.leaves]
        lines += [f"scalar {type_name}" for type_name in self.scalars]
        lines += [" ".join((i.op, i.type, *(f"v{arg}" for arg in i.args))) for i in self.body]
        numbered = [f"v{number} = {line}" for number, line in enumerate(lines)]
        return "\n".join([*numbered, *(" ".join((s.op, s.type, *(f"v{arg}" for arg in s.args))) for s in self.sinks)])


def tile_type(register: str) -> str:
    """The element type of a tile that holds values of a register type."""
    return register if register in ("f32", "f64", "i64") else "i32"
