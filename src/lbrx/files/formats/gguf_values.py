"""The key-values of GGUF files: their types, and a mapping that preserves both values and types.

A type is written as its name (`"u32"`, `"str"`), an array as `"array[u32]"`. Scalars are Python values, arrays of
numbers are read-only NumPy arrays, arrays of strings are a `StringArray`. Bytes of a string that are not UTF-8
become lone surrogates ("surrogateescape"), so that they can be written back unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest

_LENGTH = struct.Struct("<Q")
STRING_ID = 8
ARRAY_ID = 9
SCALAR_IDS: dict[str, int] = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": 7,
    "u64": 10,
    "i64": 11,
    "f64": 12,
}
NAMES_BY_ID: dict[int, str] = {**{type_id: name for name, type_id in SCALAR_IDS.items()}, STRING_ID: "str"}
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype("bool" if name == "bool" else f"{name[0]}{int(name[1:]) // 8}") for name in SCALAR_IDS
}
STRUCT_CODES: dict[str, str] = {name: row.char.replace("l", "q").replace("L", "Q") for name, row in NUMPY_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Typed:
    """A value with the GGUF type in which it is written.

    >>> Typed(3, "u16").type
    'u16'
    >>> Typed([1, 2], "array[i64]").element_type
    'i64'
    """

    value: Any
    type: str

    def __post_init__(self) -> None:
        element = self.element_type or self.type
        if element != "str" and element not in SCALAR_IDS:
            known = [*SCALAR_IDS, "str"]
            raise UsageError(
                f"{self.type!r} is not a GGUF value type; expected one of {', '.join(known)},"
                f" or array[...] of one{nearest(element, known)}"
            )

    @property
    def element_type(self) -> str | None:
        """The type of the elements of an array, or None for a scalar."""
        is_array = self.type.startswith("array[") and self.type.endswith("]")
        return self.type[len("array[") : -1] if is_array else None


class StringArray(Sequence[str]):
    """An array of strings that keeps the stored bytes (u64 length, bytes, ...) and decodes on access.

    >>> tokens = StringArray.of(["<s>", "a", "é"])
    >>> len(tokens), tokens[2], tokens[:2], tokens == ["<s>", "a", "é"]
    (3, 'é', ['<s>', 'a'], True)
    """

    __slots__ = ("_byte_order", "_ends", "_raw")

    def __init__(self, raw: bytes, ends: NDArray[np.int64], byte_order: str) -> None:
        self._raw = raw
        self._byte_order = byte_order  # of the lengths in `raw`
        self._ends = ends  # end of each string, relative to the beginning of `raw`

    @classmethod
    def of(cls, strings: Sequence[str]) -> StringArray:
        """Build an array of these strings, with lengths in little-endian order."""
        pieces = [string.encode("utf-8", "surrogateescape") for string in strings]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        written = map(_LENGTH.pack, lengths.tolist())
        return cls(b"".join(chain.from_iterable(zip(written, pieces, strict=True))), np.cumsum(lengths + 8), "little")

    def little_endian_bytes(self) -> bytes:
        """Return the strings as a little-endian file stores them."""
        if self._byte_order == "little":
            return self._raw
        return b"".join(struct.pack("<Q", len(piece)) + piece for piece in self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        begin = 0
        for end in self._ends.tolist():
            yield self._raw[begin + 8 : end]
            begin = end

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        begin = int(self._ends[position - 1]) if position else 0
        return self._raw[begin + 8 : int(self._ends[position])].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces():
            yield piece.decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | bytes) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(string) for string in self[:3])
        return f"StringArray([{shown}{', ...' if len(self) > 3 else ''}], {len(self)} strings)"


class GgufMetadata(Mapping[str, Any]):
    """The key-values of a GGUF file: maps keys to plain values and also stores their types.

    >>> metadata = GgufMetadata({"general.architecture": Typed("llama", "str"), "llama.block_count": Typed(2, "u32")})
    >>> metadata["llama.block_count"], metadata.type_of("llama.block_count")
    (2, 'u32')
    >>> edited = {**metadata.typed(), "general.name": "a copy"}  # for a writer, with types
    """

    __slots__ = ("_typed",)

    def __init__(self, typed: Mapping[str, Typed]) -> None:
        self._typed = dict(typed)

    def type_of(self, key: str) -> str:
        """Return the GGUF type of a value, such as `"u32"` or `"array[str]"`."""
        return self._typed[key].type

    def typed(self) -> dict[str, Typed]:
        """Return the values with their types, in file order."""
        return dict(self._typed)

    def __getitem__(self, key: str) -> Any:
        return self._typed[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._typed)

    def __len__(self) -> int:
        return len(self._typed)

    def __eq__(self, other: object) -> bool:
        """Compare keys, types and values."""
        if not isinstance(other, GgufMetadata):
            return NotImplemented
        return self.keys() == other.keys() and all(_same(self._typed[key], other._typed[key]) for key in self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GgufMetadata({len(self)} keys)"


def _same(a: Typed, b: Typed) -> bool:
    if a.type != b.type:
        return False
    if isinstance(a.value, np.ndarray) or isinstance(b.value, np.ndarray):
        return np.array_equal(a.value, b.value)
    return bool(a.value == b.value)
