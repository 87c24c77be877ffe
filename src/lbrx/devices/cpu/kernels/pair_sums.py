"""The sums of a*a, a*b and b*b over two tiles in one loop, which widens every value once.

Each of the three is what ``tile_dot`` gives for it, bit for bit: the same lanes, added in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lbrx.devices.cpu.simd.elements import DOUBLE, FLOAT, I32, I64
from lbrx.devices.cpu.simd.tiles import IN_TILES, Aside, Builder, Value, add_product, prefetch, reduced_lanes
from lbrx.engine.block_sizes import LANES

_TUPLE: Any = types.UniTuple
_PRODUCTS = ((0, 0), (0, 1), (1, 1))
_PARTS = 4  # of a row of lanes: one after the other, its products need few registers besides the sums
_PART = LANES // _PARTS
_WIDE_PART = ir.VectorType(DOUBLE, _PART)


def _widened_part(builder: Builder, address: Value, index: Value, part: int) -> Value:
    narrow = ir.VectorType(FLOAT, _PART)
    place = builder.add(builder.mul(index, ir.Constant(I64, _PARTS)), ir.Constant(I64, part))
    pointer = builder.gep(builder.inttoptr(address, narrow.as_pointer()), [place])
    return builder.fpext(builder.load(pointer, align=1), _WIDE_PART)


def _joined(builder: Builder, parts: Sequence[Value]) -> Value:
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, right = _joined(builder, parts[:half]), _joined(builder, parts[half:])
    order = list(range(2 * left.type.count))
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(I32, len(order)), order))


def _make_pair_sums(memory: str) -> Any:
    """``tile_pair_<memory>(first, second, vectors)``: three f64, over 1 row of lanes to a whole tile of them."""
    is_put_aside = memory in IN_TILES

    def products(builder: Builder, addresses: Sequence[Value], index: Value, totals: Sequence[Value]) -> list[Value]:
        """The sums with a row of lanes added, or its products where there are no sums yet: part by part, three each."""
        grown = []
        for part in range(_PARTS):
            values = [_widened_part(builder, address, index, part) for address in addresses]
            for number, (left, right) in enumerate(_PRODUCTS):
                factors = values[left], values[right]
                total = totals[part * len(_PRODUCTS) + number] if totals else None
                grown.append(builder.fmul(*factors) if total is None else add_product(builder, total, *factors))
        return grown

    def reduce(_context: Any, first: Any, second: Any, vectors: Any) -> Any:
        result = _TUPLE(types.float64, len(_PRODUCTS))

        def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
            inputs, count = list(args[:2]), args[2]
            zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
            aside = [Aside(builder, base, count, memory) for base in inputs] if is_put_aside else []
            addresses = [each.address for each in aside] or inputs
            starts = products(builder, addresses, zero, [])
            entry = builder.block
            header, loop, end = (builder.append_basic_block(name) for name in ("pair.next", "pair.loop", "pair.end"))
            builder.branch(header)
            builder.position_at_end(header)
            index = builder.phi(I64)
            totals = [builder.phi(_WIDE_PART) for _ in starts]
            builder.cbranch(builder.icmp_signed("<", index, count), loop, end)
            builder.position_at_end(loop)
            for base in inputs if is_put_aside else ():
                prefetch(builder, base, index, memory)
            for each in aside:
                each.fill(builder, index)
            grown = products(builder, addresses, index, totals)
            following = builder.add(index, one)
            builder.branch(header)
            for phi, before, after in zip((index, *totals), (one, *starts), (following, *grown), strict=True):
                phi.add_incoming(before, entry)
                phi.add_incoming(after, loop)
            builder.position_at_end(end)
            rows = [_joined(builder, totals[number :: len(_PRODUCTS)]) for number in range(len(_PRODUCTS))]
            sums = [reduced_lanes(builder, "dot", "f32", row) for row in rows]
            return target.make_tuple(builder, result, sums)

        return result(types.int64, types.int64, types.int64), generate

    reduce.__name__ = f"tile_pair_{memory}"
    return intrinsic(reduce)


PAIR_FUNCTIONS: dict[str, Any] = {f"tile_pair_{memory}": _make_pair_sums(memory) for memory in ("f32", *IN_TILES)}
