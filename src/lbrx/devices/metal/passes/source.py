"""From a Program to the text of a Metal kernel.

Without reductions every thread takes some elements. With them a threadgroup takes a block of elements in tiles, sixteen
threads to a tile, so that sums come out as on the CPU. Programs along rows walk one row after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lbrx.devices.cpu.constants import BINS, TILE
from lbrx.devices.cpu.registers import register_type
from lbrx.devices.cpu.run import REDUCTION_BLOCK
from lbrx.devices.metal.passes.elements import REGISTER_TYPES, cast_text, converted, key_text, load_text, operation_text
from lbrx.devices.metal.passes.lines import ShaderLines
from lbrx.devices.metal.passes.reductions import Reduction, reduction_of
from lbrx.devices.metal.passes.signature import Signature
from lbrx.passes import BLOCK_REDUCTIONS, FLAT, ROW_OPS, ROWS, Instruction, Program, Sink

ELEMENTS_PER_THREAD = 8
ELEMENTWISE_THREADS = 256
TILE_THREADS = 512
LANES = 16
_SLOTS = TILE_THREADS // LANES  # tiles that a threadgroup works on at once
_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
_THREAD_PARAMETERS = (
    "uint group [[threadgroup_position_in_grid]]",
    "uint member [[thread_position_in_threadgroup]]",
    "uint members [[threads_per_threadgroup]]",
    "uint simd_lane [[thread_index_in_simdgroup]]",
)


class PassKernel(NamedTuple):
    """A generated kernel: its name, its text, its arguments, and whether threadgroups take blocks of tiles."""

    name: str
    text: str
    signature: Signature
    by_blocks: bool


@cache
def prelude() -> str:
    """The functions that every generated kernel can use."""
    return (Path(__file__).parent / "prelude.metal").read_text()


@cache
def pass_kernel(program: Program) -> PassKernel:
    """The kernel of a program.

    >>> from lbrx.passes import Instruction, Leaf
    >>> twice = Program(FLAT, (Leaf("source", "bf16", "unit"),), ("f32",),
    ...     (Instruction("mul", "f32", (0, 1)),), (Sink("store", "bf16", (2,)),))
    >>> "const float v2 = v0 * v1;" in pass_kernel(twice).text
    True
    """
    return _Generator(program).kernel()


class _Generator:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.signature = Signature(program)
        self.out = ShaderLines()
        self.types = [register_type(name) for name in program.value_types()]
        self.first_scalar = len(program.leaves)
        self.first_body = self.first_scalar + len(program.scalars)
        self.is_flat = program.mode == FLAT
        self.reductions = [
            (number, reduction_of(program, f"s{number}", sink, self.types))
            for number, sink in enumerate(program.sinks)
            if sink.kind in BLOCK_REDUCTIONS
        ]
        self.row_reductions = [
            (number, reduction_of(program, f"r{number}", _as_sink(instruction), self.types))
            for number, instruction in enumerate(program.body, self.first_body)
            if instruction.op in ROW_OPS
        ]
        self.by_blocks = bool(self.reductions) or program.mode == ROWS
        self.known_row_values: set[int] = set()

    def kernel(self) -> PassKernel:
        body = self._text()
        name = "pass_" + hashlib.sha256(body.encode()).hexdigest()[:12]
        text = f"{prelude()}\n{body.replace('PASS', name)}"
        return PassKernel(name, text, self.signature, self.by_blocks)

    def _text(self) -> str:
        self.out.add(*self.signature.structure(), "")
        parameters = [*self.signature.parameters(), *_THREAD_PARAMETERS]
        self.out.add("kernel void PASS(", *(f"    {text}," for text in parameters[:-1]), f"    {parameters[-1]})")
        with self.out.block(""):
            for number, kind in enumerate(self.program.scalars):
                value = converted(f"a.scalar{number}", kind) if kind == "bool" else f"a.scalar{number}"
                self._declare(self.first_scalar + number, value)
            if self.program.mode == ROWS:
                self._rows()
            elif self.by_blocks:
                self._blocks()
            else:
                self._elements()
        return "\n".join(self.out.lines) + "\n"

    def _declare(self, number: int, text: str) -> None:
        self.out.add(f"const {REGISTER_TYPES[self.types[number]]} v{number} = {text};")

    # -- values -------------------------------------------------------------------------------------------------------

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
        if self.is_flat and leaf.kind == "source" and leaf.dtype not in ("i4", "i2"):
            return load_text(leaf.dtype, f"leaf{number}", {"unit": "j", "zero": "0"}[leaf.step])
        along = {"unit": "long(column)", "zero": "0l", "any": f"long(column) * a.stride{number}"}[leaf.step]
        place = f"a.offset{number} + {along}" + ("" if self.is_flat else f" + row_offset{number}")
        if leaf.kind == "index":
            return place
        if leaf.kind != "source":
            return f"{leaf.kind}_f32(a.key0_{number}, a.key1_{number}, {place})"
        return load_text(leaf.dtype, f"leaf{number}", place)

    def _emit_values(self, roots: list[int], known: set[int]) -> None:
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
            self._declare(number, self._value_text(number))

    def _row_offsets(self) -> None:
        """Where the row begins in each leaf."""
        if self.is_flat:
            return
        self.out.add("INDEX rest = row;", *(f"long row_offset{n} = 0l;" for n in range(self.first_scalar)))
        with self.out.block("for (int axis = int(a.outer_axes) - 1; axis >= 0; axis--)"):
            self.out.add("const INDEX size = INDEX(walk[axis]);", "const INDEX above = rest / size;")
            self.out.add("const long place = long(rest - above * size);", "rest = above;")
            for number, leaf in enumerate(self.program.leaves):
                place = f"(uint(axis) == a.axis{number} ? rows{number}[place] : place)" if leaf.gather else "place"
                self.out.add(f"row_offset{number} += {place} * walk[a.outer_axes * {number + 1}u + uint(axis)];")

    # -- walks --------------------------------------------------------------------------------------------------------

    def _elements(self) -> None:
        collects = [number for number, sink in enumerate(self.program.sinks) if sink.kind == "collect"]
        self.out.add(*(f"uint above{number} = 0u;" for number in collects))
        with self.out.block(f"for (uint step = 0u; step < {ELEMENTS_PER_THREAD}u; step++)"):
            self.out.add(f"const uint j = (group * {ELEMENTS_PER_THREAD}u + step) * members + member;")
            self.out.add("if (j >= a.count) break;")
            if self.is_flat:
                self.out.add("const long column = a.first_element + long(j);")
            else:
                self.out.add("const INDEX index = INDEX(a.first_element) + j;")
                self.out.add("const INDEX row = index / INDEX(a.columns);")
                self.out.add("const INDEX column = index - row * INDEX(a.columns);")
            self._row_offsets()
            self._emit_values([arg for sink in self.program.sinks for arg in sink.args], set())
            self._feed_sinks("a.first_element + long(j)")
        for number in collects:
            self.out.add(f"const uint all_above{number} = simd_sum(above{number});")
            add = f"atomic_fetch_add_explicit(&sink{number}_counts[1], all_above{number}, memory_order_relaxed);"
            self.out.add(f"if (simd_lane == 0u) {add}")

    def _feed_sinks(self, place: str) -> None:
        for number, sink in enumerate(self.program.sinks):
            value, register = f"v{sink.args[0]}", self.types[sink.args[0]]
            if sink.kind == "store":
                self.out.add(f"sink{number}[j] = encode_{sink.type}({value});")
            elif sink.kind == "histogram":
                self.out.add(
                    f"const long bin{number} = (long({key_text(value, register)}) >> a.sink{number}_shift) "
                    f"- a.sink{number}_first;"
                )
                add = f"atomic_fetch_add_explicit(&sink{number}_counts[bin{number}], 1u, memory_order_relaxed);"
                self.out.add(f"if (bin{number} >= 0l && bin{number} < {BINS}l) {add}")
            elif sink.kind == "collect":
                self._collect(number, key_text(value, register), place)

    def _collect(self, number: int, key: str, place: str) -> None:
        sink = f"sink{number}"
        self.out.add(f"const long key{number} = long({key});", f"above{number} += key{number} > a.{sink}_high ? 1u : 0u;")
        with self.out.block(f"if (key{number} >= a.{sink}_low && key{number} <= a.{sink}_high)"):
            self.out.add(f"const uint slot = atomic_fetch_add_explicit(&{sink}_counts[0], 1u, memory_order_relaxed);")
            with self.out.block(f"if (slot < a.{sink}_capacity)"):
                self.out.add(f"{sink}_keys[slot] = key{number};", f"{sink}_places[slot] = {place};")

    def _lanes(self, reductions: list[Reduction]) -> None:
        self.out.add(f"const uint lane = member & {LANES - 1}u;", f"const uint slot = member / {LANES}u;")
        self.out.add(f"const uint slots = members / {LANES}u;")
        for each in reductions:
            self.out.add(f"threadgroup {each.type} tiles_{each.name}[{_SLOTS}];")
            if each.has_place:
                self.out.add(f"threadgroup long tiles_{each.name}_place[{_SLOTS}];")

    def _blocks(self) -> None:
        """A threadgroup for each block of elements."""
        reductions = [each for _, each in self.reductions]
        self._lanes(reductions)
        for each in reductions:
            self.out.add(*each.start("total"))
        if self.is_flat:
            self.out.add(f"const uint start = group * {REDUCTION_BLOCK}u;")
            self.out.add(f"const uint stop = min(start + {REDUCTION_BLOCK}u, a.count);")
            self.out.add(f"const uint tiles = (stop - start + {TILE - 1}u) / {TILE}u;")
        else:
            self._strided_block()
        self._tile_loop(reductions, self._flat_tile if self.is_flat else self._strided_tile, with_sinks=True)
        self._hand_out()

    def _hand_out(self) -> None:
        with self.out.block("if (member == 0u)"):
            for number, each in self.reductions:
                self.out.add(f"sink{number}_partials[group] = {each.partial()};")
                if each.has_place:
                    self.out.add(f"sink{number}_places[group] = total_{each.name}_place;")

    def _strided_block(self) -> None:
        """The tiles of a block begin anew with every row."""
        self.out.add(
            "const INDEX columns = INDEX(a.columns);",
            f"const INDEX start = INDEX(a.first_element) + group * {REDUCTION_BLOCK}u;",
            f"const INDEX stop = min(start + {REDUCTION_BLOCK}u, INDEX(a.first_element) + a.count);",
            "const INDEX first_row = start / columns;",
            "const INDEX first_column = start - first_row * columns;",
            "const INDEX head = min(columns - first_column, stop - start);",
            "const INDEX left = stop - start - head;",
            f"const uint head_tiles = uint((head + {TILE - 1}u) / {TILE}u);",
            f"const uint row_tiles = uint((columns + {TILE - 1}u) / {TILE}u);",
            f"const uint tail_tiles = uint((left % columns + {TILE - 1}u) / {TILE}u);",
            "const uint tiles = head_tiles + uint(left / columns) * row_tiles + tail_tiles;",
        )

    def _flat_tile(self) -> None:
        self.out.add(f"const uint tile_start = start + tile * {TILE}u;")
        self.out.add(f"const uint size = tile < tiles ? min({TILE}u, stop - tile_start) : 0u;")

    def _strided_tile(self) -> None:
        self.out.add(
            "const bool is_head = tile < head_tiles;",
            "const uint later = is_head ? 0u : tile - head_tiles;",
            "const INDEX row = is_head ? first_row : first_row + 1u + later / row_tiles;",
            f"const INDEX tile_start = is_head ? first_column + tile * {TILE}u : INDEX(later % row_tiles) * {TILE}u;",
            "const INDEX row_end = is_head ? first_column + head : min(columns, stop - min(stop, row * columns));",
            f"const uint size = tile < tiles ? uint(min(INDEX({TILE}u), row_end - tile_start)) : 0u;",
        )
        self._row_offsets()

    def _row_tile(self) -> None:
        self.out.add(f"const INDEX tile_start = INDEX(tile) * {TILE}u;")
        self.out.add(f"const uint size = tile < tiles ? uint(min(INDEX({TILE}u), columns - tile_start)) : 0u;")

    def _tile_loop(self, reductions: list[Reduction], tile: Callable[[], None], *, with_sinks: bool) -> None:
        """Tiles in batches, each reduced by sixteen lanes; thread 0 puts them together in their order."""
        known = set(self.known_row_values)
        with self.out.block("for (uint batch = 0u; batch < tiles; batch += slots)"):
            self.out.add("const uint tile = batch + slot;")
            tile()
            for each in reductions:
                self.out.add(*each.start("part"))
            with self.out.block(f"for (uint place = lane; place < size; place += {LANES}u)"):
                self._element_of_tile(reductions, known, with_sinks)
            for each in reductions:
                self.out.add(*each.tree(f"size == {TILE}u"))
            with self.out.block("if (lane == 0u)"):
                for each in reductions:
                    self.out.add(f"tiles_{each.name}[slot] = part_{each.name};")
                    if each.has_place:
                        self.out.add(f"tiles_{each.name}_place[slot] = part_{each.name}_place;")
            self.out.add(_BARRIER)
            with (
                self.out.block("if (member == 0u)"),
                self.out.block("for (uint done = 0u; done < min(slots, tiles - batch); done++)"),
            ):
                for each in reductions:
                    self.out.add(*each.merge("total", f"tiles_{each.name}[done]", f"tiles_{each.name}_place[done]"))
            self.out.add(_BARRIER)

    def _element_of_tile(self, reductions: list[Reduction], known: set[int], with_sinks: bool) -> None:
        if self.is_flat:
            self.out.add("const uint j = tile_start + place;", "const long column = a.first_element + long(j);")
            index = "column"
        else:
            self.out.add("const INDEX column = tile_start + place;")
            index = "long(row * columns + column)" if with_sinks else "long(column)"
            if with_sinks:
                self.out.add("const uint j = uint(row * columns + column - INDEX(a.first_element));")
        roots = [int(arg[1:]) for each in reductions for arg in each.args]
        if with_sinks:
            roots += [arg for sink in self.program.sinks if sink.kind != "row_store" for arg in sink.args]
        self._emit_values(roots, known)
        for each in reductions:
            self.out.add(*each.take(index))
        if with_sinks:
            self._feed_sinks(index)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _rows(self) -> None:
        """A threadgroup for each block of rows; what is needed along a row is found before its elements."""
        reductions = [each for _, each in self.reductions]
        self._lanes([*reductions, *(each for _, each in self.row_reductions)])
        for number, _ in self.row_reductions:
            self.out.add(f"threadgroup {REGISTER_TYPES[self.types[number]]} shared{number};")
        for each in reductions:
            self.out.add(*each.start("total"))
        self.out.add(
            "const INDEX columns = INDEX(a.columns);",
            f"const uint tiles = uint((columns + {TILE - 1}u) / {TILE}u);",
            "const INDEX chunk_row = INDEX(a.first_element) / columns;",
            "const uint row_count = uint(a.count / columns);",
            "const uint last = min((group + 1u) * a.block_rows, row_count);",
        )
        with self.out.block("for (uint row_number = group * a.block_rows; row_number < last; row_number++)"):
            self.out.add("const INDEX row = chunk_row + row_number;")
            self._row_offsets()
            for phase in self._phases():
                self._along_row(phase)
            self._finish_row(reductions)
        self._hand_out()

    def _phases(self) -> list[list[int]]:
        """Row reductions in the order in which they can be found; those of one walk together."""
        level: dict[int, int] = {}
        for number, instruction in enumerate(self.program.body, self.first_body):
            latest = max((level.get(arg, 0) for arg in instruction.args), default=0)
            level[number] = latest + 1 if instruction.op in ROW_OPS else latest
        numbers = [number for number, _ in self.row_reductions]
        return [[n for n in numbers if level[n] == phase] for phase in range(1, max(level.values(), default=0) + 1)]

    def _along_row(self, numbers: list[int]) -> None:
        reductions = [each for number, each in self.row_reductions if number in numbers]
        for each in reductions:
            self.out.add(*each.start("total"))
        self._tile_loop(reductions, self._row_tile, with_sinks=False)
        with self.out.block("if (member == 0u)"):
            for number, each in self.row_reductions:
                if number in numbers:
                    self.out.add(f"shared{number} = {each.result(self.types[number])};")
        self.out.add(_BARRIER)
        for number in numbers:
            self._declare(number, f"shared{number}")
        self.known_row_values.update(numbers)

    def _finish_row(self, reductions: list[Reduction]) -> None:
        known = {number for number, _ in self.row_reductions}
        elementwise = [sink for sink in self.program.sinks if sink.kind != "row_store"]
        if reductions:
            self._tile_loop(reductions, self._row_tile, with_sinks=True)
        elif elementwise:
            with self.out.block("for (INDEX column = member; column < columns; column += members)"):
                self.out.add("const uint j = uint(row * columns + column - INDEX(a.first_element));")
                self._emit_values([arg for sink in elementwise for arg in sink.args], known)
                self._feed_sinks("long(row * columns + column)")
        row_stores = [(n, sink) for n, sink in enumerate(self.program.sinks) if sink.kind == "row_store"]
        if row_stores:
            with self.out.block("if (member == 0u)"):
                self.out.add("const INDEX column = 0u;")
                self._emit_values([sink.args[0] for _, sink in row_stores], known)
                for number, sink in row_stores:
                    self.out.add(f"sink{number}[row_number] = encode_{sink.type}(v{sink.args[0]});")
        self.out.add(_BARRIER)


def _as_sink(instruction: Instruction) -> Sink:
    return Sink(instruction.op.removeprefix("row_"), instruction.type, instruction.args)
