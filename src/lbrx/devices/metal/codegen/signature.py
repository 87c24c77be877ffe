"""The arguments of a generated kernel: which buffer has which index, and the small numbers that go by value.

The kernel and the code that dispatches it agree on both through this class, built from the Program alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from lbrx.devices.metal.codegen.elements import MEMORY_TYPES
from lbrx.engine.program import FLAT, Program

_SCALAR_FIELDS = {"f32": ("float", "f"), "i64": ("long", "q"), "bool": ("int", "i")}
_INT_FIELD = ("int", "i")
_SINK_BUFFERS: dict[str, tuple[tuple[str, str], ...]] = {
    "argmax": (("partials", "device long*"), ("indices", "device long*")),
    "histogram": (("counts", "device atomic_uint*"),),
    "collect": (("keys", "device long*"), ("indices", "device long*"), ("counts", "device atomic_uint*")),
}
_SINK_LONGS = {"histogram": ("first",), "collect": ("low", "high")}
_SINK_UINTS = {"histogram": ("shift",), "collect": ("capacity",)}


class Signature:
    """Buffers by name with their indices, and the fields of the structure ``Arguments``."""

    def __init__(self, program: Program) -> None:
        self.buffers: dict[str, tuple[int, str]] = {}  # name -> index, declaration
        self._fields: dict[str, tuple[str, str]] = {}  # name -> type in the shader, code for struct
        self._add("long", "q", "first_element")
        for number, leaf in enumerate(program.leaves):
            if leaf.origin == "source":
                self._buffer(f"leaf{number}", f"device const {MEMORY_TYPES[leaf.dtype]}*")
            if leaf.gather:
                self._buffer(f"rows{number}", "device const long*")
                self._add("uint", "I", f"axis{number}")
            self._add("long", "q", f"offset{number}", *([f"stride{number}"] if leaf.step == "any" else []))
        for number, sink in enumerate(program.sinks):
            if sink.op in ("store", "row_store"):
                self._buffer(f"sink{number}", f"device {MEMORY_TYPES[sink.type]}*")
            for part, declaration in _SINK_BUFFERS.get(sink.op, () if "store" in sink.op else (_PARTIALS,)):
                self._buffer(f"sink{number}_{part}", declaration)
            self._add("long", "q", *(f"sink{number}_{name}" for name in _SINK_LONGS.get(sink.op, ())))
            self._add("uint", "I", *(f"sink{number}_{name}" for name in _SINK_UINTS.get(sink.op, ())))
        for number, dtype in enumerate(program.scalars):
            self._add(*_SCALAR_FIELDS.get(dtype, _INT_FIELD), f"scalar{number}")
        for number, leaf in enumerate(program.leaves):
            if leaf.origin in ("uniform", "normal"):
                self._add("uint", "I", f"key0_{number}", f"key1_{number}")
        self._add("uint", "I", "count")
        if program.mode != FLAT:
            self._buffer("walk", "device const long*")
            self._add("long", "q", "columns")
            self._add("uint", "I", "outer_axes", "block_rows")
        self._ordered = sorted(self._fields, key=lambda name: self._fields[name][1] != "q")  # eight bytes first

    def _add(self, field_type: str, code: str, *names: str) -> None:
        for name in names:
            self._fields[name] = (field_type, code)

    def _buffer(self, name: str, declaration: str) -> None:
        self.buffers[name] = (len(self.buffers), declaration)

    @property
    def arguments_index(self) -> int:
        """The index of the structure, after all buffers."""
        return len(self.buffers)

    @property
    def nbytes(self) -> int:
        """Bytes of the structure."""
        return -(-struct.calcsize(self._format) // 8) * 8

    @property
    def _format(self) -> str:
        return "<" + "".join(self._fields[name][1] for name in self._ordered)

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of the structure; every field needs a value."""
        return struct.pack(self._format, *(values[name] for name in self._ordered)).ljust(self.nbytes, b"\0")

    def structure(self) -> list[str]:
        """The lines that declare it in the shader."""
        return ["struct Arguments {", *(f"  {self._fields[name][0]} {name};" for name in self._ordered), "};"]

    def parameters(self) -> list[str]:
        """The kernel's parameters, buffers first."""
        listed = [f"{declaration} {name} [[buffer({index})]]" for name, (index, declaration) in self.buffers.items()]
        return [*listed, f"constant Arguments& a [[buffer({self.arguments_index})]]"]


_PARTIALS = ("partials", "device long*")
