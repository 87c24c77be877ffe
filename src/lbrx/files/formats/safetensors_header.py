"""SafeTensors element types, and a regular expression that reads the headers that nearly all programs write.

Such a header is JSON without spaces: metadata first, then the tensors in data order, each with the keys
``dtype``, ``shape`` and ``data_offsets`` in this order. This takes a third of the time of a JSON parser. Headers
that differ or are invalid go to the general reader, which reports what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import accumulate, repeat
from typing import NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, ShapeError
from lbrx.files.formats.header import MAX_DIMENSIONS, TensorEntry, element_count
from lbrx.files.formats.strict_json import MAX_CONTAINERS, unique_keys_hook
from lbrx.tensors.dtype import BY_SAFETENSORS, DType


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type of the format.

    >>> ELEMENT_TYPES["F6_E2M3"].name, ELEMENT_TYPES["F6_E2M3"].bits
    ('f6_e2m3', 6)
    """

    id: str
    name: str
    bits: int
    dtype: DType | None


_EXTRA_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "U32": 32,
    "U64": 64,
    "C64": 64,
}

ELEMENT_TYPES: dict[str, ElementType] = {
    **{type_id: ElementType(type_id, row.name, row.bits, row) for type_id, row in BY_SAFETENSORS.items()},
    **{type_id: ElementType(type_id, type_id.lower(), bits, None) for type_id, bits in _EXTRA_BITS.items()},
}
BY_NAME: dict[str, ElementType] = {row.name: row for row in ELEMENT_TYPES.values()}


METADATA_KEY = "__metadata__"
_METADATA_START = f'{{"{METADATA_KEY}":'
# A name, "F32","shape":[2,3 and two offsets; then a comma and the next tensor, or the end.
_TENSOR = re.compile(
    r'"([^"\\\x00-\x1f]*+)":\{"dtype":"([A-Z0-9_]*+","shape":\[[0-9,]*+)\]'
    r',"data_offsets":\[(0|[1-9][0-9]{0,17}+),(0|[1-9][0-9]{0,17}+)\]\}(?:,(?=")|\}\Z)'
)


class CompactHeader(NamedTuple):
    """The tensors in the order of their contiguous data, and the metadata, which may contain any JSON."""

    entries: list[TensorEntry]
    metadata: dict[str, object] | None


class _TypeAndShape(NamedTuple):
    type_name: str
    dtype: DType | None
    shape: tuple[int, ...]
    nbytes: int


def read_compact(text: str, data_start: int, file_bytes: int) -> CompactHeader | None:
    """Parse a header whose data is between these bytes of the file; return None if it has another form.

    >>> text = '{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}  '
    >>> header = read_compact(text, 104, 116)
    >>> header.entries[0].shape, header.entries[0].offset, header.metadata
    ((2, 3), 104, {'format': 'pt'})
    >>> read_compact(text.replace(":", ": "), 104, 116)
    """
    if len(text) > MAX_CONTAINERS and text.count("{") + text.count("[") > MAX_CONTAINERS:
        return None
    text = text.rstrip(" ")
    metadata, start = None, 1
    if text.startswith(_METADATA_START):
        parsed = _metadata(text)
        if parsed is None:
            return None
        metadata, start = parsed
    entries = _entries(text[start:], data_start, file_bytes)
    return None if entries is None else CompactHeader(entries, metadata)


def _metadata(text: str) -> tuple[dict[str, object], int] | None:
    """Parse the metadata; also return the position of the first tensor after it."""
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys_hook(METADATA_KEY))
    try:
        metadata, end = decoder.raw_decode(text, len(_METADATA_START))
    except (FormatError, RecursionError, ValueError):
        return None
    return (metadata, end + 1) if isinstance(metadata, dict) and text[end : end + 1] == "," else None


def _entries(text: str, data_start: int, file_bytes: int) -> list[TensorEntry] | None:
    """Parse a text of tensors; the data of the first one begins at ``data_start``."""
    pieces = _TENSOR.split(text)  # text between tensors alternates with the four groups of a tensor
    between, names, type_texts, begins, ends = (pieces[index::5] for index in range(5))
    is_whole = len(between) > 1 and not any(between)
    if not is_whole or begins[0] != "0" or begins[1:] != ends[:-1] or data_start + int(ends[-1]) != file_bytes:
        return None
    unique_names = set(names)
    if len(unique_names) != len(names) or METADATA_KEY in unique_names:
        return None
    table = _types_and_shapes(set(type_texts))
    if table is None:
        return None
    type_names, dtypes, shapes, sizes = zip(*map(table.__getitem__, type_texts), strict=True)
    if list(accumulate(sizes)) != list(map(int, ends)):
        return None
    offsets = accumulate(sizes, initial=data_start)
    return list(map(TensorEntry._make, zip(names, type_names, dtypes, shapes, offsets, sizes, repeat(None))))


def _types_and_shapes(texts: Iterable[str]) -> dict[str, _TypeAndShape] | None:
    """Return types and shapes by their text: a model has few different ones."""
    known = {}
    for text in texts:
        parsed = _type_and_shape(text)
        if parsed is None:
            return None
        known[text] = parsed
    return known


def _type_and_shape(text: str) -> _TypeAndShape | None:
    type_id, _, listed = text.partition('","shape":[')
    sizes = listed.split(",") if listed else []
    row = ELEMENT_TYPES.get(type_id)
    if row is None or len(sizes) > MAX_DIMENSIONS or not all(map(_is_size, sizes)):
        return None
    shape = tuple(map(int, sizes))
    try:
        bits = element_count(shape) * row.bits
    except ShapeError:
        return None
    return None if bits % 8 else _TypeAndShape(row.name, row.dtype, shape, bits // 8)


def _is_size(digits: str) -> bool:
    """Return whether the digits are a JSON number that can be a size."""
    return digits == "0" or (0 < len(digits) < 20 and digits[0] != "0")
