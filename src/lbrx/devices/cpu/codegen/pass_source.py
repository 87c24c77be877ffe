"""From a Program to the Python source of a kernel that Numba compiles.

The kernel walks elements ``lo`` to ``hi`` of the pass's space. Reductions go through tiles on the stack (see
`tile_sinks`). Each block of elements has its own partial result, so results do not depend on where chunks begin.
"""

from __future__ import annotations

from collections.abc import Callable

from lbrx.devices.cpu.codegen.bf16_pairs import write_pairs
from lbrx.devices.cpu.codegen.element_loops import ElementLoops
from lbrx.devices.cpu.codegen.lines import SourceLines
from lbrx.devices.cpu.codegen.registers import literal_cast, register_type
from lbrx.devices.cpu.codegen.slots import Slots
from lbrx.devices.cpu.codegen.streamed_stores import write_pieces
from lbrx.devices.cpu.codegen.tile_sinks import KEYS_OF, TileSinks
from lbrx.devices.cpu.codegen.values import Values, rounded_once
from lbrx.engine.block_sizes import TILE, rank_buffer_bytes
from lbrx.engine.program import BLOCK_REDUCTIONS, FLAT, RANK_OPS, ROW_OPS, ROWS, TILED_SINKS, Program, Sink, tile_type
from lbrx.tensors.dtype import DTYPES


