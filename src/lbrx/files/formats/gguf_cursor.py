"""Read the header of a GGUF file in growing steps, never past its end."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Any, BinaryIO, Literal, Never

import numpy as np

from lbrx.errors import FormatError
from lbrx.files.formats.gguf_values import ARRAY_ID, NAMES_BY_ID, NUMPY_TYPES, STRUCT_CODES, StringArray, Typed
from lbrx.files.formats.source import read_at

FIRST_READ_BYTES = 1 << 20
MAX_HEADER_BYTES = 256 << 20  # the largest vocabularies take about 16 MB
MAX_STRING_BYTES = 1 << 30
MAX_ARRAY_ELEMENTS = 1 << 30


class HeaderCursor:
    """A position in a header, with the bytes of the file that have been read so far.

    Every method advances past the value it returns. `what` describes the value in error messages.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     written = file.write(bytes([3, 0, 0, 0, 0, 0, 0, 0]) + b"abc")
    ...     file.flush()
    ...     cursor = HeaderCursor(Path("a.gguf"), file, file_bytes=11, byte_order="little")
    ...     cursor.string("the name"), cursor.position
    ('abc', 11)
    """

    __slots__ = ("_byte_order", "_file", "_order", "_window", "file_bytes", "path", "position")

    def __init__(self, path: Path, file: BinaryIO, file_bytes: int, byte_order: str) -> None:
        self.path = path
        self.file_bytes = file_bytes
        self.position = 0
        self._file = file
        self._byte_order = byte_order
        self._order: Literal["<", ">"] = "<" if byte_order == "little" else ">"
        self._window = b""

    def unpack(self, codes: str, what: str) -> tuple[Any, ...]:
        """Read numbers; `codes` are those of the `struct` module."""
        codes = self._order + codes
        end = self.position + struct.calcsize(codes)
        values = struct.unpack_from(codes, self._reach(end, what), self.position)
        self.position = end
        return values

    def string(self, what: str, max_bytes: int = MAX_STRING_BYTES, *, errors: str = "strict") -> str:
        """Read a string: u64 length, then its bytes."""
        (length,) = self.unpack("Q", f"the length of {what}")
        if length > max_bytes:
            raise FormatError(f"{self.path}: {what} is a string of {length} bytes, expected at most {max_bytes}")
        end = self.position + length
        raw = self._reach(end, what)[self.position : end]
        self.position = end
        try:
            return raw.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.path}: {what} is {raw[:64]!r}, which is not UTF-8") from error

    def value(self, what: str) -> Typed:
        """Read a typed value: u32 type, then a scalar, a string, or an array (u32 type, u64 count, elements)."""
        (type_id,) = self.unpack("I", f"the type of {what}")
        if type_id == ARRAY_ID:
            return self._array(what)
        name = self._type_name(type_id, what)
        if name == "str":
            return Typed(self.string(what, errors="surrogateescape"), name)
        if name == "bool":
            return Typed(bool(self._bools(1, what)[0]), name)
        return Typed(self.unpack(STRUCT_CODES[name], what)[0], name)

    def _type_name(self, type_id: int, what: str) -> str:
        if type_id not in NAMES_BY_ID:
            raise FormatError(f"{self.path}: {what} has the unknown value type {type_id}, expected 0 to 12")
        return NAMES_BY_ID[type_id]

    def _array(self, what: str) -> Typed:
        type_id, count = self.unpack("IQ", f"the array header of {what}")
        if type_id == ARRAY_ID:
            raise FormatError(f"{self.path}: {what} is an array of arrays, expected scalars or strings")
        name = self._type_name(type_id, what)
        if count > MAX_ARRAY_ELEMENTS:
            raise FormatError(
                f"{self.path}: {what} is an array of {count} elements, expected at most {MAX_ARRAY_ELEMENTS}"
            )
        element_bytes = 8 if name == "str" else NUMPY_TYPES[name].itemsize  # a string has at least its length
        self._check_end(self.position + count * element_bytes, what)
        if name == "str":
            return Typed(self._strings(count, what), "array[str]")
        if name == "bool":
            return Typed(self._bools(count, what), "array[bool]")
        stored = NUMPY_TYPES[name].newbyteorder(self._order)
        numbers = np.frombuffer(self._bytes(count * element_bytes, what), stored).astype(NUMPY_TYPES[name], copy=False)
        numbers.flags.writeable = False
        return Typed(numbers, f"array[{name}]")

    def _bools(self, count: int, what: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        stored = np.frombuffer(self._bytes(count, what), np.uint8)
        if count and stored.max() > 1:
            raise FormatError(f"{self.path}: {what} has a bool of value {stored.max()}, expected 0 or 1")
        return stored.view(np.bool_)

    def _strings(self, count: int, what: str) -> StringArray:
        """Find the end of every string; this loop dominates the time to open a large vocabulary."""
        start = position = self.position
        unpack_length = struct.Struct(self._order + "Q").unpack_from
        last_position = min(self.file_bytes, MAX_HEADER_BYTES)
        ends = array("q")
        window = self._window
        window_limit = len(window) - 8
        for index in range(count):
            if position > window_limit:
                window = self._reach(position + 8, f"the length of string {index} of {what}")
                window_limit = len(window) - 8
            position += 8 + unpack_length(window, position)[0]
            if position > last_position:
                self._reject_end(position, f"string {index} of {what}")
            ends.append(position)
        raw = self._reach(position, what)[start:position]
        self.position = position
        ends_in_raw = np.asarray(ends)  # shares the memory of `ends`
        ends_in_raw -= start
        return StringArray(raw, ends_in_raw, self._byte_order)

    def _bytes(self, count: int, what: str) -> bytes:
        end = self.position + count
        raw = self._reach(end, what)[self.position : end]
        self.position = end
        return raw

    def _reach(self, end: int, what: str) -> bytes:
        """Return the bytes of the file from its beginning to at least `end`."""
        if end > len(self._window):
            self._check_end(end, what)
            wanted = min(max(2 * len(self._window), end, FIRST_READ_BYTES), self.file_bytes, MAX_HEADER_BYTES)
            missing = wanted - len(self._window)
            self._window += read_at(self._file, self.path, len(self._window), missing)
        return self._window

    def _check_end(self, end: int, what: str) -> None:
        if end > min(self.file_bytes, MAX_HEADER_BYTES):
            self._reject_end(end, what)

    def _reject_end(self, end: int, what: str) -> Never:
        if end > self.file_bytes:
            raise FormatError(f"{self.path}: {what} ends at byte {end}, but the file has {self.file_bytes}")
        raise FormatError(
            f"{self.path}: {what} ends at byte {end}, expected a header of at most {MAX_HEADER_BYTES} bytes"
        )
