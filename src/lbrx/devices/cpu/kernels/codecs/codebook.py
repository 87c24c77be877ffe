"""Groups of eight values from a codebook, with signs and scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.elements import load_i16, load_i32, store_i32
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.vectors import f32x8, load_i8, splat, store, to_f32, unpack_bits

DELTA = np.float32(0.125)  # by which the groups of the IQ1 types are shifted


@jit
def u16(base: Any, index: Any) -> Any:
    return np.int64(load_i16(base, index)) & 0xFFFF


@jit
def u32(base: Any, index: Any) -> Any:
    return np.int64(load_i32(base, index)) & 0xFFFFFFFF


@jit
def even_signs(seven_bits: Any) -> Any:
    """Eight signs of which the last makes the number of negative ones even."""
    folded = seven_bits ^ (seven_bits >> 4)
    folded = folded ^ (folded >> 2)
    return seven_bits | (((folded ^ (folded >> 1)) & 1) << 7)


@jit
def store_signed(target: Any, group: Any, entry: Any, signs: Any, scale: Any) -> None:
    """Group number ``group`` of eight f32: the entry at an address, negative where a bit of ``signs`` is set."""
    like = f32x8(0.0)
    negative = unpack_bits(like, signs)
    store(target, group, to_f32(load_i8(like, entry) * (splat(negative, 1) - (negative << 1))) * scale)


@jit
def store_shifted(target: Any, group: Any, entry: Any, delta: Any, scale: Any) -> None:
    """Group number ``group`` of eight f32: the entry at an address plus ``delta``."""
    store(target, group, (to_f32(load_i8(f32x8(0.0), entry)) + delta) * scale)


@jit
def join_halves(work: Any, codebook: Any, first: Any, second: Any) -> Any:
    """Two entries of four values one after the other; gives the address."""
    store_i32(work, 0, load_i32(codebook, first))
    store_i32(work, 1, load_i32(codebook, second))
    return work
