"""The positions of codes in blocks, for types whose values are a level of each code times scales stored apart."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CodeBits:
    """``positions`` [elements, bits] are numbers of bits in a block, the lowest bit of a code first.

    A bit of ``flipped`` is stored inverted. With ``is_table``, levels are those of IQ4_NL; else their steps are equal.
    """

    positions: Positions
    flipped: int = 0
    is_table: bool = False

    @property
    def top(self) -> int:
        """The highest code."""
        return int(2 ** self.positions.shape[1] - 1)

    def put(self, blocks: Bytes, codes: Bytes) -> None:
        """Replace the codes in blocks [count, bytes] by codes [count, elements].

        >>> block = np.zeros((1, 18), np.uint8)
        >>> code_bits("q4_0").put(block, np.full((1, 32), 9, np.uint8))
        >>> block[0, :3].tolist()
        [0, 0, 153]
        """
        given = codes ^ np.uint8(self.flipped)
        bits = np.unpackbits(blocks, axis=1, bitorder="little")
        for number in range(self.positions.shape[1]):
            bits[:, self.positions[:, number]] = (given >> np.uint8(number)) & np.uint8(1)
        blocks[:] = np.packbits(bits, axis=1, bitorder="little")

    def read(self, blocks: Bytes) -> Bytes:
        """Return the codes [count, elements] of blocks [count, bytes].

        >>> block = np.zeros((1, 18), np.uint8)
        >>> code_bits("q4_0").put(block, np.arange(32, dtype=np.uint8)[None] % 16)
        >>> code_bits("q4_0").read(block)[0, :3].tolist()
        [0, 1, 2]
        """
        bits = np.unpackbits(blocks, axis=1, bitorder="little")
        codes = np.zeros((len(blocks), len(self.positions)), np.uint8)
        for number in range(self.positions.shape[1]):
            codes |= bits[:, self.positions[:, number]] << np.uint8(number)
        return codes ^ np.uint8(self.flipped)


def bytes_from(first_byte: int, count: int) -> Positions:
    """Numbers of eight bits, one after the other."""
    return 8 * (first_byte + np.arange(count))[:, None] + np.arange(8)


def nibbles_from(first_byte: int, count: int) -> Positions:
    """Numbers of four bits, one after the other."""
    return (8 * first_byte + 4 * np.arange(count))[:, None] + np.arange(4)


def _nibbles(first_byte: int, run: int, elements: int) -> Positions:
    """Runs of 2 ``run`` elements: the first half in the low nibbles of ``run`` bytes, the second in the high ones."""
    e = np.arange(elements)
    byte, half = first_byte + run * (e // (2 * run)) + e % run, e % (2 * run) // run
    return (8 * byte + 4 * half)[:, None] + np.arange(4)


def _bits_of_32(first_byte: int) -> Positions:
    """One bit of 256 elements: byte e % 32, bit e / 32."""
    e = np.arange(256)
    return (8 * (first_byte + e % 32) + e // 32)[:, None]


def _pairs_of_bits(first_byte: int) -> Positions:
    """Two bits of 256 elements: in each half, elements 32 apart share a byte."""
    e = np.arange(256)
    byte = first_byte + 32 * (e // 128) + e % 32
    return (8 * byte + 2 * (e % 128 // 32))[:, None] + np.arange(2)


def _q6_k() -> Positions:
    e = np.arange(256)
    low = 64 * (e // 128) + 32 * (e % 64 // 32) + e % 32
    return np.concatenate([(8 * low + 4 * (e % 128 // 64))[:, None] + np.arange(4), _pairs_of_bits(128)], axis=1)


def _joined(*parts: Positions) -> Positions:
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class BlockField:
    """Where a block has a number for each ``elements`` of its elements: a half at a byte, or bits.

    Bits hold whole numbers to which ``origin`` is added.
    """

    elements: int
    byte: int | None = None
    bits: CodeBits | None = None
    origin: int = 0


def _six_bits(first_byte: int, high_nibble: int) -> Positions:
    """Eight numbers of six bits in Q4_K: four bytes of their own, and nibbles of four more."""
    own = [[8 * (first_byte + j) + bit for bit in range(6)] for j in range(4)]
    split = [
        [*(8 * (12 + j) + 4 * high_nibble + bit for bit in range(4)), *(8 * (first_byte + j) + bit for bit in (6, 7))]
        for j in range(4)
    ]
    return np.array([*own, *split])


def _split_bits(low_byte: int, low_count: int, high_byte: int, high_count: int) -> Positions:
    """Numbers j of six bits: nibble j / ``low_count`` of a byte j % ``low_count``, and two bits in the same way."""
    j = np.arange(16)
    low = 8 * (low_byte + j % low_count) + 4 * (j // low_count)
    high = 8 * (high_byte + j % high_count) + 2 * (j // high_count)
    return np.concatenate([low[:, None] + np.arange(4), high[:, None] + np.arange(2)], axis=1)


def _iq4_xs_scales() -> Positions:
    j = np.arange(8)
    low, high = 8 * (4 + j // 2) + 4 * (j % 2), 8 * (2 + j // 4) + 2 * (j % 4)
    return np.concatenate([low[:, None] + np.arange(4), high[:, None] + np.arange(2)], axis=1)


@cache
def block_fields(name: str) -> tuple[BlockField, ...]:
    """The scales of a type with `code_bits`: units of super-blocks first, then minimums behind scales."""
    six_bit_pairs = (
        BlockField(256, byte=0),
        BlockField(256, byte=2),
        BlockField(32, bits=CodeBits(_six_bits(4, 0))),
        BlockField(32, bits=CodeBits(_six_bits(8, 1))),
    )
    known = {
        "q2_k": (
            BlockField(256, byte=80),
            BlockField(256, byte=82),
            BlockField(16, bits=CodeBits(nibbles_from(0, 32)[::2])),
            BlockField(16, bits=CodeBits(nibbles_from(0, 32)[1::2])),
        ),
        "q3_k": (
            BlockField(256, byte=108),
            BlockField(16, bits=CodeBits(_split_bits(96, 8, 104, 4)), origin=32),
        ),
        "q4_k": six_bit_pairs,
        "q5_k": six_bit_pairs,
        "q6_k": (
            BlockField(256, byte=208),
            BlockField(16, bits=CodeBits(bytes_from(192, 16), flipped=128), origin=128),
        ),
        "iq4_xs": (BlockField(256, byte=0), BlockField(32, bits=CodeBits(_iq4_xs_scales()), origin=32)),
    }
    pair = (BlockField(32, byte=0), BlockField(32, byte=2))
    return known.get(name, pair if name in ("q4_1", "q5_1") else pair[:1])


@cache
def code_bits(name: str) -> CodeBits | None:
    """The positions of the codes of a type, or None for types that are no such codes."""
    fifth = np.arange(32)[:, None]
    known = {
        "q4_0": lambda: CodeBits(_nibbles(2, 16, 32)),
        "q4_1": lambda: CodeBits(_nibbles(4, 16, 32)),
        "q5_0": lambda: CodeBits(_joined(_nibbles(6, 16, 32), 16 + fifth)),
        "q5_1": lambda: CodeBits(_joined(_nibbles(8, 16, 32), 32 + fifth)),
        "q8_0": lambda: CodeBits(bytes_from(2, 32), flipped=128),
        "iq4_nl": lambda: CodeBits(_nibbles(2, 16, 32), is_table=True),
        "iq4_xs": lambda: CodeBits(_nibbles(8, 16, 256), is_table=True),
        "q2_k": lambda: CodeBits(_pairs_of_bits(16)),
        "q3_k": lambda: CodeBits(_joined(_pairs_of_bits(32), _bits_of_32(0))),
        "q4_k": lambda: CodeBits(_nibbles(16, 32, 256)),
        "q5_k": lambda: CodeBits(_joined(_nibbles(48, 32, 256), _bits_of_32(16))),
        "q6_k": lambda: CodeBits(_q6_k()),
    }
    return known[name]() if name in known else None
