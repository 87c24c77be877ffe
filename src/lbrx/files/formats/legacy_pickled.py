"""PyTorch files from before version 1.6: pickles one after the other, then the elements of each storage.

The pickles are a magic number, the version of the format, facts about the machine, the content, and the keys of the
storages in the order in which they follow. Each storage is its number of elements as a 64-bit integer, and its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from lbrx.errors import FormatError
from lbrx.files.formats.detect import LEGACY_MAGIC
from lbrx.files.formats.header import quoted
from lbrx.files.formats.pickled_archive import Member
from lbrx.files.formats.pickled_machine import MAX_PICKLE_BYTES, unpickle_next
from lbrx.files.formats.pickled_values import PickledStorage
from lbrx.files.formats.source import read_at, size_of
from lbrx.tensors.dtype import DTYPES

_PROTOCOL = 1001
_SIZE_BYTES = 8


def read_legacy(path: Path, file: BinaryIO) -> tuple[Any, dict[str, Member], str]:
    """Return the content of the file, its storages as members of an archive, and the byte order."""
    file_bytes = size_of(file)
    stream = BytesIO(read_at(file, path, 0, min(file_bytes, MAX_PICKLE_BYTES)))
    stream.seek(len(LEGACY_MAGIC))
    storages: dict[str, PickledStorage] = {}
    protocol, system, content, keys = (
        unpickle_next(stream, f"{path}: the pickle at byte {stream.tell()}", storages) for _ in range(4)
    )
    if protocol != _PROTOCOL:
        raise FormatError(f"{path}: is of version {quoted(protocol)} of PyTorch's old format; expected {_PROTOCOL}")
    is_little = not isinstance(system, Mapping) or bool(system.get("little_endian", True))
    if not isinstance(keys, list) or len(set(map(str, keys))) < len(keys):
        raise FormatError(f"{path}: has {quoted(keys)} as a list of storages")
    members: dict[str, Member] = {}
    position = stream.tell()
    for key in keys:
        storage = storages.get(str(key))
        if storage is None or storage.dtype_name is None:
            raise FormatError(f"{path}: has the storage {quoted(key)}, which its content does not describe")
        itemsize = DTYPES[storage.dtype_name].itemsize
        if position + _SIZE_BYTES > file_bytes:
            raise FormatError(f"{path}: ends at byte {file_bytes}, before the storage {quoted(key)}")
        counted = int.from_bytes(read_at(file, path, position, _SIZE_BYTES), "little" if is_little else "big")
        nbytes = counted * itemsize
        position += _SIZE_BYTES
        if position + nbytes > file_bytes:
            raise FormatError(
                f"{path}: the storage {quoted(key)} has {counted} elements and ends at byte {position + nbytes}, but "
                f"the file has {file_bytes}"
            )
        members[f"data/{storage.key}"] = Member(f"data/{storage.key}", position, nbytes, 0)
        position += nbytes
    return content, members, "little" if is_little else "big"
