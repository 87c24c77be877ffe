"""Headers of weight files, and layouts of files to write.

Readers parse bytes into a `FileHeader`; writers turn a list of `TensorSpec` into a `FileLayout`. Neither
touches tensor data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from reprlib import Repr
from typing import Any, NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError
from lbrx.tensors.dtype import DType
from lbrx.tensors.shape import Layout

MAX_INT64 = 2**63 - 1
MAX_DIMENSIONS = 64  # the NumPy limit
GGUF_MAGIC = b"GGUF"
ZIP_MAGIC = b"PK\x03\x04"  # PyTorch files

QUANTIZATION_KEY = "lbrx.quantization"  # metadata key: the integer-coded tensors


class TensorEntry(NamedTuple):
    """One tensor of a file: its type, its shape and the offset of its bytes.

    >>> entry = TensorEntry("output.weight", "q4_k", None, (2, 256), offset=4096, nbytes=288)
    >>> entry.end, entry.layout.strides
    (4384, (256, 1))
    """

    name: str
    type_name: str  # an lbrx dtype ("bf16"), a ggml type ("q4_k") or a SafeTensors id in lower case ("u32")
    dtype: DType | None  # None if lbrx has no such element type, as for block quantization
    shape: tuple[int, ...]  # row-major, slowest first
    offset: int  # in bytes from the beginning of the file
    nbytes: int  # with strides: of the span that contains all elements
    strides: tuple[int, ...] | None = None  # None if contiguous

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.nbytes

    @property
    def layout(self) -> Layout:
        """The positions of the elements in the span."""
        return Layout.contiguous(self.shape) if self.strides is None else Layout(self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Everything known about a file before its data is read; entries are sorted by offset.

    >>> FileHeader(Path("a.gguf"), "gguf", 64, "little", (), {}).format
    'gguf'
    """

    path: Path
    format: str  # "safetensors" | "gguf"
    file_bytes: int
    byte_order: str  # "little" | "big"
    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, Any]  # strings of a SafeTensors header, or `GgufMetadata`


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to write.

    >>> TensorSpec("norm.weight", "bf16", (4096,)).shape
    (4096,)
    """

    name: str
    type_name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of one tensor in a file to write.

    >>> Slot("norm.weight", "bf16", (8,), offset=128, nbytes=16).offset
    128
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int  # in bytes from the beginning of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of a file, decided before the first byte of data is written. Bytes between slots are zero.

    >>> FileLayout("empty.gguf", b"GGUF", (), 4).file_bytes
    4
    """

    name: str
    header: bytes  # everything before the data, padding included
    slots: tuple[Slot, ...]
    file_bytes: int


def element_count(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape; its sizes and their product must fit into 63 bits.

    For a shape without elements, the product of the other sizes is checked: it determines the strides in bytes.

    >>> element_count((2, 3)), element_count(()), element_count((5, 0))
    (6, 1, 0)
    """
    if any(size < 0 for size in shape):
        raise ShapeError(f"shape {quoted(tuple(shape))} has a negative size; expected sizes of at least 0")
    limit = MAX_INT64 // 8 if 0 in shape else MAX_INT64
    if prod(size or 1 for size in shape) > limit:  # a zero must not hide an overflow
        raise ShapeError(f"shape {quoted(tuple(shape))} has more than 2^63 - 1 elements")
    return prod(shape)


_MESSAGE_REPR = Repr()
_MESSAGE_REPR.maxstring = 100
_MESSAGE_REPR.maxlist = _MESSAGE_REPR.maxtuple = 8
_MESSAGE_REPR.maxlevel = 3


def quoted(value: object) -> str:
    """Quote a value from a file for an error message: escaped, and shortened if long or deeply nested.

    >>> quoted("a\\n"), quoted([1] * 1000), len(quoted("x" * 1000))
    ("'a\\\\n'", '[1, 1, 1, 1, 1, 1, 1, 1, ...]', 100)
    """
    return _MESSAGE_REPR.repr(value)


def is_text(value: object) -> bool:
    """Return whether a value is a string that UTF-8 can encode: JSON and pickles can contain lone surrogates.

    >>> is_text("é"), is_text("\\ud800"), is_text(5)
    (True, False, False)
    """
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value))


@dataclass(frozen=True, slots=True)
class TypeTotal:
    """All tensors of one type."""

    type_name: str
    tensors: int
    elements: int
    nbytes: int


def type_totals(tensors: Iterable[tuple[str, int, int]]) -> list[TypeTotal]:
    """Sum (type, elements, bytes) of each tensor by type: one row per type, sorted by bytes in descending order.

    >>> type_totals([("f32", 2, 8), ("bf16", 8, 16), ("f32", 1, 4)])[1]
    TypeTotal(type_name='f32', tensors=2, elements=3, nbytes=12)
    """
    totals: dict[str, TypeTotal] = {}
    for type_name, elements, nbytes in tensors:
        total = totals.get(type_name, TypeTotal(type_name, 0, 0, 0))
        totals[type_name] = TypeTotal(type_name, total.tensors + 1, total.elements + elements, total.nbytes + nbytes)
    return sorted(totals.values(), key=lambda row: (-row.nbytes, row.type_name))
