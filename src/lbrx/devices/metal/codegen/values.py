"""Writing the values of a program: leaves, operations, and where they go element by element."""

from __future__ import annotations

from lbrx.devices.cpu.codegen.registers import register_type
from lbrx.devices.metal.codegen.elements import (
    REGISTER_TYPES,
    cast_text,
    converted,
    key_text,
    load_text,
    operation_text,
)
from lbrx.devices.metal.codegen.lines import ShaderLines
from lbrx.devices.metal.codegen.signature import Signature
from lbrx.engine.block_sizes import BINS
from lbrx.engine.program import FLAT, Program


class ValueWriter:
    """Declares the values of a program as ``v0``, ``v1``, ..., one operation a statement.

    A walk declares before: ``j``, the element of the chunk; ``column``, the element of the row, or of the space where
    that is flat; and ``row`` where it is not.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.signature = Signature(program)
        self.out = ShaderLines()
        self.types = [register_type(name) for name in program.value_types()]
        self.first_scalar = len(program.leaves)
        self.first_body = self.first_scalar + len(program.scalars)
        self.is_flat = program.mode == FLAT

    def declare(self, number: int, text: str) -> None:
        """Declare one value."""
        self.out.add(f"const {REGISTER_TYPES[self.types[number]]} v{number} = {text};")

    def declare_scalars(self) -> None:
        for number, dtype in enumerate(self.program.scalars):
            value = f"a.scalar{number}"
            self.declare(self.first_scalar + number, converted(value, dtype) if dtype == "bool" else value)

    def declare_values(self, roots: list[int], known: set[int]) -> None:
        """Declare the values that the roots are made from, except those that are known already."""
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number in wanted or number in known or self.first_scalar <= number < self.first_body:
                continue
            wanted.add(number)
            if number >= self.first_body:
                stack += self.program.body[number - self.first_body].args
        for number in sorted(wanted):
            self.declare(number, self._value_text(number))

    def _value_text(self, number: int) -> str:
        if number < self.first_scalar:
            return self._leaf_text(number)
        instruction = self.program.body[number - self.first_body]
        args = [f"v{arg}" for arg in instruction.args]
        if instruction.op == "cast":
            return cast_text(args[0], self.types[instruction.args[0]], instruction.type)
        return operation_text(instruction.op, self.types[number], args, self.types[instruction.args[-1]])

    def _leaf_text(self, number: int) -> str:
        leaf = self.program.leaves[number]
        if self.is_flat and leaf.origin == "source" and leaf.dtype not in ("i4", "i2"):
            return load_text(leaf.dtype, f"leaf{number}", {"unit": "j", "zero": "0"}[leaf.step])
        along = {"unit": "long(column)", "zero": "0l", "any": f"long(column) * a.stride{number}"}[leaf.step]
        index = f"a.offset{number} + {along}" + ("" if self.is_flat else f" + row_offset{number}")
        if leaf.origin == "index":
            return index
        if leaf.origin != "source":
            return f"{leaf.origin}_f32(a.key0_{number}, a.key1_{number}, {index})"
        return load_text(leaf.dtype, f"leaf{number}", index)

    def row_offsets(self) -> None:
        """Where the row begins in each leaf; nothing where the space is flat."""
        if self.is_flat:
            return
        self.out.add("INDEX rest = row;", *(f"long row_offset{n} = 0l;" for n in range(self.first_scalar)))
        with self.out.block("for (int axis = int(a.outer_axes) - 1; axis >= 0; axis--)"):
            self.out.add("const INDEX size = INDEX(walk[axis]);", "const INDEX above = rest / size;")
            self.out.add("const long index = long(rest - above * size);", "rest = above;")
            for number, leaf in enumerate(self.program.leaves):
                index = f"(uint(axis) == a.axis{number} ? rows{number}[index] : index)" if leaf.gather else "index"
                self.out.add(f"row_offset{number} += {index} * walk[a.outer_axes * {number + 1}u + uint(axis)];")

    def feed_sinks(self, index: str) -> None:
        """Store an element, count it or collect it; ``index`` is its number in the space."""
        for number, sink in enumerate(self.program.sinks):
            value, register = f"v{sink.args[0]}", self.types[sink.args[0]]
            if sink.op == "store":
                self.out.add(f"sink{number}[j] = encode_{sink.type}({value});")
            elif sink.op == "histogram":
                key = f"long({key_text(value, register)})"
                self.out.add(f"const long bin{number} = ({key} >> a.sink{number}_shift) - a.sink{number}_first;")
                add = f"atomic_fetch_add_explicit(&sink{number}_counts[bin{number}], 1u, memory_order_relaxed);"
                self.out.add(f"if (bin{number} >= 0l && bin{number} < {BINS}l) {add}")
            elif sink.op == "collect":
                self._collect(number, key_text(value, register), index)

    def _collect(self, number: int, key: str, index: str) -> None:
        sink, name = f"sink{number}", f"key{number}"
        self.out.add(f"const long {name} = long({key});", f"above{number} += {name} > a.{sink}_high ? 1u : 0u;")
        with self.out.block(f"if ({name} >= a.{sink}_low && {name} <= a.{sink}_high)"):
            self.out.add(f"const uint slot = atomic_fetch_add_explicit(&{sink}_counts[0], 1u, memory_order_relaxed);")
            with self.out.block(f"if (slot < a.{sink}_capacity)"):
                self.out.add(f"{sink}_keys[slot] = {name};", f"{sink}_indices[slot] = {index};")
