"""Groups of eight blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0."""

from __future__ import annotations

from llvmlite import ir

from lbrx.devices.cpu.kernels.groups.group import HALVES_OF_32, NATURAL, Codes, Group
from lbrx.devices.cpu.kernels.groups.scales import gathered, make_halves_of_blocks
from lbrx.devices.cpu.simd.byte_codes import add_where, field, joined, load_bytes, spread_bits
from lbrx.devices.cpu.simd.instruction import I8, I32, Builder, Value


def nibbles_of_blocks(builder: Builder, stored: Value, step: int, block_bytes: int, at: int) -> tuple[Value, Value]:
    """Of four blocks, elements 0-15 in the low halves of their 16 bytes, and elements 16-31 in the high ones."""
    blocks = range(4 * step, 4 * step + 4)
    packed = joined(builder, [load_bytes(builder, stored, block_bytes * block + at, 16) for block in blocks])
    return field(builder, packed, 0, 15), field(builder, packed, 4, 15)


def _make_codes(block_bytes: int, fifth_at: int, nibbles_at: int) -> Codes:
    def codes(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
        halves = nibbles_of_blocks(builder, stored, step, block_bytes, nibbles_at)
        if nibbles_at == fifth_at:
            return halves
        offsets = [block_bytes * (4 * step + block) + fifth_at for block in range(4)]
        words = gathered(builder, stored, I32, offsets)
        fifth_bits = builder.bitcast(words, ir.VectorType(I8, 16))
        masks = (
            spread_bits(builder, fifth_bits, [4 * (i // 2) + 2 * half + i % 2 for i in range(8)]) for half in (0, 1)
        )
        return tuple(add_where(builder, mask, half, 16) for mask, half in zip(masks, halves, strict=True))

    return codes


def _make_group(bits: int, has_min: bool) -> Group:
    fifth_at = 4 if has_min else 2
    nibbles_at = fifth_at + (4 if bits == 5 else 0)
    block_bytes = nibbles_at + 16
    return Group(
        nbytes=8 * block_bytes,
        block_elements=32,
        codes=_make_codes(block_bytes, fifth_at, nibbles_at),
        order=HALVES_OF_32,
        scales=make_halves_of_blocks(block_bytes),
        lows=make_halves_of_blocks(block_bytes, at=2, factor=-1.0) if has_min else None,
        offset=0 if has_min else 1 << (bits - 1),
        vectors=2,
    )


def _q8_0(builder: Builder, stored: Value, step: int) -> tuple[Value, ...]:
    return (joined(builder, [load_bytes(builder, stored, 34 * block + 2, 32) for block in (2 * step, 2 * step + 1)]),)


Q4_0, Q4_1 = _make_group(4, has_min=False), _make_group(4, has_min=True)
Q5_0, Q5_1 = _make_group(5, has_min=False), _make_group(5, has_min=True)
Q8_0 = Group(8 * 34, 32, _q8_0, NATURAL, make_halves_of_blocks(34), is_signed=True)
