"""From a Program to the Python source of a kernel that Numba compiles.

The kernel walks elements ``lo`` to ``hi`` of the pass's space. Reductions go through tiles on the stack (see
tiles.py) and are handed out per block of elements, so that they do not depend on where chunks begin.
"""

from __future__ import annotations

from lbrx.devices.cpu.constants import LANES, RANK_RESULT_RUN, TILE, rank_buffer_bytes
from lbrx.devices.cpu.lines import SourceLines
from lbrx.devices.cpu.registers import cast_text, literal_cast, operation_text, register_type, tile_type
from lbrx.devices.cpu.slots import SINK_SLOTS, Slots
from lbrx.dtypes import DTYPES
from lbrx.passes import BLOCK_REDUCTIONS, FLAT, RANK_OPS, ROW_OPS, ROWS, TILED_SINKS, Program, Sink

_TILE_BYTES = {"f32": 4, "i32": 4, "f64": 8, "i64": 8}
_SUMS = frozenset({"sum", "sumsq", "dot"})
_KEYS_OF = {"f32": "i32", "i32": "i32", "f64": "i64", "i64": "i64"}  # sortable keys of a tile's elements
_DIRECT = _SUMS | {"min", "max", "collect"}


def _tile_name(sink: Sink, arg: int) -> str:
    if sink.kind in ("histogram", "collect"):
        return f"tile{arg}_{sink.kind}"
    purpose = "sum" if sink.kind in _SUMS else "pick"
    return f"tile{arg}_{purpose}"


