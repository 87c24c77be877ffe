"""32 i16 side by side: loaded, spread, multiplied in pairs and summed in sixteen lanes of i32, exactly.

Products of neighbours are added while they are multiplied: on x86 that is one instruction, and does twice as much as
one of f32. Where registers have 256 bits, each vector is two of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import register_model

from lbrx.devices.cpu.simd.int_dot import I16, SUMS, WORDS, pairwise_products
from lbrx.devices.cpu.simd.vectors import I8, I32, I64, Vector, instruction

Builder = Any
Value = Any
HALF_BYTES = ir.VectorType(I8, 16)


class Words(types.Type):
    """The Numba type of some i16."""

    def __init__(self, lanes: int) -> None:
        self.llvm = ir.VectorType(I16, lanes)
        super().__init__(name=f"i16x{lanes}")


class _WordsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Words) -> None:
        super().__init__(manager, kind, kind.llvm)  # type: ignore[no-untyped-call]


register_model(Words)(_WordsModel)
WORDS_TYPE: Any = Words(16)
PANEL_WORDS: Any = Words(32)
PANEL_SUMS: Any = Vector("i32", 16)


def _at(builder: Builder, address: Value, kind: Any) -> Value:
    return builder.inttoptr(address, kind.as_pointer())


def _same(kind: Any, value: int) -> Value:
    return ir.Constant(kind, [value] * kind.count)


@instruction
def load_panel(_context: Any, _address: Any) -> Any:
    """Two elements of sixteen vectors."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.load(_at(builder, args[0], PANEL_WORDS.llvm), align=1)

    return PANEL_WORDS(types.int64), generate


@instruction
def spread_pair(_context: Any, _address: Any) -> Any:
    """The two i16 at an address, sixteen times."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        kind = PANEL_SUMS.llvm
        pair = builder.load(_at(builder, args[0], I32), align=1)
        single = builder.insert_element(ir.Constant(kind, ir.Undefined), pair, ir.Constant(I32, 0))
        spread = builder.shuffle_vector(single, single, ir.Constant(kind, [0] * kind.count))
        return builder.bitcast(spread, PANEL_WORDS.llvm)

    return PANEL_WORDS(types.int64), generate


@instruction
def no_sums(_context: Any) -> Any:
    """Sixteen zeros of i32."""

    def generate(_target: Any, _builder: Builder, _signature: Any, _args: Any) -> Value:
        return _same(PANEL_SUMS.llvm, 0)

    return PANEL_SUMS(), generate


@instruction
def add_products(_context: Any, _left: Any, _right: Any, _sums: Any) -> Any:
    """Sixteen sums, each plus two products of neighbours."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        return builder.add(args[2], pairwise_products(builder, args[0], args[1]))

    return PANEL_SUMS(PANEL_WORDS, PANEL_WORDS, PANEL_SUMS), generate


@instruction
def add_bf16_products(_context: Any, _left: Any, _right: Any, _sums: Any) -> Any:
    """Sixteen sums of f32, each plus two products of neighbours in bf16: for processors that have an instruction."""
    kind = PANEL_SUMS.of("f32")

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        name, bits = "llvm.x86.avx512bf16.dpbf16ps.512", PANEL_SUMS.llvm
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(kind.llvm, [kind.llvm, bits, bits]), name
        )
        return builder.call(function, [args[2], *(builder.bitcast(words, bits) for words in args[:2])])

    return kind(PANEL_WORDS, PANEL_WORDS, kind), generate


@instruction
def store_words(_context: Any, _base: Any, value: Any) -> Any:
    """Lanes of i32 as i16, one after the other."""

    def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        kind = ir.VectorType(I16, value.lanes)
        builder.store(builder.trunc(args[1], kind), _at(builder, args[0], kind), align=1)
        return target.get_dummy_value()

    return types.void(types.int64, value), generate


def _turned(builder: Builder, rows: list[Value]) -> list[Value]:
    """Eight vectors of eight lanes as their columns: pairs of lanes, of twos and of fours change places."""
    for step in (1, 2, 4):
        low = [lane if not lane & step else 8 + lane - step for lane in range(8)]
        high = [lane + step if not lane & step else 8 + lane for lane in range(8)]
        turned = list(rows)
        for first in (row for row in range(8) if not row & step):
            for row, places in ((first, low), (first + step, high)):
                mask = ir.Constant(SUMS.llvm, places)
                turned[row] = builder.shuffle_vector(rows[first], rows[first + step], mask)
        rows = turned
    return rows


