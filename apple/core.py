"""A model of Apple's performance cores: which units an instruction needs, and how many cycles a mix takes at least.

Eight instructions start in a cycle; four of them can be SIMD or floating point, three can load 16 bytes, two can store
16 bytes, six can be integer operations. Copies and zeros of vector registers need no unit: LLVM lists both as free of
cycles on Apple's processors. Latency, cache misses and branch misses are not in the model, so the result is a lower
bound. These are public figures for the M1 (Firestorm); later cores are at least as wide.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

WIDTH, SIMD, LOADS, STORES, INTEGERS = 8, 4, 3, 2, 6


@dataclass(frozen=True)
class Mix:
    """Operations of each unit, in all or per element. ``vectors`` are the SIMD operations on whole vectors."""

    instructions: float = 0
    simd: float = 0
    loads: float = 0
    stores: float = 0
    integers: float = 0
    vectors: float = 0

    def __add__(self, other: Mix) -> Mix:
        return Mix(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> Mix:
        return Mix(*(a * factor for a in astuple(self)))

    @property
    def cycles(self) -> float:
        """The fewest cycles that a core needs."""
        units = (self.simd, SIMD), (self.loads, LOADS), (self.stores, STORES), (self.integers, INTEGERS)
        return max(self.instructions / WIDTH, *(count / most for count, most in units))


def mix_of(word: int) -> Mix:
    """What one instruction needs, from its encoding."""
    group = word >> 25 & 15
    if group & 5 == 4:
        return _memory(word)
    if group & 7 == 7:
        if _is_free(word):
            return Mix(1)
        return Mix(1, simd=1, vectors=word >> 24 & 0x9E == 0x0E)
    if group & 14 == 10:  # branches and system instructions
        return Mix(1)
    return Mix(1, integers=1)


def _is_free(word: int) -> bool:
    """``movi v0.2d, #0`` and ``mov v0.16b, v1.16b``, which is an ``orr``."""
    is_zero = word & ~31 == 0x6F00E400
    return is_zero or (word & 0xFFE0FC00 == 0x4EA01C00 and word >> 16 & 31 == word >> 5 & 31)


def _memory(word: int) -> Mix:
    """Loads and stores: pairs of 16-byte registers count twice, as do single lanes, which also need a SIMD unit."""
    is_vector, is_load = bool(word >> 26 & 1), bool(word >> 22 & 1)
    form = word >> 27 & 7
    if is_vector and form == 1:  # ld1 to ld4, st1 to st4
        is_single = bool(word >> 24 & 1)
        registers = 1 if is_single else {7: 1, 10: 2, 6: 3, 2: 4, 8: 2, 4: 3, 0: 4}.get(word >> 12 & 15, 1)
        shuffles = 1 if is_single or (word >> 12 & 15) in (8, 4, 0) else 0
        return _moves(registers, is_load, shuffles * registers)
    if form == 5:  # pairs
        return _moves(2 if is_vector and word >> 30 == 2 else 1, is_load, 0)
    if form == 3:  # literals
        return _moves(1, True, 0)
    if form == 1:  # exclusive and ordered
        return _moves(1, is_load, 0)
    if is_vector:
        return _moves(1, is_load, 0)
    return _moves(1, bool(word >> 22 & 3), 0)


def _moves(count: int, is_load: bool, simd: int) -> Mix:
    instructions = count + simd
    return Mix(instructions, simd, count, 0) if is_load else Mix(instructions, simd, 0, count)
