"""Sub-byte types in a format that has none: the metadata `lbrx.packed` and how it is read.

It is a JSON object with tensor names as keys: `{"w": {"dtype": "i4", "shape": [64, 128]}}`. `w` itself is stored as
U8 of shape `[4096]`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.header import MAX_DIMENSIONS, MAX_INT64, TensorEntry, TensorSpec, quoted
from lbrx.files.formats.strict_json import parse_object
from lbrx.tensors.dtype import DTYPES

PACKED_KEY = "lbrx.packed"


def describe_packed(tensors: Sequence[TensorSpec]) -> str:
    """Return the value of `lbrx.packed` for these tensors.

    >>> describe_packed([TensorSpec("w", "i4", (2, 4))])
    '{"w":{"dtype":"i4","shape":[2,4]}}'
    """
    described = {tensor.name: {"dtype": tensor.type_name, "shape": list(tensor.shape)} for tensor in tensors}
    return json.dumps(described, ensure_ascii=False, separators=(",", ":"))


def restore_packed(path: Path, entries: Sequence[TensorEntry], description: str) -> list[TensorEntry]:
    """Restore packed types and shapes in the entries, after checking that the stored bytes match.

    >>> stored = TensorEntry("w", "u8", DTYPES["u8"], (4,), 64, 4)
    >>> restore_packed(Path("a.safetensors"), [stored], '{"w":{"dtype":"i4","shape":[2,4]}}')[0].shape
    (2, 4)
    """
    described = parse_object(description, f"{path}: metadata {PACKED_KEY!r}")
    unknown = described.keys() - {entry.name for entry in entries}
    if unknown:
        raise FormatError(f"{path}: metadata {PACKED_KEY!r} names tensor {quoted(min(unknown))}, which is missing")
    return [_restored(path, entry, described[entry.name]) if entry.name in described else entry for entry in entries]


def _restored(path: Path, entry: TensorEntry, described: Any) -> TensorEntry:
    where = f"{path}: metadata {PACKED_KEY!r} of tensor {quoted(entry.name)}"
    if not isinstance(described, dict) or described.keys() != {"dtype", "shape"}:
        raise FormatError(f"{where}: expected an object with 'dtype' and 'shape'")
    name, shape = described["dtype"], described["shape"]
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not dtype.is_packed:
        packed = ", ".join(row.name for row in DTYPES.values() if row.is_packed)
        raise FormatError(f"{where}: dtype is {quoted(name)}, expected one of {packed}")
    if not _is_shape(shape):
        raise FormatError(f"{where}: shape is {quoted(shape)}, expected a list of sizes")
    if entry.type_name != "u8" or entry.shape != (dtype.nbytes(prod(shape)),):
        raise FormatError(
            f"{where}: is stored as {entry.type_name} {list(entry.shape)}, expected u8 [{dtype.nbytes(prod(shape))}]"
            f" for {dtype} {quoted(shape)}"
        )
    return entry._replace(type_name=dtype.name, dtype=dtype, shape=tuple(shape))


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size <= MAX_INT64 for size in shape)
        and prod(size or 1 for size in shape) <= MAX_INT64
    )
