"""The source of what a pass does with its tiles: fill them element by element, then reduce or select them whole."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.devices.cpu.codegen.lines import SourceLines
from lbrx.devices.cpu.codegen.registers import literal_cast
from lbrx.devices.cpu.codegen.slots import SINK_SLOTS, Slots
from lbrx.devices.cpu.codegen.values import Values
from lbrx.engine.block_sizes import LANES, TILE
from lbrx.engine.program import FLAT, Program, Sink, tile_type
from lbrx.tensors.dtype import DTYPES

KEYS_OF = {"f32": "i32", "i32": "i32", "f64": "i64", "i64": "i64"}  # sortable keys of a tile's elements
_SUMS = frozenset({"sum", "sumsq", "dot"})
_DIRECT = _SUMS | {"min", "max", "argmax", "collect"}
Reduction = tuple[str, Sink]  # with the name of the variable that holds its result


class TileSinks:
    """Writes the lines that feed and read the tiles of a program's sinks and row reductions."""

    def __init__(self, program: Program, values: Values, slots: Slots, out: SourceLines) -> None:
        self.program, self.slots, self.out = program, slots, out
        self.types, self.first_scalar = values.types, values.first_scalar
        self.tiles: dict[str, str] = {}  # the element type of each

    def start(self, name: str, sink: Sink) -> None:
        """Begin a reduction whose result the variable ``name`` will hold."""
        zero = "0.0" if self.types[sink.args[0]] in ("f32", "f64") else "np.int64(0)"
        self.out.add(f"{name} = {zero}")
        if sink.op not in _SUMS:
            self.out.add(f"{name}_empty = True")
        if sink.op == "argmax":
            self.out.add(f"{name}_place = np.int64(0)")

    def is_direct(self, sink: Sink) -> bool:
        """Whether a reduction takes its inputs as they lie in memory: a whole tile of them needs no tile."""
        if sink.op not in _DIRECT or any(arg >= self.first_scalar for arg in sink.args):
            return False
        leaves = [self.program.leaves[arg] for arg in sink.args]
        dtypes = {leaf.dtype for leaf in leaves}
        if not all(leaf.origin == "source" and leaf.step == "unit" for leaf in leaves):
            return False
        if sink.op in ("collect", "argmax"):
            return dtypes == {"f32"}
        return dtypes in ({"f32"}, {"f64"}, {"f16"}, {"bf16"}, {"i32"}, {"i64"})

    def fill(self, sink: Sink, filled: set[str]) -> None:
        """Put an element into the tiles of a sink; sinks of one argument and purpose share a tile."""
        for arg in sink.args:
            type_name = tile_type(self.types[arg])
            tile = _tile_name(sink, arg)
            self.tiles[tile] = type_name
            if tile in filled:
                continue
            filled.add(tile)
            value = f"v{arg}"
            if sink.op == "histogram" or (sink.op == "collect" and type_name != "f32"):
                value = f"key_of_{type_name}({value})"
                type_name = KEYS_OF[type_name]
            elif type_name != self.types[arg]:
                value = literal_cast(value, type_name)
            self.out.add(f"store_{type_name}({tile}, j, {value})")

    def reduce(self, reductions: Sequence[Reduction], begin: str) -> None:
        """Reduce the tiles that begin at the element ``begin``; the three products of two tiles are summed together."""
        left = list(reductions)
        while left:
            name, sink = left[0]
            triple = self._products_of_two(sink, left)
            if triple is not None:
                self._reduce_pair(triple)
                left = [each for each in left if each not in triple]
                continue
            self._reduce_one(name, sink, begin)
            left = left[1:]

    def _products_of_two(self, sink: Sink, reductions: Sequence[Reduction]) -> list[Reduction] | None:
        """The sums of a*a, a*b and b*b among reductions, of which ``sink`` is one; None if they are not all there."""
        if sink.op != "dot" or tile_type(self.types[sink.args[0]]) != "f32":
            return None
        products = {frozenset(each.args): (name, each) for name, each in reversed(reductions) if each.op == "dot"}
        for args in products:
            if len(args) == 2 and args >= set(sink.args):
                first, second = products[args][1].args
                wanted = [frozenset({first}), args, frozenset({second})]
                triple = [products[each] for each in wanted if each in products]
                if len(triple) == len(wanted) and len({self.is_direct(each) for _, each in triple}) == 1:
                    return triple
        return None

    def _reduce_pair(self, triple: list[Reduction]) -> None:
        sink = triple[1][1]
        self._parts("pair", sink)
        self.out.add(*(f"{name} += part[{index}]" for index, (name, _) in enumerate(triple)))

    def _parts(self, operation: str, sink: Sink) -> str:
        """Fill up the last row of lanes and reduce the tiles of a sink to ``part``; returns where the values are."""
        type_name = tile_type(self.types[sink.args[0]])
        tiles = [_tile_name(sink, arg) for arg in sink.args]
        filler = literal_cast("0", type_name) if sink.op in _SUMS else f"peek_{type_name}({tiles[0]}, 0)"
        self.out.add(f"vectors = (count + {LANES - 1}) // {LANES}")
        self.out.open(f"for j in range(count, vectors * {LANES}):")
        self.out.add(*(f"store_{type_name}({tile}, j, {filler})" for tile in tiles))
        self.out.close()
        by_tile = f"tile_{operation}_{type_name}({tiles[0]}, {tiles[-1]}, vectors)"
        if not self.is_direct(sink):
            self.out.add(f"part = {by_tile}")
            return tiles[0]
        first, last = self._direct_address(sink.args[0]), self._direct_address(sink.args[-1])
        memory = self.program.leaves[sink.args[0]].dtype
        whole = f"tile_{operation}_{memory}({first}, {last}, {TILE // LANES})"
        self.out.add(f"part = {whole} if count == {TILE} else {by_tile}")
        return f"({first} if count == {TILE} else {tiles[0]})"

    def _reduce_one(self, total: str, sink: Sink, begin: str) -> None:
        values = self._parts("max" if sink.op == "argmax" else sink.op, sink)
        if sink.op in _SUMS:
            self.out.add(f"{total} += part")
            return
        type_name = tile_type(self.types[sink.args[0]])
        better = "<" if sink.op == "min" else ">"
        self.out.open(f"if {total}_empty or part {better} {total} or (part != part and {total} == {total}):")
        self.out.add(f"{total} = part", f"{total}_empty = False")
        if sink.op == "argmax" and type_name == "f32":
            self.out.add(f"{total}_place = {begin} + first_largest_f32({values}, np.float32(part))")
        elif sink.op == "argmax":
            self._find_part(type_name, values)
            self.out.add(f"{total}_place = {begin} + j")
        self.out.close()

    def _find_part(self, type_name: str, tile: str) -> None:
        """The first index ``j`` of a tile at which ``part`` lies."""
        self.out.add("j = 0")
        self.out.open("while True:")
        self.out.add(f"candidate = peek_{type_name}({tile}, j)")
        self.out.open("if candidate == part or (candidate != candidate and part != part):")
        self.out.add("break")
        self.out.close()
        self.out.add("j += 1")
        self.out.close()

    def select(self, number: int, sink: Sink, begin: str) -> None:
        """Count or collect the elements of a tile for a selection."""
        type_name = tile_type(self.types[sink.args[0]])
        keys = KEYS_OF[type_name]
        tile = _tile_name(sink, sink.args[0])
        slots = [self.slots[f"sink{number}.{part}"] for part in SINK_SLOTS[sink.op]]
        arguments = ", ".join(f"peek_i64(a, {slot})" for slot in slots)
        if sink.op == "histogram":
            self.out.add(f"histogram_{keys}({tile}, count, {arguments})")
            return
        if self.is_direct(sink):
            self.out.add(f"values = {self._direct_address(sink.args[0])} if count == {TILE} else {tile}")
            tile = "values"
        form = "f32" if type_name == "f32" else keys
        self.out.add(f"collect_{form}({tile}, count, {begin}, {arguments})")

    def _direct_address(self, arg: int) -> str:
        item = DTYPES[self.program.leaves[arg].dtype].itemsize
        offset = "tile_start" if self.program.mode == FLAT else f"(row_offset{arg} + tile_start)"
        return f"base{arg} + {item} * {offset}"


def _tile_name(sink: Sink, arg: int) -> str:
    if sink.op in ("histogram", "collect"):
        return f"tile{arg}_{sink.op}"
    purpose = "sum" if sink.op in _SUMS else "pick"
    return f"tile{arg}_{purpose}"
