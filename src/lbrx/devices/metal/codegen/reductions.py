"""Text of reductions: what is put together by a lane, by a tile of sixteen lanes, and by a block of tiles.

Order and rounding are those of the CPU: sums of floats are float64, held in a ulong.
"""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.codegen.elements import REGISTER_TYPES, converted, key_text
from lbrx.engine.program import Program, Sink, tile_type

SUMS = frozenset({"sum", "sumsq", "dot"})
_IDENTITIES = {
    ("min", "float"): "INFINITY",
    ("max", "float"): "-INFINITY",
    ("min", "int"): "0x7fffffff",
    ("max", "int"): "-0x7fffffff - 1",
    ("min", "long"): "0x7fffffffffffffffl",
    ("max", "long"): "-0x7fffffffffffffffl - 1l",
}
LAST_INDEX = "0x7fffffffffffffffl"


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction: ``name`` begins the names of its variables, ``register`` is the type of its arguments."""

    name: str
    op: str
    args: tuple[str, ...]
    register: str
    takes_pairs: bool = False  # the CPU adds whole tiles of bf16 as they lie in memory: neighbours first

    @property
    def _tile(self) -> str:
        return tile_type(self.register)

    @property
    def type(self) -> str:
        """The shader's type of the accumulator."""
        if self.op in SUMS:
            return "ulong" if self._tile == "f32" else "long"
        if self.op == "argmax":
            return "long" if self._tile == "i64" else "int"
        return REGISTER_TYPES[self._tile]

    @property
    def has_index(self) -> bool:
        return self.op == "argmax"

    def start(self, prefix: str) -> list[str]:
        """Declare an accumulator without elements."""
        identity_op = "max" if self.has_index else self.op
        identity = "0" if self.op in SUMS else _IDENTITIES[identity_op, self.type]
        lines = [f"{self.type} {prefix}_{self.name} = {identity};"]
        return [*lines, f"long {prefix}_{self.name}_index = {LAST_INDEX};"] if self.has_index else lines

    def take(self, index: str) -> list[str]:
        """Put an element into a lane's accumulator."""
        part = f"part_{self.name}"
        if self.has_index:
            key = f"key_{self.name}"
            return [
                f"const {self.type} {key} = {key_text(self.args[0], self.register)};",
                f"if ({key} > {part} || {part}_index == {LAST_INDEX}) {{ {part} = {key}; {part}_index = {index}; }}",
            ]
        return [f"{part} = {self._combined(part, self._element())};"]

    def _element(self) -> str:
        first, last = self.args[0], self.args[-1]
        if self.op in SUMS and self._tile == "f32":
            if self.op == "sum":
                return f"f64_of_f32({first})"
            return f"f64_product({first}, {last})"
        if self.op == "sum":
            return f"long({first})"
        if self.op in SUMS:
            return f"long(ulong(long({first})) * ulong(long({last})))"
        return first if self._tile == self.register else f"int({first})"

    def _combined(self, left: str, right: str) -> str:
        if self.op in SUMS:
            return f"f64_add({left}, {right})" if self.type == "ulong" else f"long(ulong({left}) + ulong({right}))"
        return f"{'lesser' if self.op == 'min' else 'greater'}({left}, {right})"

    def merge(self, into: str, other: str, other_index: str = "") -> list[str]:
        """Put one accumulator into another."""
        name = f"{into}_{self.name}"
        if not self.has_index:
            return [f"{name} = {self._combined(name, other)};"]
        is_better = f"{other} > {name} || ({other} == {name} && {other_index} < {name}_index)"
        return [f"if ({is_better}) {{ {name} = {other}; {name}_index = {other_index}; }}"]

    def tree(self, whole: str) -> list[str]:
        """Put the lanes of a tile together; lane 0 has the result."""
        other = f"other_{self.name}"
        usual, pairs = "8u >> step", "step == 0u ? 1u : 16u >> step"
        distance = f"({whole} ? ({pairs}) : {usual})" if self.takes_pairs else f"({usual})"
        lines = [
            f"  const ushort source = ushort((simd_lane & 16u) | ((lane + {distance}) & 15u));",
            f"  const {self.type} {other} = shuffled(part_{self.name}, source);",
        ]
        if self.has_index:
            lines.append(f"  const long {other}_index = shuffled(part_{self.name}_index, source);")
        lines += [f"  {line}" for line in self.merge("part", other, f"{other}_index")]
        return ["for (uint step = 0u; step < 4u; step++) {", *lines, "}"]

    def partial(self) -> str:
        """The total of a block as the bits that are handed out: a float64 or an int64."""
        total = f"total_{self.name}"
        if self.op in SUMS or self._tile != "f32":
            return f"long({total})"
        return f"long(f64_of_f32({f'value_of_key({total})' if self.has_index else total}))"

    def result(self, register: str) -> str:
        """The total of a row as a register."""
        total = f"total_{self.name}"
        if self.has_index:
            return f"{total}_index"
        if self.op in SUMS:
            return f"f32_of_f64({total})" if self.type == "ulong" else total
        return converted(total, register)


def reduction_of(program: Program, name: str, sink: Sink, types: list[str]) -> Reduction:
    """The reduction of a sink, or of an instruction along a row in the form of a sink."""
    args = tuple(f"v{arg}" for arg in sink.args)
    leaves = [program.leaves[arg] for arg in sink.args if arg < len(program.leaves)]
    is_direct = len(leaves) == len(sink.args) and all(
        leaf.origin == "source" and leaf.step == "unit" and leaf.dtype == "bf16" for leaf in leaves
    )
    return Reduction(name, sink.op, args, types[sink.args[0]], is_direct and sink.op in SUMS)
