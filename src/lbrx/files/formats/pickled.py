"""PyTorch files: a zip archive with a pickle ``data.pkl``, and a member ``data/N`` with the elements of each storage.

Several tensors can share a storage; each has an offset and strides into it. Elements are stored uncompressed,
so they can be mapped as in any other format. Files from before PyTorch 1.6 have no archive, see
`legacy_pickled`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lbrx.errors import FormatError, ShapeError
from lbrx.files.formats.detect import LEGACY_MAGIC
from lbrx.files.formats.header import MAX_INT64, FileHeader, TensorEntry, element_count, is_text, quoted
from lbrx.files.formats.legacy_pickled import read_legacy
from lbrx.files.formats.pickled_archive import Member, find_one, read_member, read_members
from lbrx.files.formats.pickled_machine import MAX_PICKLE_BYTES, unpickle
from lbrx.files.formats.pickled_values import PickledTensor
from lbrx.files.formats.source import read_at, size_of
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.shape import Layout

MAX_TENSORS = 1_000_000
MAX_NAME_LENGTH = 4096
_MAX_NAMES_LENGTH = 64 << 20  # all names together: nested shared dictionaries can expand to far more than the pickle
_USUAL_VALUES = 100_000  # more are allowed only if the pickle has as many bytes
_MAX_DEPTH = 16
_MAX_BYTE_ORDER_BYTES = 16
# Keys under which training programs store the weights, next to optimizer states and counters.
_MODEL_KEYS = ("state_dict", "model_state_dict", "model", "module")


def read_header(path: Path, file: BinaryIO) -> FileHeader:
    """Read and check the tensor descriptions of an open PyTorch file; nothing that its pickle names is called."""
    if read_at(file, path, 0, min(size_of(file), len(LEGACY_MAGIC))) == LEGACY_MAGIC:
        content, members, byte_order = read_legacy(path, file)
        return _header(path, file, "", str(path), content, members, MAX_PICKLE_BYTES, byte_order)
    members = read_members(path, file)
    pickled = find_one(members, "data.pkl")
    if pickled is None:
        raise FormatError(f"{path}: is a zip archive without a pickle 'data.pkl'; expected a PyTorch checkpoint")
    folder = pickled.name.removesuffix("data.pkl")
    if f"{folder}constants.pkl" in members:
        raise FormatError(f"{path}: is a TorchScript program; expected a PyTorch checkpoint of tensors")
    where = f"{path}: {pickled.name}"
    content = unpickle(read_member(path, file, pickled, MAX_PICKLE_BYTES), where)
    byte_order = _byte_order(path, file, members.get(f"{folder}byteorder"))
    return _header(path, file, folder, where, content, members, pickled.nbytes, byte_order)


def _header(
    path: Path,
    file: BinaryIO,
    folder: str,
    where: str,
    content: Any,
    members: Mapping[str, Member],
    pickle_bytes: int,
    byte_order: str,
) -> FileHeader:
    entries = [
        _entry(path, folder, name, tensor, members)
        for name, tensor in _named_tensors(where, _model_part(content), _USUAL_VALUES + pickle_bytes)
    ]
    if not entries:
        raise FormatError(f"{where}: has no dictionary with tensors; expected a model's state_dict")
    entries.sort(key=lambda entry: entry.offset)
    return FileHeader(path, "pytorch", size_of(file), byte_order, tuple(entries), {})


def _byte_order(path: Path, file: BinaryIO, member: Member | None) -> str:
    if member is None:
        return "little"
    text = read_member(path, file, member, _MAX_BYTE_ORDER_BYTES)
    if text not in (b"little", b"big"):
        raise FormatError(f"{path}: {quoted(member.name)} is {text!r}, expected 'little' or 'big'")
    return text.decode()


def _model_part(content: Any) -> Any:
    """Return the state_dict: the dictionary itself, or the entry that a training program saved it under."""
    if isinstance(content, dict) and not any(isinstance(value, PickledTensor) for value in content.values()):
        for key in _MODEL_KEYS:
            if isinstance(content.get(key), dict):
                return content[key]
    return content


def _named_tensors(where: str, content: Any, max_values: int) -> Iterator[tuple[str, PickledTensor]]:
    """Yield the tensors of a dictionary and, with dotted names, of nested dictionaries; skip other values."""
    names: set[str] = set()
    visited = length = 0
    max_values = min(max_values, MAX_TENSORS)
    waiting: list[tuple[str, int, Any]] = [("", 0, content)]
    while waiting:
        prefix, depth, value = waiting.pop()
        visited += 1
        if visited > max_values or depth > _MAX_DEPTH:
            raise FormatError(
                f"{where}: has more than {max_values:,} values, or dictionaries nested deeper than {_MAX_DEPTH}"
            )
        if isinstance(value, PickledTensor):
            if prefix in names:
                raise FormatError(f"{where}: tensor {quoted(prefix)} appears twice")
            names.add(prefix)
            yield prefix, value
        elif isinstance(value, dict):
            children = [(key, child) for key, child in value.items() if isinstance(child, (PickledTensor, dict))]
            length += len(children) * len(prefix)
            if length > _MAX_NAMES_LENGTH:
                raise FormatError(f"{where}: its names have more than {_MAX_NAMES_LENGTH:,} characters")
            waiting += [(_joined(where, prefix, key), depth + 1, child) for key, child in reversed(children)]


def _joined(where: str, prefix: str, key: Any) -> str:
    if not isinstance(key, str) and type(key) is not int:
        raise FormatError(f"{where}: a tensor has the key {quoted(key)}, expected a name")
    name = f"{prefix}.{key}" if prefix else str(key)
    if len(name) > MAX_NAME_LENGTH:
        raise FormatError(f"{where}: a tensor's name has {len(name)} characters, expected at most {MAX_NAME_LENGTH}")
    if not is_text(name):
        raise FormatError(f"{where}: a tensor's name is {quoted(name)}, expected text that UTF-8 can encode")
    return name


def _entry(path: Path, folder: str, name: str, tensor: PickledTensor, members: Mapping[str, Member]) -> TensorEntry:
    where = f"{path}: tensor {quoted(name)}"
    storage = tensor.storage
    member = members.get(f"{folder}data/{storage.key}")
    if member is None:
        raise FormatError(f"{where} has its elements in {quoted(f'data/{storage.key}')}, which is not in the archive")
    dtype = DTYPES[tensor.dtype_name]
    if storage.elements < 0 or member.nbytes != storage.elements * (dtype.itemsize if storage.dtype_name else 1):
        raise FormatError(
            f"{where}: {quoted(member.name)} has {member.nbytes} bytes, expected those of {storage.elements} elements"
            f" of {storage.dtype_name or 'one byte'}"
        )
    _check_shape(where, tensor)
    layout = Layout(tensor.shape, tensor.strides, tensor.offset)
    first, end = layout.span()
    if first < 0 or end * dtype.itemsize > member.nbytes:
        raise FormatError(
            f"{where} reaches to element {end} of its storage, which has {member.nbytes // dtype.itemsize}"
        )
    nbytes = (end - first) * dtype.itemsize
    offset = member.offset + first * dtype.itemsize
    return TensorEntry(name, dtype.name, dtype, tensor.shape, offset, nbytes, tensor.strides)


def _check_shape(where: str, tensor: PickledTensor) -> None:
    try:
        elements = element_count(tensor.shape)
    except ShapeError as error:
        raise FormatError(f"{where}: {error}") from error
    if elements > MAX_INT64 // 8:  # strides of 0 allow this many in a storage of any size
        raise FormatError(f"{where}: shape {quoted(tensor.shape)} has more than 2^63 - 1 bytes")
    if tensor.offset < 0 or any(stride < 0 for stride in tensor.strides):
        raise FormatError(
            f"{where} has offset {quoted(tensor.offset)} and strides {quoted(tensor.strides)}, expected none below 0"
        )
