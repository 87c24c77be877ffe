"""The innermost loops of a kernel: over the elements of a run, with the values that each needs.

Where an element's own index matters, a run is cut into parts in which a comparison with the index has one outcome and
the index's high word one value: then no lane of a vector has to hold 64 bits. Where several walks over a row need a
value that is slow to compute, the first of them puts it aside for the others.
"""

from __future__ import annotations

from collections.abc import Callable

from lbrx.devices.cpu.codegen.lines import SourceLines
from lbrx.devices.cpu.codegen.values import Values

KEPT_COLUMNS = 8192  # of a row: 32 KiB of float32 on the stack; what comes after them is computed again
MOST_KEPT = 4
_SLOW = frozenset({"exp", "log", "sin", "cos", "acos", "tanh", "erf", "pow"})


class ElementLoops:
    """Writes loops into ``out``."""

    def __init__(self, values: Values, out: SourceLines) -> None:
        self.values = values
        self.out = out
        needed = [values.needed(roots, per_element=True) for roots in values.walks()]
        slow = [
            number
            for number, instruction in enumerate(values.program.body, values.first_body)
            if instruction.op in _SLOW and values.types[number] == "f32"
        ]
        self.kept = [number for number in slow if sum(number in each for each in needed) > 1][:MOST_KEPT]
        self._there: frozenset[int] = frozenset()

    def buffers(self) -> list[str]:
        """The lines that make room for what is put aside."""
        return [f"kept{number} = stack_bytes({4 * KEPT_COLUMNS})" for number in self.kept]

    def write(self, first: str, last: str, start: str, roots: tuple[int, ...], body: Callable[[], None]) -> None:
        """A loop over ``j`` from ``first`` to ``last``: ``column`` is ``start + j``, and ``body`` uses the roots."""
        needed = self.values.needed(roots, per_element=True)
        kept = [number for number in self.kept if number in needed]
        if not kept:
            self._loop(first, last, start, needed, body)
            return
        left = self.values.needed(roots, per_element=True, known=self._there)
        new = frozenset(kept) - self._there
        self.out.add(f"kept_end = max(np.int64({first}), min(np.int64({last}), {KEPT_COLUMNS} - {start}))")
        self._loop(first, "kept_end", start, left, body, new)
        there, self._there = self._there, frozenset()
        self._loop("kept_end", last, start, needed, body)
        self._there = there | new

    def _loop(
        self,
        first: str,
        last: str,
        start: str,
        needed: list[int],
        body: Callable[[], None],
        new: frozenset[int] = frozenset(),
    ) -> None:
        values, out = self.values, self.out
        thresholds = [number for number in needed if number in values.thresholds]
        indices = {values.thresholds[number][2] for number in thresholds}
        limits = [number for number in values.limits if number in needed or number in indices]
        streams = [number for number in needed if number < values.first_scalar and values.is_stream(number)]
        is_cut = bool(limits or streams)
        if is_cut:
            self._open_parts(first, last, start, limits, streams)
        for number in thresholds:
            _, scalar, limit = values.thresholds[number]
            out.add(f"threshold{number} = np.int32(v{scalar} - 1) if v{limit} else v{scalar}")
        out.open("for j in range(part, part_end):" if is_cut else f"for j in range({first}, {last}):")
        out.add(f"column = {start} + j" if start != "0" else "column = j")
        for number in needed:
            if number in self._there:
                out.add(f"v{number} = peek_f32(kept{number}, column)")
            elif number not in limits:
                out.add(f"v{number} = {values.text(number, 'column', in_part=True)}")
            if number in new:
                out.add(f"store_f32(kept{number}, column, v{number})")
        body()
        out.close()
        if is_cut:
            out.close()

    def _open_parts(self, first: str, last: str, start: str, limits: list[int], streams: list[int]) -> None:
        values, out = self.values, self.out
        out.add(f"part_end = np.int64({first})")
        out.open(f"while part_end < {last}:")
        out.add("part = part_end", f"part_end = np.int64({last})")
        for number in limits:
            leaf, scalar = values.limits[number]
            out.add(f"cut{number} = v{scalar} + 1 - ({values.start_text(leaf)} + {start})")
            out.add(f"part_end = min(part_end, cut{number}) if part < cut{number} else part_end")
        for number in streams:
            begin = values.start_text(number)
            out.add(f"place = {begin} + {start} + part", f"high{number} = (place >> 32) << 32")
            out.add(f"low{number} = low_word({begin} + {start})")
            out.add(f"part_end = min(part_end, part + high{number} + {1 << 32} - place)")
        out.add(*(f"v{number} = part < cut{number}" for number in limits))
