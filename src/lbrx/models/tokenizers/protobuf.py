"""Decode protocol buffers: fields of a number, a wire type and a value.

field:  varint (number << 3 | wire type), then  0 varint | 1 eight bytes | 2 varint length, bytes | 5 four bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
_WIRE_NAMES = {VARINT: "a varint", EIGHT_BYTES: "eight bytes", BYTES: "bytes", FOUR_BYTES: "four bytes"}
_MAX_VARINT_BYTES = 10
_Value = TypeVar("_Value", int, bytes)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message; ``value`` is an int for a varint and bytes otherwise."""

    where: str
    number: int
    wire: int
    value: int | bytes

    def integer(self) -> int:
        """A varint as an unsigned number."""
        return self._expect(VARINT, int)

    def signed(self) -> int:
        """A varint as a signed 32-bit or 64-bit number: negative ones take ten bytes."""
        value = self.integer()
        return value - (1 << 64) if value >> 63 else value

    def boolean(self) -> bool:
        return self.integer() != 0

    def float32(self) -> float:
        return float(struct.unpack("<f", self._expect(FOUR_BYTES, bytes))[0])

    def raw(self) -> bytes:
        return self._expect(BYTES, bytes)

    def text(self) -> str:
        raw = self.raw()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.where}: field {self.number} is not UTF-8 at byte {error.start} of it") from error

    def _expect(self, wire: int, value_type: type[_Value]) -> _Value:
        if self.wire != wire or not isinstance(self.value, value_type):
            raise FormatError(
                f"{self.where}: field {self.number} is {_WIRE_NAMES[self.wire]}, expected {_WIRE_NAMES[wire]}"
            )
        return self.value


def fields(message: bytes, where: str) -> Iterator[Field]:
    """Yield the fields of a message in order; errors begin with ``where``.

    >>> [(field.number, field.integer()) for field in fields(bytes([0x08, 0x96, 0x01]), "a message")]
    [(1, 150)]
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position, where)
        number, wire = key >> 3, key & 7
        if number == 0 or wire not in _WIRE_NAMES:
            raise FormatError(f"{where}: byte {position - 1} begins field {number} of the unknown wire type {wire}")
        value: int | bytes
        if wire == VARINT:
            value, position = _varint(message, position, where)
        else:
            length = 8 if wire == EIGHT_BYTES else 4
            if wire == BYTES:
                length, position = _varint(message, position, where)
            if length > len(message) - position:
                raise FormatError(
                    f"{where}: field {number} has {length} bytes, but only {len(message) - position} are left"
                )
            value = message[position : position + length]
            position += length
        yield Field(where, number, wire, value)


def _varint(message: bytes, position: int, where: str) -> tuple[int, int]:
    """A number of seven bits per byte, low bits first, and the position after it."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(message):
            raise FormatError(f"{where}: ends in the middle of the number at byte {position}")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise FormatError(f"{where}: the number at byte {position} has more than {_MAX_VARINT_BYTES} bytes")
