"""MLX's affine coding: x = code scale + bias, the bias being the edge of larger magnitude of a group.

Codes are one stream of bits, as in `lbrx.devices.cpu.kernels.codecs.groups`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.codecs.groups import rint
from lbrx.devices.cpu.simd.bit_stream import BIT_WIDTHS, LOAD_16_CODES
from lbrx.devices.cpu.simd.elements import load_f32, load_i64, store_bf16, store_byte, store_f16, store_f32, store_i64
from lbrx.devices.cpu.simd.emit import shuffled, spread
from lbrx.devices.cpu.simd.f32 import nearest_even
from lbrx.devices.cpu.simd.instruction import I32, I64, Builder, Value, instruction, jit
from lbrx.devices.cpu.simd.vectors import (
    Vector,
    clamp,
    f32x16,
    lane_max,
    lane_min,
    load,
    maximum,
    minimum,
    store,
    to_f32,
    to_i32,
)

SMALLEST_SCALE = np.float32(1e-7)
WIDE, QUAD = 16, 4
_TUPLE: Any = types.UniTuple


@jit
def _store_number(target: Any, index: Any, value: Any, dtype: Any) -> None:
    """As f32 (dtype 0), f16 (1) or bf16 (2)."""
    if dtype == 0:
        store_f32(target, index, value)
    elif dtype == 1:
        store_f16(target, index, value)
    else:
        store_bf16(target, index, value)


@jit
def _scale_and_bias(values: Any, size: Any, bits: Any) -> Any:
    lows = load(f32x16(0.0), values, 0)
    highs = lows
    for number in range(1, size // WIDE):
        value = load(lows, values, number)
        lows, highs = minimum(value, lows), maximum(value, highs)
    low, high = lane_min(lows), lane_max(highs)
    is_low_edge = abs(low) > abs(high)
    scale = max((high - low) / np.float32((1 << bits) - 1), SMALLEST_SCALE)
    scale = scale if is_low_edge else -scale
    edge = low if is_low_edge else high
    level = rint(edge / scale)
    if level == 0:
        return scale, np.float32(0.0)
    return edge / level, edge


@instruction(_TUPLE(types.int64, 2)(Vector("i32", WIDE), types.int64))
def _packed(builder: Builder, codes: Value, bits: Value) -> Value:
    """Sixteen codes as two numbers of ``8 bits`` bits, the first code lowest."""
    quads = ir.Constant(codes.type, [number % QUAD for number in range(WIDE)])
    word = builder.shl(codes, builder.mul(spread(builder, builder.trunc(bits, I32), codes.type), quads))
    for step in (1, 2):
        word = builder.or_(word, shuffled(builder, word, word, [number ^ step for number in range(WIDE)]))
    low_0, high_0, low_1, high_1 = (
        builder.zext(builder.extract_element(word, ir.Constant(I32, number)), I64) for number in range(0, WIDE, QUAD)
    )
    quad_bits = builder.mul(bits, ir.Constant(I64, QUAD))
    pair = ir.Constant(ir.ArrayType(I64, 2), ir.Undefined)
    for number, (low, high) in enumerate(((low_0, high_0), (low_1, high_1))):
        pair = builder.insert_value(pair, builder.or_(low, builder.shl(high, quad_bits)), number)
    return pair


@jit
def _store_bytes(target: Any, word: Any, count: Any) -> None:
    for byte in range(count):
        store_byte(target, byte, np.uint8((word >> (8 * byte)) & 255))


@jit
def _store_codes(values: Any, target: Any, size: Any, bits: Any, scale: Any, bias: Any, is_last: Any) -> None:
    """The codes of a group. A word of eight bytes is stored for eight codes, of which the next overwrites the rest; in
    the last 32 codes of all groups only the bytes themselves are stored."""
    top = np.float32((1 << bits) - 1)
    for number in range(size // WIDE):
        level = nearest_even((load(f32x16(0.0), values, number) - bias) / scale)
        first, second = _packed(to_i32(clamp(level, 0.0, top)), bits)
        out = target + 2 * bits * number
        if is_last and number >= size // WIDE - 2:
            _store_bytes(out, first, bits)
            _store_bytes(out + bits, second, bits)
        else:
            store_i64(out, 0, first)
            store_i64(out + bits, 0, second)


@jit
def _move_on(parts: Any, part: Any, nbytes: Any) -> None:
    address = load_i64(parts, part)
    if address != 0:
        store_i64(parts, part, address + nbytes)


@jit
def _encode(values: Any, parts: Any, groups: Any, size: Any, bits: Any) -> None:
    codes, scales, biases = load_i64(parts, 0), load_i64(parts, 1), load_i64(parts, 2)
    dtype = load_i64(parts, 5)
    item = 4 if dtype == 0 else 2
    for group in range(groups):
        source = values + 4 * size * group
        scale, bias = _scale_and_bias(source, size, bits)
        if scales != 0:
            _store_number(scales, group, scale, dtype)
        if biases != 0:
            _store_number(biases, group, bias, dtype)
        if codes != 0:
            _store_codes(source, codes + size * bits // 8 * group, size, bits, scale, bias, group == groups - 1)
    _move_on(parts, 0, groups * size * bits // 8)
    _move_on(parts, 1, groups * item)
    _move_on(parts, 2, groups * item)


def encode_parts(values: int, parts: int, groups: int) -> None:
    """Code groups into the addresses of codes, scales and biases, any of which may be 0: not wanted.

    After these three, ``parts`` has the size of a group, the bits of a code, and the dtype of the numbers. The
    addresses are moved on behind what was written.
    """
    size, bits = load_i64(parts, 3), load_i64(parts, 4)
    if bits == 4 and size == 64:
        _encode(values, parts, groups, 64, 4)
    elif bits == 8 and size == 64:
        _encode(values, parts, groups, 64, 8)
    else:
        _encode(values, parts, groups, size, bits)


def _make_decode(bits: int) -> Any:
    load_codes = LOAD_16_CODES[bits]

    @jit
    def decode_groups(codes: Any, values: Any, groups: Any, scales: Any, biases: Any, size: Any) -> None:
        for group in range(groups):
            source, out = codes + size * bits // 8 * group, values + 4 * size * group
            scale, bias = load_f32(scales, group), load_f32(biases, group)
            for number in range(size // WIDE):
                store(out, number, to_f32(load_codes(source + 2 * bits * number)) * scale + bias)

    return decode_groups


_decode_2, _decode_3, _decode_4, _decode_5, _decode_6, _decode_8 = (_make_decode(bits) for bits in BIT_WIDTHS)


def decode(codes: int, values: int, groups: int, scales: int, biases: int, size: int, bits: int) -> None:
    if bits == 2:
        _decode_2(codes, values, groups, scales, biases, size)
    elif bits == 3:
        _decode_3(codes, values, groups, scales, biases, size)
    elif bits == 4:
        _decode_4(codes, values, groups, scales, biases, size)
    elif bits == 5:
        _decode_5(codes, values, groups, scales, biases, size)
    elif bits == 6:
        _decode_6(codes, values, groups, scales, biases, size)
    else:
        _decode_8(codes, values, groups, scales, biases, size)