@instruction
def turn_eight(_context: Any, _source: Any, _stride: Any, _out: Any, _second_out: Any, _out_stride: Any) -> Any:
    """Eight rows of eight i32 as columns, four at each of two addresses; strides are in bytes."""

    def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        def place(base: Value, stride: Value, number: int) -> Value:
            return _at(builder, builder.add(base, builder.mul(stride, ir.Constant(I64, number))), SUMS.llvm)

        source, stride, *outs, out_stride = args
        rows = [builder.load(place(source, stride, row), align=1) for row in range(8)]
        for number, column in enumerate(_turned(builder, rows)):
            builder.store(column, place(outs[number // 4], out_stride, number % 4), align=1)
        return target.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@instruction
def largest_magnitude(_context: Any, _address: Any, _found: Any) -> Any:
    """The larger bits, lane by lane, of sixteen bf16 without their signs and of what was found before."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        words = builder.load(_at(builder, args[0], WORDS), align=1)
        magnitudes = builder.and_(words, _same(WORDS, 0x7FFF))
        return builder.select(builder.icmp_unsigned(">", magnitudes, args[1]), magnitudes, args[1])

    return WORDS_TYPE(types.int64, WORDS_TYPE), generate


@instruction
def no_words(_context: Any) -> Any:
    """Sixteen zeros."""

    def generate(_target: Any, _builder: Builder, _signature: Any, _args: Any) -> Value:
        return _same(WORDS, 0)

    return WORDS_TYPE(), generate


@instruction
def largest_word(_context: Any, _words: Any) -> Any:
    """The largest of sixteen words that are not negative."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        found, count = args[0], 16
        while count > 1:
            count //= 2
            low, high = (
                builder.shuffle_vector(
                    found, found, ir.Constant(ir.VectorType(I32, count), list(range(at, at + count)))
                )
                for at in (0, count)
            )
            found = builder.select(builder.icmp_unsigned(">", low, high), low, high)
        return builder.zext(builder.extract_element(found, ir.Constant(I32, 0)), I64)

    return types.int64(WORDS_TYPE), generate


@instruction
def bf16_values(_context: Any, like: Any, _words: Any) -> Any:
    """Sixteen words as bf16, widened to f32."""

    def generate(_target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        wide = like.of("i32").llvm
        return builder.bitcast(builder.shl(builder.zext(args[1], wide), _same(wide, 16)), like.llvm)

    return like(like, WORDS_TYPE), generate


# -- codes as words, 16 at a time --------------------------------------------------------------------------------------


def _make_widen(decoded: Any, addresses: int) -> Any:
    """An instruction that stores, at its last argument, 16 words made of the 16 bytes at its first arguments."""

    def generate(target: Any, builder: Builder, _signature: Any, args: Any) -> Value:
        parts = [builder.load(_at(builder, place, HALF_BYTES), align=1) for place in args[:-1]]
        builder.store(decoded(builder, *parts), _at(builder, args[-1], WORDS), align=1)
        return target.get_dummy_value()

    def widen_two(_context: Any, _source: Any, _out: Any) -> Any:
        return types.void(types.int64, types.int64), generate

    def widen_three(_context: Any, _low: Any, _high: Any, _out: Any) -> Any:
        return types.void(types.int64, types.int64, types.int64), generate

    return instruction(widen_two if addresses == 1 else widen_three)


def _nibbles(builder: Builder, source: Value, is_high: bool) -> Value:
    four, mask = _same(HALF_BYTES, 4), _same(HALF_BYTES, 15)
    return builder.lshr(source, four) if is_high else builder.and_(source, mask)


def _make_nibbles(is_high: bool, less: int) -> Any:
    """The low or the high halves of bytes, less a number."""

    def decoded(builder: Builder, source: Value) -> Value:
        return builder.sub(builder.zext(_nibbles(builder, source, is_high), WORDS), _same(WORDS, less))

    return _make_widen(decoded, 1)


def _make_six_bits(number: int) -> Any:
    """Four bits of one byte and two of another, the pair with this number, less 32."""

    def decoded(builder: Builder, low: Value, high: Value) -> Value:
        top = builder.and_(builder.lshr(high, _same(HALF_BYTES, 2 * number)), _same(HALF_BYTES, 3))
        codes = builder.or_(_nibbles(builder, low, number >= 2), builder.shl(top, _same(HALF_BYTES, 4)))
        return builder.sub(builder.zext(codes, WORDS), _same(WORDS, 32))

    return _make_widen(decoded, 2)


widen_bytes = _make_widen(lambda builder, source: builder.sext(source, WORDS), 1)
widen_low, widen_high = _make_nibbles(False, 0), _make_nibbles(True, 0)
widen_low_less_8, widen_high_less_8 = _make_nibbles(False, 8), _make_nibbles(True, 8)
WIDEN_SIX_BITS = tuple(_make_six_bits(number) for number in range(4))