class _Kernel:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots = Slots(program)
        self.out = SourceLines()
        self.values = Values(program)
        self.types = self.values.types
        self.first_scalar, self.first_body = self.values.first_scalar, self.values.first_body
        self.reductions = [i for i, sink in enumerate(program.sinks) if sink.op in BLOCK_REDUCTIONS]
        self.tiles = TileSinks(program, self.values, self.slots, self.out)
        self.loops = ElementLoops(self.values, self.out)

    def _slot(self, name: str) -> str:
        return f"peek_i64(a, {self.slots[name]})"

    def text(self) -> str:
        self.out.open("def kernel(a, f, lo, hi):")
        self._unpack()
        body_at = len(self.out.lines)
        if self.program.mode == ROWS:
            self._walk_blocks(self._walk_rows)
        else:
            self._walk_blocks(self._walk_segments)
        tiles = [
            f"    {name} = stack_bytes({DTYPES[type_name].itemsize * TILE})"
            for name, type_name in self.tiles.tiles.items()
        ]
        self.out.lines[body_at:body_at] = tiles + [f"    {line}" for line in self.loops.buffers()]
        return "\n".join(self.out.lines) + "\n"

    def _unpack(self) -> None:
        for number, leaf in enumerate(self.program.leaves):
            if leaf.origin == "source":
                self.out.add(f"base{number} = {self._slot(f'leaf{number}.address')}")
            if leaf.origin != "source" or leaf.dtype in ("i4", "i2"):
                self.out.add(f"offset{number} = {self._slot(f'leaf{number}.offset')}")
            if leaf.origin in ("uniform", "normal"):
                for key in ("key0", "key1"):
                    self.out.add(f"{key}_{number} = np.uint32({self._slot(f'leaf{number}.{key}')})")
            if leaf.step == "any":
                self.out.add(f"stride{number} = {self._slot(f'leaf{number}.stride')}")
        for number, type_name in enumerate(self.program.scalars):
            is_float = type_name in ("f32", "f64")
            text = f"peek_f64(f, {self.slots.floats[number]})" if is_float else self._slot(f"scalar{number}")
            self.out.add(f"v{self.first_scalar + number} = {literal_cast(text, register_type(type_name))}")
        for number, sink in enumerate(self.program.sinks):
            if sink.op in ("store", "row_store"):
                self.out.add(f"out{number} = {self._slot(f'sink{number}.address')}")
        if any(instruction.op in RANK_OPS for instruction in self.program.body):
            self.out.add(f"rank_buffer = {self._slot('rank_buffer')}")
        if self.program.mode != FLAT:
            self.out.add(f"columns = {self._slot('columns')}", f"outer_axes = {self._slot('outer_axes')}")
            self.out.add(
                f"rank_bytes = {rank_buffer_bytes(0)} + {rank_buffer_bytes(1) - rank_buffer_bytes(0)} * columns"
            )

    def _walk_blocks(self, walk: object) -> None:
        assert callable(walk)
        if not self.reductions:
            self.out.add("start = lo", "stop = hi")
            walk()
            return
        self.out.add(f"block = {self._slot('block')}", "start = lo")
        self.out.open("while start < hi:")
        self.out.add("stop = min(hi, start + block)")
        for number in self.reductions:
            self.tiles.start(f"total{number}", self.program.sinks[number])
        walk()
        for number in self.reductions:
            self._hand_out(number)
        self.out.add("start = stop")
        self.out.close()

    def _hand_out(self, number: int) -> None:
        type_name = "f64" if self.types[self.program.sinks[number].args[0]] in ("f32", "f64") else "i64"
        self.out.add(f"poke_{type_name}({self._slot(f'sink{number}.partials')}, start // block, total{number})")
        if self.program.sinks[number].op == "argmax":
            self.out.add(f"poke_i64({self._slot(f'sink{number}.indices')}, start // block, total{number}_place)")

    def _walk_segments(self) -> None:
        """Elements start..stop as runs within rows; a flat space is one run."""
        if self.program.mode == FLAT:
            self._row_values(0)
            self._run("start", "stop", "0", self._all_sinks())
            return
        self.out.add("i = start")
        self.out.open("while i < stop:")
        self.out.add("row = i // columns", "first = i - row * columns", "last = min(columns, first + stop - i)")
        self._row_offsets()
        self._row_values(0)
        self._run("first", "last", "row * columns", self._all_sinks())
        self.out.add("i += last - first")
        self.out.close()

    def _walk_rows(self) -> None:
        self.out.open("for row in range(start // columns, stop // columns):")
        self._row_offsets()
        for phase in range(max(self.values.phase, default=0) + 1):
            self._row_values(phase)
            self._along_row(phase)
        sinks = [number for number in self._all_sinks() if self.program.sinks[number].op != "row_store"]
        if sinks:
            self._run("0", "columns", "row * columns", sinks)
        for number, sink in enumerate(self.program.sinks):
            if sink.op == "row_store":
                self.out.add(f"store_{sink.type}(out{number}, row, v{sink.args[0]})")
        self.out.close()

    def _row_offsets(self) -> None:
        leaves = range(len(self.program.leaves))
        self.out.add("rest = row", *(f"row_offset{number} = np.int64(0)" for number in leaves))
        self.out.open("for axis in range(outer_axes - 1, -1, -1):")
        self.out.add(
            f"size = peek_i64(a, {self.slots.variable} + axis)", "above = rest // size", "place = rest - above * size"
        )
        self.out.add("rest = above")
        for number, leaf in enumerate(self.program.leaves):
            place = "place"
            if leaf.gather:
                rows, axis = self._slot(f"leaf{number}.rows"), self._slot(f"leaf{number}.axis")
                self.out.add(f"place{number} = peek_i64({rows}, place) if axis == {axis} else place")
                place = f"place{number}"
            stride = f"peek_i64(a, {self.slots.variable} + outer_axes * {number + 1} + axis)"
            self.out.add(f"row_offset{number} += {place} * {stride}")
        self.out.close()

    def _row_values(self, phase: int) -> None:
        """Values that are the same along the row and known from this phase on."""
        for number, known_in in enumerate(self.values.phase):
            is_row_op = number >= self.first_body and self.program.body[number - self.first_body].op in ROW_OPS
            is_scalar = self.first_scalar <= number < self.first_body
            if known_in == phase and not self.values.per_element[number] and not is_scalar and not is_row_op:
                self.out.add(f"v{number} = {self.values.text(number, '0')}")

    def _along_row(self, phase: int) -> None:
        """The walk over a row that finishes what this phase's reductions and ranks need."""
        ready = [
            (number, instruction)
            for number, instruction in enumerate(self.program.body, self.first_body)
            if self.values.phase[number] == phase + 1 and (instruction.op in ROW_OPS or instruction.op in RANK_OPS)
        ]
        if not ready:
            return
        reductions = [(n, Sink(i.op.removeprefix("row_"), i.type, i.args)) for n, i in ready if i.op in ROW_OPS]
        for number, sink in reductions:
            self.tiles.start(f"row_total{number}", sink)
        ranks = [number for number, i in ready if i.op in RANK_OPS]
        roots = tuple(arg for _, instruction in ready for arg in instruction.args)
        self._tile_loop(roots, reductions, ranks)
        for number, sink in reductions:
            result = f"row_total{number}_place" if sink.op == "argmax" else f"row_total{number}"
            self.out.add(f"v{number} = {literal_cast(result, self.types[number])}")
        tests = {test.rank: number for number, test in self.values.tests.items()}
        for number in ranks:
            if number in tests:
                self._decide(tests[number])
                continue
            instruction = self.program.body[number - self.first_body]
            descending = instruction.op == "rank_descending"
            keys = KEYS_OF[tile_type(self.types[instruction.args[0]])]
            self.out.add(f"rank_row_{keys}({self.values.rank_buffer(number)}, columns, {descending})")

    def _tile_loop(self, roots: tuple[int, ...], reductions: list[tuple[int, Sink]], ranks: list[int]) -> None:
        def fill() -> None:
            filled: set[str] = set()
            for _, sink in reductions:
                self.tiles.fill(sink, filled)
            for number in ranks:
                self._put_key(number)

        all_direct = not ranks and all(self.tiles.is_direct(sink) for _, sink in reductions)
        self._open_tiles("0", "columns", roots, all_direct, fill)
        self.tiles.reduce([(f"row_total{number}", sink) for number, sink in reductions], "tile_start")
        self.out.close()

    def _put_key(self, rank: int) -> None:
        """Put the key of an element where its rank, or a comparison with it, will be found."""
        instruction = self.program.body[rank - self.first_body]
        buffer = self.values.rank_buffer(rank)
        key = f"key_of_{tile_type(self.types[instruction.args[0]])}(v{instruction.args[0]})"
        tests = [test for test in self.values.tests.values() if test.rank == rank]
        if not tests:
            self.out.add(f"poke_i64({buffer}, column, np.int64({key}))")
            return
        key = f"np.int32(~{key})" if instruction.op == "rank_descending" else key
        self.out.add(f"store_i32({tests[0].keys_text(buffer)}, column, {key})")

    def _decide(self, number: int) -> None:
        """A comparison with a rank: at the bounds of the rank, and at the rank itself where these differ."""
        test = self.values.tests[number]
        buffer = self.values.rank_buffer(test.rank)
        outcomes = test.outcomes_text(buffer)
        self.out.open(f"if rank_bounds_i32({buffer}, columns):")

        def at_bounds() -> None:
            self.out.add(f"bounds = np.uint32(peek_i32({outcomes}, j))")
            self._test(number, "np.int32(bounds & np.uint32(0xFFFF))")
            self.out.add(f"at_lowest = v{number}")
            self._test(number, "np.int32(np.uint32(bounds >> np.uint32(16)))")
            self.out.add(f"poke_i32({outcomes}, j, np.int32(np.int32(at_lowest) + 2 * np.int32(v{number})))")

        self.loops.write("0", "columns", "0", (test.other,), at_bounds)
        self.out.add(f"column = next_undecided({outcomes}, 0, columns)")
        self.out.open("while column < columns:")
        needed = self.values.needed((test.other,), per_element=True)
        self.out.add(*(f"v{each} = {self.values.text(each, 'column')}" for each in needed))
        self._test(number, f"rank_among_i32({test.keys_text(buffer)}, columns, column)")
        self.out.add(f"poke_i32({outcomes}, column, np.int32(3) if v{number} else np.int32(0))")
        self.out.add(f"column = next_undecided({outcomes}, column + 1, columns)")
        self.out.close()
        self.out.close()
        self.out.open("else:")

        def at_rank() -> None:
            self._test(number, f"np.int32({self.values.text(test.rank, 'j')})")
            self.out.add(f"poke_i32({outcomes}, j, np.int32(v{number}))")

        self.loops.write("0", "columns", "0", (test.other,), at_rank)
        self.out.close()

    def _test(self, number: int, rank: str) -> None:
        test = self.values.tests[number]
        self.out.add(f"v{test.rank} = {rank}")
        self.out.add(*(f"v{step} = {self.values.step_text(step)}" for step in test.steps))

    def _all_sinks(self) -> list[int]:
        return list(range(len(self.program.sinks)))

    def _open_tiles(
        self, first: str, last: str, roots: tuple[int, ...], all_direct: bool, fill: Callable[[], None]
    ) -> None:
        """The loop over tiles, with the one that fills a tile; a whole tile that nobody fills is skipped."""
        self.out.open(f"for tile_start in range({first}, {last}, {TILE}):")
        self.out.add(f"count = min({TILE}, {last} - tile_start)")
        filled = f"(count if count < {TILE} else 0)" if all_direct else "count"
        self.loops.write("0", filled, "tile_start", roots, fill)

    def _run(self, first: str, last: str, row_start: str, sinks: list[int]) -> None:
        """The innermost loop: evaluate the elements and feed the sinks."""
        chosen = [(number, self.program.sinks[number]) for number in sinks]
        tiled = [(number, sink) for number, sink in chosen if sink.op in TILED_SINKS]
        roots = tuple(arg for _, sink in chosen for arg in sink.args)
        index = "column" if row_start == "0" else f"{row_start} + column"

        def feed() -> None:
            for number, sink in chosen:
                if sink.op == "store":
                    self.out.add(f"store_{sink.type}(out{number}, {index}, v{sink.args[0]})")
            filled: set[str] = set()
            for _, sink in tiled:
                self.tiles.fill(sink, filled)

        def elements(begin: str, end: str) -> None:
            left = write_pairs(self.out, self.values, begin, end)
            self.loops.write(left, end, "0", roots, feed)

        if self.slots.can_stream:
            write_pieces(self.out, self._slot("is_streamed"), chosen[0][1], elements)
            return
        if not tiled:
            elements(first, last)
            return
        self._open_tiles(first, last, roots, all(self.tiles.is_direct(sink) for _, sink in chosen), feed)
        begin = "tile_start" if row_start == "0" else f"{row_start} + tile_start"
        reductions = [(f"total{number}", sink) for number, sink in tiled if sink.op in BLOCK_REDUCTIONS]
        self.tiles.reduce(reductions, begin)
        for number, sink in tiled:
            if sink.op not in BLOCK_REDUCTIONS:
                self.tiles.select(number, sink, begin)
        self.out.close()


def kernel_source(program: Program) -> str:
    """The source of a function ``kernel(a, f, lo, hi)``; see Slots for its arguments."""
    return _Kernel(program._replace(sinks=tuple(rounded_once(program, sink) for sink in program.sinks))).text()
