"""Where a kernel finds its arguments: one array of int64 and one of float64, in an order fixed by the program.

A kernel and the code that calls it agree on slots through this class, built from the Program alone.
"""

from __future__ import annotations

from lbrx.devices.cpu.codegen.streamed_stores import can_stream
from lbrx.engine.program import FLAT, Program

SINK_SLOTS: dict[str, tuple[str, ...]] = {
    "store": ("address",),
    "row_store": ("address",),
    "histogram": ("tables", "shift", "first"),
    "collect": ("low", "high", "keys", "indices", "state"),
    "argmax": ("partials", "indices"),
}


class Slots:
    """Places in the int64 array ``a`` and the float64 array ``f`` of a kernel."""

    def __init__(self, program: Program) -> None:
        self._names: dict[str, int] = {}
        self.floats: dict[int, int] = {}
        for number, leaf in enumerate(program.leaves):
            if leaf.origin == "source":
                self._add(f"leaf{number}.address")
            if leaf.origin != "source" or leaf.dtype in ("i4", "i2"):
                self._add(f"leaf{number}.offset")
            if leaf.origin in ("uniform", "normal"):
                self._add(f"leaf{number}.key0", f"leaf{number}.key1")
            if leaf.step == "any":
                self._add(f"leaf{number}.stride")
            if leaf.gather:
                self._add(f"leaf{number}.rows", f"leaf{number}.axis")
        for number, type_name in enumerate(program.scalars):
            if type_name in ("f32", "f64"):
                self.floats[number] = len(self.floats)
            else:
                self._add(f"scalar{number}")
        for number, sink in enumerate(program.sinks):
            self._add(*(f"sink{number}.{part}" for part in SINK_SLOTS.get(sink.op, ("partials",))))
        self._add("block", "rank_buffer")
        self.can_stream = can_stream(program)
        if self.can_stream:
            self._add("is_streamed")
        if program.mode != FLAT:
            self._add("columns", "outer_axes")
        self.variable = len(self._names)

    def _add(self, *names: str) -> None:
        for name in names:
            self._names[name] = len(self._names)

    def __getitem__(self, name: str) -> int:
        return self._names[name]
