"""SafeTensors files: u64 length of the header, JSON header, data.

The header maps names to `{"dtype", "shape", "data_offsets": [begin, end]}`, with offsets relative to the end of
the header, and `__metadata__` to strings. Sub-byte types have no id in the format: they are stored as bytes
(U8, one dimension), and the metadata entry `lbrx.packed` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from lbrx.errors import DTypeError, FormatError, ShapeError, UsageError, nearest
from lbrx.files.formats.header import (
    MAX_DIMENSIONS,
    MAX_INT64,
    FileHeader,
    FileLayout,
    Slot,
    TensorEntry,
    TensorSpec,
    element_count,
    quoted,
)
from lbrx.files.formats.packed import PACKED_KEY, describe_packed, restore_packed
from lbrx.files.formats.safetensors_header import BY_NAME, ELEMENT_TYPES, METADATA_KEY, read_compact
from lbrx.files.formats.source import read_at, size_of
from lbrx.files.formats.strict_json import check_text, decoded, parse_object
from lbrx.tensors.dtype import DTYPES

MAX_HEADER_BYTES = 100_000_000
DATA_ALIGNMENT = 64
LARGE_BYTES, LARGE_ALIGNMENT = 1 << 20, 16 << 10  # of data; a multiple of the page size of all common systems


def read_header(path: Path, file: BinaryIO) -> FileHeader:
    """Read and check the header of an open SafeTensors file.

    >>> import tempfile
    >>> layout = lay_out("a.safetensors", [TensorSpec("w", "bf16", (2, 3))], {"format": "pt"})
    >>> with tempfile.TemporaryFile() as file:
    ...     written = file.write(layout.header + bytes(12))
    ...     file.flush()
    ...     header = read_header(Path("a.safetensors"), file)
    >>> header.entries[0].shape, header.metadata
    ((2, 3), {'format': 'pt'})
    """
    file_bytes = size_of(file)
    if file_bytes < 8:
        raise FormatError(f"{path}: has {file_bytes} bytes, expected at least the 8 of the header's length")
    header_bytes = int.from_bytes(read_at(file, path, 0, 8), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise FormatError(f"{path}: header of {header_bytes} bytes, expected at most {MAX_HEADER_BYTES}")
    data_start = 8 + header_bytes
    if data_start > file_bytes:
        raise FormatError(f"{path}: header ends at byte {data_start}, but the file has {file_bytes}")
    raw = read_at(file, path, 8, header_bytes)
    if not raw.startswith(b"{"):
        raise FormatError(f"{path}: header begins with {raw[:8]!r}, expected '{{'")
    entries, metadata = _content(path, decoded(raw, f"{path}: header"), data_start, file_bytes)
    packed = metadata.pop(PACKED_KEY, None)
    if packed is not None:
        entries = restore_packed(path, entries, packed)
    return FileHeader(path, "safetensors", file_bytes, "little", tuple(entries), metadata)


def _content(path: Path, text: str, data_start: int, file_bytes: int) -> tuple[Sequence[TensorEntry], dict[str, str]]:
    """Parse the tensors, sorted by offset, and the metadata."""
    compact = read_compact(text, data_start, file_bytes)
    if compact is not None:
        metadata = _checked_metadata(path, compact.metadata)
        check_text(metadata, f"{path}: header")
        return compact.entries, metadata
    tensors = parse_object(text, f"{path}: header")
    metadata = _checked_metadata(path, tensors.pop(METADATA_KEY, None))
    entries = [_entry(path, name, tensor, data_start) for name, tensor in tensors.items()]
    entries.sort(key=attrgetter("offset", "nbytes"))
    _check_coverage(path, entries, data_start, file_bytes)
    return entries, metadata


def _checked_metadata(path: Path, metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise FormatError(f"{path}: {METADATA_KEY} is a JSON {type(metadata).__name__}, expected an object of strings")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise FormatError(
                f"{path}: {METADATA_KEY} {quoted(key)} is a JSON {type(value).__name__}, expected a string"
            )
    return metadata


def _entry(path: Path, name: str, tensor: Any, data_start: int) -> TensorEntry:
    try:
        type_id, shape, (begin, end) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: tensor {quoted(name)} is not an object with 'dtype', 'shape' and 'data_offsets' [begin, end]"
        ) from error
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= MAX_INT64:
        raise FormatError(
            f"{path}: tensor {quoted(name)} has data_offsets {quoted([begin, end])}, expected two ascending sizes"
        )
    row = ELEMENT_TYPES.get(type_id) if isinstance(type_id, str) else None
    if row is None:
        raise FormatError(
            f"{path}: tensor {quoted(name)} has dtype {quoted(type_id)}, expected one of {', '.join(ELEMENT_TYPES)}"
        )
    bits = _checked_elements(path, name, shape) * row.bits
    if bits != (end - begin) * 8:
        raise FormatError(
            f"{path}: tensor {quoted(name)} has {end - begin} bytes of data,"
            f" expected {bits / 8:.15g} for {type_id} {quoted(shape)}"
        )
    return TensorEntry(name, row.name, row.dtype, tuple(shape), data_start + begin, end - begin)


def _checked_elements(path: Path, name: str, shape: Any) -> int:
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise FormatError(
            f"{path}: tensor {quoted(name)} has shape {quoted(shape)},"
            f" expected a list of at most {MAX_DIMENSIONS} sizes"
        )
    elements = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise FormatError(f"{path}: tensor {quoted(name)} has shape {quoted(shape)}, expected sizes of at least 0")
        elements *= size
    if 0 < elements <= MAX_INT64:
        return elements
    try:
        return element_count(shape)
    except ShapeError as error:
        raise FormatError(f"{path}: tensor {quoted(name)}: {error}") from error


def _check_coverage(path: Path, entries: Sequence[TensorEntry], data_start: int, file_bytes: int) -> None:
    """Raise unless data is contiguous from the end of the header to the end of the file."""
    end = data_start
    for entry in entries:
        if entry.offset != end:
            problem = "overlaps the tensor before it" if entry.offset < end else "leaves a gap before it"
            raise FormatError(
                f"{path}: tensor {quoted(entry.name)} begins at byte {entry.offset} and {problem}, expected byte {end}"
            )
        end = entry.end
        if end > file_bytes:
            raise FormatError(f"{path}: tensor {quoted(entry.name)} ends at byte {end}, but the file has {file_bytes}")
    if end != file_bytes:
        raise FormatError(
            f"{path}: has {file_bytes - end} bytes after the last tensor, expected the file to end at {end}"
        )


def tensor_nbytes(type_name: str, shape: Sequence[int]) -> int:
    """Return the bytes that a tensor takes in a SafeTensors file.

    >>> tensor_nbytes("bf16", (2, 3)), tensor_nbytes("i4", (5,)), tensor_nbytes("u32", ())
    (12, 3, 4)
    """
    if len(shape) > MAX_DIMENSIONS:
        raise ShapeError(f"has {len(shape)} dimensions, expected at most {MAX_DIMENSIONS}")
    elements = element_count(shape)
    if type_name in DTYPES and DTYPES[type_name].is_packed:
        return DTYPES[type_name].nbytes(elements)
    if type_name not in BY_NAME:
        known = [*BY_NAME, *(row.name for row in DTYPES.values() if row.is_packed)]
        raise DTypeError(
            f"{type_name!r} is not a SafeTensors type; expected one of {', '.join(known)}" + nearest(type_name, known)
        )
    bits = elements * BY_NAME[type_name].bits
    if bits % 8:
        raise ShapeError(f"takes {bits} bits as {type_name}, expected a whole number of bytes")
    return bits // 8


def lay_out(name: str, tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> FileLayout:
    """Lay out the header and the slots of a SafeTensors file.

    Tensors are sorted by descending element size, otherwise in the given order, and the data begins at a multiple of
    64 bytes, so every tensor is aligned to its elements. The data of a large file begins at a page boundary, so
    tensors of whole pages can be written, mapped and passed to a GPU without copies.

    >>> layout = lay_out("a.safetensors", [TensorSpec("b", "bf16", (3,)), TensorSpec("a", "f32", (2,))], {})
    >>> [(slot.name, slot.offset, slot.nbytes) for slot in layout.slots], layout.file_bytes
    ([('a', 128, 8), ('b', 136, 6)], 142)
    """
    ordered = sorted(tensors, key=lambda tensor: -_bits(tensor.type_name))
    sizes = [_spec_nbytes(name, tensor) for tensor in ordered]
    header: dict[str, Any] = {}
    described = _described_metadata(name, tensors, metadata)
    if described:
        header[METADATA_KEY] = described
    begin = 0
    for tensor, nbytes in zip(ordered, sizes, strict=True):
        if tensor.name in header or tensor.name == METADATA_KEY:
            raise UsageError(f"{name}: tensor name {quoted(tensor.name)} is reserved or given twice")
        header[tensor.name] = _described_tensor(tensor, begin, nbytes)
        begin += nbytes
    raw = _padded_header(name, header, LARGE_ALIGNMENT if begin >= LARGE_BYTES else DATA_ALIGNMENT)
    slots = []
    offset = len(raw)
    for tensor, nbytes in zip(ordered, sizes, strict=True):
        slots.append(Slot(tensor.name, tensor.type_name, tensor.shape, offset, nbytes))
        offset += nbytes
    return FileLayout(name, raw, tuple(slots), offset)


def _bits(type_name: str) -> int:
    return BY_NAME[type_name].bits if type_name in BY_NAME else 8  # packed types are stored as bytes


def _spec_nbytes(file_name: str, tensor: TensorSpec) -> int:
    try:
        return tensor_nbytes(tensor.type_name, tensor.shape)
    except (DTypeError, ShapeError) as error:
        raise type(error)(f"{file_name}: tensor {quoted(tensor.name)}: {error}") from error


def _described_tensor(tensor: TensorSpec, begin: int, nbytes: int) -> dict[str, Any]:
    row = BY_NAME.get(tensor.type_name)
    type_id, shape = (row.id, list(tensor.shape)) if row else ("U8", [nbytes])
    return {"dtype": type_id, "shape": shape, "data_offsets": [begin, begin + nbytes]}


def _described_metadata(file_name: str, tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"{file_name}: metadata {key!r} is {value!r}, expected strings only")
    if PACKED_KEY in metadata:
        raise UsageError(f"{file_name}: metadata key {PACKED_KEY!r} is reserved")
    packed = [tensor for tensor in tensors if tensor.type_name not in BY_NAME]
    return {**metadata, PACKED_KEY: describe_packed(packed)} if packed else dict(metadata)


def _padded_header(file_name: str, header: Mapping[str, Any], alignment: int) -> bytes:
    try:
        raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{file_name}: a name or value of the header is not text: {error}") from error
    raw += b" " * (-(8 + len(raw)) % alignment)
    if len(raw) > MAX_HEADER_BYTES:
        raise UsageError(f"{file_name}: the header would take {len(raw)} bytes, expected at most {MAX_HEADER_BYTES}")
    return len(raw).to_bytes(8, "little") + raw
