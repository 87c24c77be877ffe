"""The sums of a*a, a*b and b*b over two tiles in one loop, which widens every value once.

Each of the three is what ``tile_dot`` gives for it, bit for bit: the same lanes, added in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.tile_reductions import (
    IN_TILES,
    Aside,
    add_product,
    loop_over_rows,
    prefetch,
    reduced_lanes,
)
from lbrx.devices.cpu.simd.emit import pointer, shuffled
from lbrx.devices.cpu.simd.instruction import DOUBLE, FLOAT, I64, Builder, Value, instruction
from lbrx.engine.block_sizes import LANES

_TUPLE: Any = types.UniTuple
_PRODUCTS = ((0, 0), (0, 1), (1, 1))
_PARTS = 4  # of a row of lanes: one after the other, its products need few registers besides the sums
_PART = LANES // _PARTS
_WIDE_PART = ir.VectorType(DOUBLE, _PART)


def _widened_part(builder: Builder, address: Value, index: Value, part: int) -> Value:
    number = builder.add(builder.mul(index, ir.Constant(I64, _PARTS)), ir.Constant(I64, part))
    narrow = builder.load(pointer(builder, address, ir.VectorType(FLOAT, _PART), number), align=1)
    return builder.fpext(narrow, _WIDE_PART)


def _joined(builder: Builder, parts: Sequence[Value]) -> Value:
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, right = _joined(builder, parts[:half]), _joined(builder, parts[half:])
    return shuffled(builder, left, right, range(2 * left.type.count))


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

    @instruction(_TUPLE(types.float64, len(_PRODUCTS))(types.int64, types.int64, types.int64))
    def reduce(builder: Builder, first: Value, second: Value, rows: Value) -> Value:
        inputs = first, second
        aside = [Aside(builder, base, rows, memory) for base in inputs] if is_put_aside else []
        addresses = [each.address for each in aside] or inputs

        def step(index: Value, totals: Sequence[Value]) -> Sequence[Value]:
            for base in inputs if is_put_aside else ():
                prefetch(builder, base, index, memory)
            for each in aside:
                each.fill(builder, index)
            return products(builder, addresses, index, totals)

        starts = products(builder, addresses, ir.Constant(I64, 0), [])
        totals = loop_over_rows(builder, rows, starts, step)
        rows_of_sums = [_joined(builder, totals[number :: len(_PRODUCTS)]) for number in range(len(_PRODUCTS))]
        sums = [reduced_lanes(builder, "dot", "f32", row) for row in rows_of_sums]
        result = ir.Constant(ir.ArrayType(DOUBLE, len(sums)), ir.Undefined)
        for number, value in enumerate(sums):
            result = builder.insert_value(result, value, number)
        return result

    return reduce


PAIR_FUNCTIONS: dict[str, Any] = {f"tile_pair_{memory}": _make_pair_sums(memory) for memory in ("f32", *IN_TILES)}
