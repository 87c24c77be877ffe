"""GGUF files: magic, version, counts, key-values, tensor infos, padding, data.

    "GGUF"  u32 version  i64 tensors  i64 key-values
    key-value:    string key, u32 type, value
    tensor info:  string name, u32 dimensions, i64 sizes (fastest first), u32 type, u64 offset in the data section

Every tensor begins at a multiple of `general.alignment`. Versions 2 and 3 can be read in both byte orders. Written
files are version 3, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lbrx.errors import DTypeError, FormatError, ShapeError, UsageError
from lbrx.files.formats.gguf_cursor import HeaderCursor
from lbrx.files.formats.gguf_encode import MAX_KEY_BYTES, encode_pair, encode_string, typed_metadata
from lbrx.files.formats.gguf_types import BY_ID, MAX_GGUF_DIMENSIONS, REMOVED_TYPES, GgmlType, ggml_type
from lbrx.files.formats.gguf_values import GgufMetadata, Typed
from lbrx.files.formats.header import (
    GGUF_MAGIC,
    MAX_INT64,
    FileHeader,
    FileLayout,
    Slot,
    TensorEntry,
    TensorSpec,
    quoted,
)
from lbrx.files.formats.source import read_at, size_of

WRITTEN_VERSION = 3
READ_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
MAX_NAME_BYTES = 63
MAX_KEYS = 1 << 16  # typical files have about fifty
_PREAMBLE_BYTES = 24
_SMALLEST_PAIR_BYTES = 8 + 1 + 4 + 1  # key length, key, type, value
_SMALLEST_INFO_BYTES = 8 + 1 + 4 + 4 + 8  # name length, name, dimensions, type, offset

# Keys that are used without further checks, so they must have the type that every reader expects.
EXPECTED_TYPES: dict[str, tuple[str, ...]] = {
    ALIGNMENT_KEY: ("u32",),
    "general.architecture": ("str",),
    "general.file_type": ("u32",),
    "split.no": ("u16",),
    "split.count": ("u16",),
    "split.tensors.count": ("i32",),
    "tokenizer.ggml.model": ("str",),
    "tokenizer.ggml.tokens": ("array[str]",),
    "tokenizer.ggml.merges": ("array[str]",),
    "tokenizer.ggml.scores": ("array[f32]",),
    "tokenizer.ggml.token_type": ("array[i32]", "array[u32]"),
    "tokenizer.chat_template": ("str",),
}


def read_header(path: Path, file: BinaryIO) -> FileHeader:
    """Read and check the header of an open GGUF file.

    >>> import tempfile
    >>> layout = lay_out("a.gguf", [TensorSpec("w", "q8_0", (2, 32))], {"general.architecture": "llama"})
    >>> with tempfile.TemporaryFile() as file:
    ...     written = file.write(layout.header + bytes(layout.file_bytes - len(layout.header)))
    ...     file.flush()
    ...     header = read_header(Path("a.gguf"), file)
    >>> header.entries[0].nbytes, header.metadata["general.architecture"]
    (68, 'llama')
    """
    file_bytes = size_of(file)
    byte_order = _read_byte_order(path, file, file_bytes)
    cursor = HeaderCursor(path, file, file_bytes, byte_order)
    tensor_count, pair_count = cursor.unpack("8xqq", "the preamble")
    _check_count(cursor, "tensors", tensor_count, _SMALLEST_INFO_BYTES)
    _check_count(cursor, "key-values", pair_count, _SMALLEST_PAIR_BYTES)
    metadata = _read_metadata(cursor, pair_count)
    entries = _read_entries(cursor, tensor_count, _checked_alignment(path, metadata))
    return FileHeader(path, "gguf", file_bytes, byte_order, entries, metadata)


def _read_byte_order(path: Path, file: BinaryIO, file_bytes: int) -> str:
    if file_bytes < _PREAMBLE_BYTES:
        raise FormatError(f"{path}: has {file_bytes} bytes, expected at least the {_PREAMBLE_BYTES} of the preamble")
    start = read_at(file, path, 0, 8)
    if start[:4] != GGUF_MAGIC:
        raise FormatError(f"{path}: begins with {start[:4]!r}, expected {GGUF_MAGIC!r}")
    version = int.from_bytes(start[4:], "little")
    byte_order = "little"
    if version and version & 0xFFFF == 0:  # the only way to detect the byte order
        version, byte_order = int.from_bytes(start[4:], "big"), "big"
    if version not in READ_VERSIONS:
        raise FormatError(f"{path}: GGUF version {version}, expected one of {', '.join(map(str, READ_VERSIONS))}")
    return byte_order


def _check_count(cursor: HeaderCursor, what: str, count: int, smallest_bytes: int) -> None:
    most = (cursor.file_bytes - cursor.position) // smallest_bytes
    if not 0 <= count <= most:
        raise FormatError(
            f"{cursor.path}: {count} {what}, but a file of {cursor.file_bytes} bytes can contain 0 to {most}"
        )


def _read_metadata(cursor: HeaderCursor, count: int) -> GgufMetadata:
    if count > MAX_KEYS:
        raise FormatError(f"{cursor.path}: has {count} keys, expected at most {MAX_KEYS}")
    pairs: dict[str, Typed] = {}
    for index in range(count):
        key = cursor.string(f"key {index}", MAX_KEY_BYTES)
        if not key:
            raise FormatError(f"{cursor.path}: key {index} is empty")
        if key in pairs:
            raise FormatError(f"{cursor.path}: key {quoted(key)} appears twice")
        pairs[key] = cursor.value(f"key {quoted(key)}")
        expected = EXPECTED_TYPES.get(key)
        if expected and pairs[key].type not in expected:
            raise FormatError(
                f"{cursor.path}: key {quoted(key)} is of type {pairs[key].type}, expected {' or '.join(expected)}"
            )
    return GgufMetadata(pairs)


def _checked_alignment(path: Path, metadata: GgufMetadata) -> int:
    alignment: int = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not _is_power_of_two(alignment):
        raise FormatError(f"{path}: {ALIGNMENT_KEY} is {alignment}, expected a power of two")
    return alignment


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _read_entries(cursor: HeaderCursor, count: int, alignment: int) -> tuple[TensorEntry, ...]:
    infos: dict[str, tuple[GgmlType, tuple[int, ...], int, int]] = {}
    for index in range(count):
        name = _read_name(cursor, index)
        if name in infos:
            raise FormatError(f"{cursor.path}: tensor {quoted(name)} appears twice")
        infos[name] = _read_info(cursor, f"tensor {quoted(name)}")
    data_start = _padded(cursor.position, alignment)
    entries: list[TensorEntry] = []
    expected_offset = 0
    for name, (ggml, shape, nbytes, offset) in infos.items():
        if offset != expected_offset:
            raise FormatError(
                f"{cursor.path}: tensor {quoted(name)} has offset {offset}, expected {expected_offset}:"
                f" tensors follow one another, padded to {alignment} bytes"
            )
        if data_start + offset + nbytes > cursor.file_bytes:
            raise FormatError(
                f"{cursor.path}: tensor {quoted(name)} ends at byte {data_start + offset + nbytes},"
                f" but the file has {cursor.file_bytes}"
            )
        entries.append(TensorEntry(name, ggml.name, ggml.dtype, shape, data_start + offset, nbytes))
        expected_offset = _padded(offset + nbytes, alignment)
    return tuple(entries)


def _read_name(cursor: HeaderCursor, index: int) -> str:
    name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    if not name or "\0" in name:
        raise FormatError(f"{cursor.path}: tensor {index} has the name {quoted(name)}, expected text without NUL")
    return name


def _read_info(cursor: HeaderCursor, what: str) -> tuple[GgmlType, tuple[int, ...], int, int]:
    """Return the type, the row-major shape, the bytes, and the offset in the data section."""
    (dimensions,) = cursor.unpack("I", f"the number of dimensions of {what}")
    if dimensions > MAX_GGUF_DIMENSIONS:
        raise FormatError(f"{cursor.path}: {what} has {dimensions} dimensions, expected at most {MAX_GGUF_DIMENSIONS}")
    *sizes, type_id, offset = cursor.unpack(f"{dimensions}qIQ", f"the info of {what}")
    ggml = BY_ID.get(type_id)
    if ggml is None:
        history = f", the removed {REMOVED_TYPES[type_id]}" if type_id in REMOVED_TYPES else ""
        raise FormatError(
            f"{cursor.path}: {what} has the ggml type {type_id}{history}, expected a type from 0 to {max(BY_ID)}"
        )
    shape = tuple(reversed(sizes))
    try:
        return ggml, shape, ggml.nbytes(shape), offset
    except ShapeError as error:
        raise FormatError(f"{cursor.path}: {what}: {error}") from error


def lay_out(
    name: str, tensors: Sequence[TensorSpec], metadata: Mapping[str, Any], alignment: int = DEFAULT_ALIGNMENT
) -> FileLayout:
    """Lay out the header and the slots of a GGUF file, with tensors in the given order.

    Metadata may be plain values, `Typed` values, or the `GgufMetadata` of another file, whose types are kept.
    `general.alignment` is always set to `alignment`.

    >>> layout = lay_out("a.gguf", [TensorSpec("a", "f32", (3,)), TensorSpec("b", "q4_0", (32,))], {"k": 1})
    >>> [(slot.name, slot.offset, slot.nbytes) for slot in layout.slots], layout.file_bytes
    ([('a', 128, 12), ('b', 160, 18)], 192)
    """
    if not _is_power_of_two(alignment) or alignment >= 2**32:
        raise UsageError(f"{name}: alignment {alignment}, expected a power of two below 2^32")
    pairs = typed_metadata(metadata)
    if alignment != DEFAULT_ALIGNMENT or ALIGNMENT_KEY in pairs:
        pairs[ALIGNMENT_KEY] = Typed(alignment, "u32")
    infos, offsets, sizes = _encode_infos(name, tensors, alignment)
    header = b"".join(
        [
            GGUF_MAGIC,
            struct.pack("<Iqq", WRITTEN_VERSION, len(tensors), len(pairs)),
            *(encode_pair(key, _checked_type(name, key, typed)) for key, typed in pairs.items()),
            *infos,
        ]
    )
    header += bytes(_padded(len(header), alignment) - len(header))
    slots = tuple(
        Slot(tensor.name, tensor.type_name, tensor.shape, len(header) + offset, nbytes)
        for tensor, offset, nbytes in zip(tensors, offsets, sizes, strict=True)
    )
    data_bytes = _padded(offsets[-1] + sizes[-1], alignment) if tensors else 0
    return FileLayout(name, header, slots, len(header) + data_bytes)


def _checked_type(file_name: str, key: str, typed: Typed) -> Typed:
    expected = EXPECTED_TYPES.get(key)
    if expected and typed.type not in expected:
        raise UsageError(f"{file_name}: key {key!r} is given as {typed.type}, expected {' or '.join(expected)}")
    return typed


def _encode_infos(
    file_name: str, tensors: Sequence[TensorSpec], alignment: int
) -> tuple[list[bytes], list[int], list[int]]:
    """Encode the infos of all tensors; also return their offsets in the data section and their sizes in bytes."""
    infos: dict[str, bytes] = {}
    offsets: list[int] = []
    sizes: list[int] = []
    offset = 0
    for tensor in tensors:
        where = f"{file_name}: tensor {quoted(tensor.name)}"
        raw_name = encode_string(tensor.name)
        if tensor.name in infos or "\0" in tensor.name or not 0 < len(raw_name) - 8 <= MAX_NAME_BYTES:
            raise UsageError(f"{where}: expected a name of 1 to {MAX_NAME_BYTES} bytes, given once and without NUL")
        try:
            ggml = ggml_type(tensor.type_name)
            nbytes = ggml.nbytes(tensor.shape)
        except (DTypeError, ShapeError) as error:
            raise type(error)(f"{where}: {error}") from error
        shape = tuple(reversed(tensor.shape))
        infos[tensor.name] = raw_name + struct.pack(f"<I{len(shape)}qIQ", len(shape), *shape, ggml.id, offset)
        offsets.append(offset)
        sizes.append(nbytes)
        offset = _padded(offset + nbytes, alignment)
        if offset > MAX_INT64:
            raise ShapeError(f"{where}: the file would exceed 2^63 - 1 bytes")
    return list(infos.values()), offsets, sizes