class _Kernel:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots = Slots(program)
        self.out = SourceLines()
        self.types = [register_type(name) for name in program.value_types()]
        self.first_scalar = len(program.leaves)
        self.first_body = self.first_scalar + len(program.scalars)
        self.phase, self.per_element = self._phases()
        self.reductions = [i for i, sink in enumerate(program.sinks) if sink.kind in BLOCK_REDUCTIONS]
        self.tiles: dict[str, str] = {}

    def _phases(self) -> tuple[list[int], list[bool]]:
        """For every value: in which walk over the row it is first known, and whether it differs along the row."""
        phase: list[int] = []
        per_element: list[bool] = []
        for leaf in self.program.leaves:
            phase.append(0)
            per_element.append(leaf.step != "zero")
        for _ in self.program.scalars:
            phase.append(0)
            per_element.append(False)
        for instruction in self.program.body:
            latest = max((phase[arg] for arg in instruction.args), default=0)
            along_row = instruction.op in ROW_OPS or instruction.op in RANK_OPS
            phase.append(latest + 1 if along_row else latest)
            per_element.append(
                instruction.op not in ROW_OPS
                and (instruction.op in RANK_OPS or any(per_element[arg] for arg in instruction.args))
            )
        return phase, per_element

    def _slot(self, name: str) -> str:
        return f"peek_i64(a, {self.slots[name]})"

    def _leaf_text(self, number: int, column: str) -> str:
        leaf = self.program.leaves[number]
        column = {"unit": column, "zero": "0", "any": f"{column} * stride{number}"}[leaf.step]
        place = column if self.program.mode == FLAT else f"row_offset{number} + {column}"
        if leaf.kind != "source" or leaf.dtype in ("i4", "i2"):
            place = f"offset{number} + {place}"
        if leaf.kind == "index":
            return f"np.int64({place})"
        if leaf.kind in ("uniform", "normal"):
            return f"{leaf.kind}_f32(key0_{number}, key1_{number}, {place})"
        return f"load_{leaf.dtype}(base{number}, {place})"

    def _value_text(self, number: int, column: str) -> str:
        if number < self.first_scalar:
            return self._leaf_text(number, column)
        instruction = self.program.body[number - self.first_body]
        args = [f"v{arg}" for arg in instruction.args]
        if instruction.op == "cast":
            return cast_text(args[0], self.types[instruction.args[0]], instruction.type)
        if instruction.op in RANK_OPS:
            return f"peek_i64(rank_buffer + {self._rank_place(number)} + {8 * RANK_RESULT_RUN} * columns, {column})"
        arg_types = [self.types[arg] for arg in instruction.args]
        return operation_text(instruction.op, self.types[number], args, arg_types)

    def _rank_place(self, number: int) -> str:
        ranks = [n for n, i in enumerate(self.program.body, self.first_body) if i.op in RANK_OPS]
        return f"{ranks.index(number)} * rank_bytes" if len(ranks) > 1 else "0"

    def _needed(self, roots: tuple[int, ...], per_element: bool) -> list[int]:
        """The values (element-wise ones or the others) that the roots are made from, in order."""
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number in wanted or self.per_element[number] != per_element:
                continue
            wanted.add(number)
            if number >= self.first_body:
                instruction = self.program.body[number - self.first_body]
                if instruction.op not in RANK_OPS:
                    stack += instruction.args
        return sorted(wanted)

    def text(self) -> str:
        self.out.open("def kernel(a, f, lo, hi):")
        self._unpack()
        body_at = len(self.out.lines)
        if self.program.mode == ROWS:
            self._walk_blocks(self._walk_rows)
        else:
            self._walk_blocks(self._walk_segments)
        tiles = [f"    {name} = stack_bytes({_TILE_BYTES[kind] * TILE})" for name, kind in self.tiles.items()]
        self.out.lines[body_at:body_at] = tiles
        return "\n".join(self.out.lines) + "\n"

    def _unpack(self) -> None:
        for number, leaf in enumerate(self.program.leaves):
            if leaf.kind == "source":
                self.out.add(f"base{number} = {self._slot(f'leaf{number}.address')}")
            if leaf.kind != "source" or leaf.dtype in ("i4", "i2"):
                self.out.add(f"offset{number} = {self._slot(f'leaf{number}.offset')}")
            if leaf.kind in ("uniform", "normal"):
                for key in ("key0", "key1"):
                    self.out.add(f"{key}_{number} = np.uint32({self._slot(f'leaf{number}.{key}')})")
            if leaf.step == "any":
                self.out.add(f"stride{number} = {self._slot(f'leaf{number}.stride')}")
        for number, kind in enumerate(self.program.scalars):
            text = (
                f"peek_f64(f, {self.slots.floats[number]})" if kind in ("f32", "f64") else self._slot(f"scalar{number}")
            )
            self.out.add(f"v{self.first_scalar + number} = {literal_cast(text, register_type(kind))}")
        for number, sink in enumerate(self.program.sinks):
            if sink.kind in ("store", "row_store"):
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
            self.out.add(*self._start_reduction(f"total{number}", self.program.sinks[number]))
        walk()
        for number in self.reductions:
            self._hand_out(number)
        self.out.add("start = stop")
        self.out.close()

    def _start_reduction(self, name: str, sink: Sink) -> list[str]:
        zero = "0.0" if self.types[sink.args[0]] in ("f32", "f64") else "np.int64(0)"
        if sink.kind in _SUMS:
            return [f"{name} = {zero}"]
        lines = [f"{name} = {zero}", f"{name}_empty = True"]
        return [*lines, f"{name}_place = np.int64(0)"] if sink.kind == "argmax" else lines

    def _hand_out(self, number: int) -> None:
        kind = "f64" if self.types[self.program.sinks[number].args[0]] in ("f32", "f64") else "i64"
        self.out.add(f"poke_{kind}({self._slot(f'sink{number}.partials')}, start // block, total{number})")
        if self.program.sinks[number].kind == "argmax":
            self.out.add(f"poke_i64({self._slot(f'sink{number}.places')}, start // block, total{number}_place)")

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
        for phase in range(max(self.phase, default=0) + 1):
            self._row_values(phase)
            self._along_row(phase)
        sinks = [number for number in self._all_sinks() if self.program.sinks[number].kind != "row_store"]
        if sinks:
            self._run("0", "columns", "row * columns", sinks)
        for number, sink in enumerate(self.program.sinks):
            if sink.kind == "row_store":
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
        for number, kind in enumerate(self.phase):
            is_row_op = number >= self.first_body and self.program.body[number - self.first_body].op in ROW_OPS
            is_scalar = self.first_scalar <= number < self.first_body
            if kind == phase and not self.per_element[number] and not is_scalar and not is_row_op:
                self.out.add(f"v{number} = {self._value_text(number, '0')}")

    def _along_row(self, phase: int) -> None:
        """The walk over a row that finishes what this phase's reductions and ranks need."""
        ready = [
            (number, instruction)
            for number, instruction in enumerate(self.program.body, self.first_body)
            if self.phase[number] == phase + 1 and (instruction.op in ROW_OPS or instruction.op in RANK_OPS)
        ]
        if not ready:
            return
        reductions = [(n, Sink(i.op.removeprefix("row_"), i.type, i.args)) for n, i in ready if i.op in ROW_OPS]
        for number, sink in reductions:
            self.out.add(*self._start_reduction(f"row_total{number}", sink))
        ranks = [(number, i) for number, i in ready if i.op in RANK_OPS]
        roots = tuple(arg for _, instruction in ready for arg in instruction.args)
        self._tile_loop("0", "columns", roots, reductions, ranks)
        for number, sink in reductions:
            result = f"row_total{number}_place" if sink.kind == "argmax" else f"row_total{number}"
            self.out.add(f"v{number} = {literal_cast(result, self.types[number])}")
        for number, instruction in ranks:
            descending = instruction.op == "rank_descending"
            keys = _KEYS_OF[tile_type(self.types[instruction.args[0]])]
            self.out.add(f"rank_row_{keys}(rank_buffer + {self._rank_place(number)}, columns, {descending})")

    def _tile_loop(self, first: str, last: str, roots: tuple[int, ...], reductions: list, ranks: list) -> None:  # type: ignore[type-arg]
        self._open_tiles(first, last, not ranks and all(self._is_direct(sink) for _, sink in reductions))
        for number in self._needed(roots, per_element=True):
            self.out.add(f"v{number} = {self._value_text(number, 'column')}")
        filled: set[str] = set()
        for _, sink in reductions:
            self._fill_tiles(sink, filled)
        for number, instruction in ranks:
            value = f"v{instruction.args[0]}"
            key = tile_type(self.types[instruction.args[0]])
            buffer = f"rank_buffer + {self._rank_place(number)}"
            self.out.add(f"poke_i64({buffer}, column, np.int64(key_of_{key}({value})))")
        self.out.close()
        for number, sink in reductions:
            self._reduce_tiles(f"row_total{number}", sink, "tile_start")
        self.out.close()

    def _all_sinks(self) -> list[int]:
        return list(range(len(self.program.sinks)))

    def _open_tiles(self, first: str, last: str, all_direct: bool) -> None:
        """The loop over tiles and the loop within one, which is skipped for a whole tile that nobody fills."""
        self.out.open(f"for tile_start in range({first}, {last}, {TILE}):")
        self.out.add(f"count = min({TILE}, {last} - tile_start)")
        self.out.open(f"for j in range(count if count < {TILE} else 0):" if all_direct else "for j in range(count):")
        self.out.add("column = tile_start + j")

    def _run(self, first: str, last: str, row_start: str, sinks: list[int]) -> None:
        """The innermost loop: evaluate the elements and feed the sinks."""
        chosen = [(number, self.program.sinks[number]) for number in sinks]
        tiled = [(number, sink) for number, sink in chosen if sink.kind in TILED_SINKS]
        if tiled:
            self._open_tiles(first, last, all(self._is_direct(sink) for _, sink in chosen))
        else:
            self.out.open(f"for column in range({first}, {last}):")
        roots = tuple(arg for _, sink in chosen for arg in sink.args)
        for number in self._needed(roots, per_element=True):
            self.out.add(f"v{number} = {self._value_text(number, 'column')}")
        place = "column" if row_start == "0" else f"{row_start} + column"
        for number, sink in chosen:
            if sink.kind == "store":
                self.out.add(f"store_{sink.type}(out{number}, {place}, v{sink.args[0]})")
        filled: set[str] = set()
        for _, sink in tiled:
            self._fill_tiles(sink, filled)
        self.out.close()
        if not tiled:
            return
        begin = "tile_start" if row_start == "0" else f"{row_start} + tile_start"
        for number, sink in tiled:
            if sink.kind in BLOCK_REDUCTIONS:
                self._reduce_tiles(f"total{number}", sink, begin)
            else:
                self._select_tile(number, sink, begin)
        self.out.close()

    def _is_direct(self, sink: Sink) -> bool:
        """Whether a reduction takes its inputs as they lie in memory: a whole tile of them needs no tile."""
        if sink.kind not in _DIRECT or any(arg >= self.first_scalar for arg in sink.args):
            return False
        leaves = [self.program.leaves[arg] for arg in sink.args]
        dtypes = {leaf.dtype for leaf in leaves}
        if not all(leaf.kind == "source" and leaf.step == "unit" for leaf in leaves):
            return False
        if sink.kind == "collect":
            return dtypes == {"f32"}
        return dtypes in ({"f32"}, {"f64"}, {"f16"}, {"bf16"}, {"i32"}, {"i64"})

    def _direct_address(self, arg: int) -> str:
        item = DTYPES[self.program.leaves[arg].dtype].itemsize
        place = "tile_start" if self.program.mode == FLAT else f"(row_offset{arg} + tile_start)"
        return f"base{arg} + {item} * {place}"

    def _fill_tiles(self, sink: Sink, filled: set[str]) -> None:
        """Put an element into the tiles of a sink; sinks of one argument and purpose share a tile."""
        for arg in sink.args:
            kind = tile_type(self.types[arg])
            tile = _tile_name(sink, arg)
            self.tiles[tile] = kind
            if tile in filled:
                continue
            filled.add(tile)
            value = f"v{arg}"
            if sink.kind == "histogram" or (sink.kind == "collect" and kind != "f32"):
                value = f"key_of_{kind}({value})"
                kind = _KEYS_OF[kind]
            elif kind != self.types[arg]:
                value = literal_cast(value, kind)
            self.out.add(f"store_{kind}({tile}, j, {value})")

    def _reduce_tiles(self, total: str, sink: Sink, begin: str) -> None:
        kind = tile_type(self.types[sink.args[0]])
        tiles = [_tile_name(sink, arg) for arg in sink.args]
        filler = literal_cast("0", kind) if sink.kind in _SUMS else f"peek_{kind}({tiles[0]}, 0)"
        self.out.add(f"vectors = (count + {LANES - 1}) // {LANES}")
        self.out.open(f"for j in range(count, vectors * {LANES}):")
        self.out.add(*(f"store_{kind}({tile}, j, {filler})" for tile in tiles))
        self.out.close()
        operation = "max" if sink.kind == "argmax" else sink.kind
        by_tile = f"tile_{operation}_{kind}({tiles[0]}, {tiles[-1]}, vectors)"
        if self._is_direct(sink):
            first, last = self._direct_address(sink.args[0]), self._direct_address(sink.args[-1])
            memory = self.program.leaves[sink.args[0]].dtype
            whole = f"tile_{operation}_{memory}({first}, {last}, {TILE // LANES})"
            self.out.add(f"part = {whole} if count == {TILE} else {by_tile}")
        else:
            self.out.add(f"part = {by_tile}")
        if sink.kind in _SUMS:
            self.out.add(f"{total} += part")
            return
        better = "<" if sink.kind == "min" else ">"
        self.out.open(f"if {total}_empty or part {better} {total} or (part != part and {total} == {total}):")
        self.out.add(f"{total} = part", f"{total}_empty = False")
        if sink.kind == "argmax":
            self.out.add("j = 0")
            self.out.open("while True:")
            self.out.add(f"candidate = peek_{kind}({tiles[0]}, j)")
            self.out.open("if candidate == part or (candidate != candidate and part != part):")
            self.out.add("break")
            self.out.close()
            self.out.add("j += 1")
            self.out.close()
            self.out.add(f"{total}_place = {begin} + j")
        self.out.close()

    def _select_tile(self, number: int, sink: Sink, begin: str) -> None:
        kind = tile_type(self.types[sink.args[0]])
        keys = _KEYS_OF[kind]
        tile = _tile_name(sink, sink.args[0])
        arguments = [self._slot(f"sink{number}.{part}") for part in SINK_SLOTS[sink.kind]]
        if sink.kind == "histogram":
            self.out.add(f"histogram_{keys}({tile}, count, {', '.join(arguments)})")
            return
        if self._is_direct(sink):
            self.out.add(f"values = {self._direct_address(sink.args[0])} if count == {TILE} else {tile}")
            tile = "values"
        form = "f32" if kind == "f32" else keys
        self.out.add(f"collect_{form}({tile}, count, {begin}, {', '.join(arguments)})")


def kernel_source(program: Program) -> str:
    """The source of a function ``kernel(a, f, lo, hi)``; see Slots for its arguments."""
    return _Kernel(program).text()
