"""Writing reductions: tiles of elements, sixteen threads to a tile, and rows that are walked several times.

A threadgroup takes a block of elements. Its tiles, their lanes and the order in which they are put together are those
of the CPU, so that sums come out the same.
"""

from __future__ import annotations

from collections.abc import Callable

from lbrx.devices.metal.codegen.elements import REGISTER_TYPES
from lbrx.devices.metal.codegen.reductions import Reduction, reduction_of
from lbrx.devices.metal.codegen.values import ValueWriter
from lbrx.engine.block_sizes import LANES, REDUCTION_BLOCK, TILE
from lbrx.engine.program import BLOCK_REDUCTIONS, ROW_OPS, Instruction, Program, Sink

TILE_THREADS = 512
_SLOTS = TILE_THREADS // LANES  # tiles that a threadgroup works on at once
_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


class TileWriter(ValueWriter):
    """Writes kernels with reductions, of whole tensors or along rows."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.reductions = [
            (number, reduction_of(program, f"s{number}", sink, self.types))
            for number, sink in enumerate(program.sinks)
            if sink.op in BLOCK_REDUCTIONS
        ]
        self.row_reductions = [
            (number, reduction_of(program, f"r{number}", _as_sink(instruction), self.types))
            for number, instruction in enumerate(program.body, self.first_body)
            if instruction.op in ROW_OPS
        ]
        self._known_row_values: set[int] = set()

    def _lanes(self, reductions: list[Reduction]) -> None:
        self.out.add(f"const uint lane = member & {LANES - 1}u;", f"const uint slot = member / {LANES}u;")
        self.out.add(f"const uint slots = members / {LANES}u;")
        for each in reductions:
            self.out.add(f"threadgroup {each.type} tiles_{each.name}[{_SLOTS}];")
            if each.has_index:
                self.out.add(f"threadgroup long tiles_{each.name}_index[{_SLOTS}];")

    def write_blocks(self) -> None:
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
                if each.has_index:
                    self.out.add(f"sink{number}_indices[group] = total_{each.name}_index;")

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
        self.row_offsets()

    def _row_tile(self) -> None:
        self.out.add(f"const INDEX tile_start = INDEX(tile) * {TILE}u;")
        self.out.add(f"const uint size = tile < tiles ? uint(min(INDEX({TILE}u), columns - tile_start)) : 0u;")

    def _tile_loop(self, reductions: list[Reduction], tile: Callable[[], None], *, with_sinks: bool) -> None:
        """Tiles in batches, each reduced by sixteen lanes; thread 0 puts them together in their order."""
        known = set(self._known_row_values)
        with self.out.block("for (uint batch = 0u; batch < tiles; batch += slots)"):
            self.out.add("const uint tile = batch + slot;")
            tile()
            for each in reductions:
                self.out.add(*each.start("part"))
            with self.out.block(f"for (uint position = lane; position < size; position += {LANES}u)"):
                self._element_of_tile(reductions, known, with_sinks)
            for each in reductions:
                self.out.add(*each.tree(f"size == {TILE}u"))
            with self.out.block("if (lane == 0u)"):
                for each in reductions:
                    self.out.add(f"tiles_{each.name}[slot] = part_{each.name};")
                    if each.has_index:
                        self.out.add(f"tiles_{each.name}_index[slot] = part_{each.name}_index;")
            self.out.add(_BARRIER)
            with (
                self.out.block("if (member == 0u)"),
                self.out.block("for (uint done = 0u; done < min(slots, tiles - batch); done++)"),
            ):
                for each in reductions:
                    self.out.add(*each.merge("total", f"tiles_{each.name}[done]", f"tiles_{each.name}_index[done]"))
            self.out.add(_BARRIER)

    def _element_of_tile(self, reductions: list[Reduction], known: set[int], with_sinks: bool) -> None:
        if self.is_flat:
            self.out.add("const uint j = tile_start + position;", "const long column = a.first_element + long(j);")
            index = "column"
        else:
            self.out.add("const INDEX column = tile_start + position;")
            index = "long(row * columns + column)" if with_sinks else "long(column)"
            if with_sinks:
                self.out.add("const uint j = uint(row * columns + column - INDEX(a.first_element));")
        roots = [int(arg[1:]) for each in reductions for arg in each.args]
        if with_sinks:
            roots += [arg for sink in self.program.sinks if sink.op != "row_store" for arg in sink.args]
        self.declare_values(roots, known)
        for each in reductions:
            self.out.add(*each.take(index))
        if with_sinks:
            self.feed_sinks(index)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def write_rows(self) -> None:
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
            self.row_offsets()
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
            self.declare(number, f"shared{number}")
        self._known_row_values.update(numbers)

    def _finish_row(self, reductions: list[Reduction]) -> None:
        """What comes after the values along a row; the barriers of the next row's tiles keep those in place."""
        known = {number for number, _ in self.row_reductions}
        elementwise = [sink for sink in self.program.sinks if sink.op != "row_store"]
        if reductions:
            self._tile_loop(reductions, self._row_tile, with_sinks=True)
        elif elementwise:
            with self.out.block("for (INDEX column = member; column < columns; column += members)"):
                self.out.add("const uint j = uint(row * columns + column - INDEX(a.first_element));")
                self.declare_values([arg for sink in elementwise for arg in sink.args], known)
                self.feed_sinks("long(row * columns + column)")
        row_stores = [(n, sink) for n, sink in enumerate(self.program.sinks) if sink.op == "row_store"]
        if row_stores:
            with self.out.block("if (member == 0u)"):
                self.out.add("const INDEX column = 0u;")
                self.declare_values([sink.args[0] for _, sink in row_stores], known)
                for number, sink in row_stores:
                    self.out.add(f"sink{number}[row_number] = encode_{sink.type}(v{sink.args[0]});")


def _as_sink(instruction: Instruction) -> Sink:
    return Sink(instruction.op.removeprefix("row_"), instruction.type, instruction.args)
