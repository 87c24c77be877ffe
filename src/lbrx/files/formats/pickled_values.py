"""The values that a PyTorch pickle may contain: tensors, storages, dtypes, dictionaries and plain values.

Every name in a pickle is looked up in a table in this module. Its entries have no attributes that a pickle could set.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

from lbrx.errors import FormatError
from lbrx.files.formats.header import MAX_DIMENSIONS, quoted
from lbrx.tensors.dtype import DTYPES

_STORAGE_DTYPES = {
    "DoubleStorage": "f64",
    "FloatStorage": "f32",
    "HalfStorage": "f16",
    "BFloat16Storage": "bf16",
    "LongStorage": "i64",
    "IntStorage": "i32",
    "ShortStorage": "i16",
    "CharStorage": "i8",
    "ByteStorage": "u8",
    "BoolStorage": "bool",
}
_DTYPES = {row.numpy_name: row.name for row in DTYPES.values() if not row.is_packed}


class StorageType(NamedTuple):
    """The type of a storage: its dtype, or None for raw bytes whose dtype the tensor defines."""

    dtype_name: str | None


class PickledDType(NamedTuple):
    """A PyTorch dtype, by its lbrx name."""

    dtype_name: str


class PickledStorage(NamedTuple):
    """A run of elements in a member of the archive; without a dtype, ``elements`` counts bytes."""

    dtype_name: str | None
    key: str
    elements: int


class PickledTensor(NamedTuple):
    """A tensor: a storage with offset, sizes and strides, all unchecked values from the pickle."""

    storage: PickledStorage
    dtype_name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class NewDict:
    """``collections.OrderedDict``: the machine creates the dictionary and checks its keys."""

    __slots__ = ()


class _RebuildTensor:
    """``_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])``."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> PickledTensor:
        return _tensor(storage, None, offset, shape, strides)


class _RebuildTypedTensor:
    """``_rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype[, metadata])``."""

    __slots__ = ()

    def __call__(
        self, storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
    ) -> PickledTensor:
        return _tensor(storage, dtype, offset, shape, strides)


class _RebuildParameter:
    """``_rebuild_parameter(tensor, requires_grad, hooks)``."""

    __slots__ = ()

    def __call__(self, tensor: Any, *_: Any) -> PickledTensor:
        if not isinstance(tensor, PickledTensor):
            raise pickle.UnpicklingError(f"a parameter is made from {quoted(tensor)}, expected a tensor")
        return tensor


class _Sizes:
    """``torch.Size(sizes)``."""

    __slots__ = ()

    def __call__(self, sizes: Any = ()) -> tuple[Any, ...]:
        if type(sizes) not in (list, tuple) or len(sizes) > MAX_DIMENSIONS:
            raise pickle.UnpicklingError(f"sizes are {quoted(sizes)}, expected at most {MAX_DIMENSIONS} numbers")
        return tuple(sizes)


def _tensor(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any) -> PickledTensor:
    if not isinstance(storage, PickledStorage):
        raise pickle.UnpicklingError(f"a tensor is made from {quoted(storage)}, expected a storage")
    dtype_name = dtype.dtype_name if isinstance(dtype, PickledDType) else storage.dtype_name
    if dtype_name is None or (storage.dtype_name is not None and storage.dtype_name != dtype_name):
        raise pickle.UnpicklingError(f"a tensor has elements of {quoted(dtype)} in a storage of {storage.dtype_name}")
    sizes = [shape, strides]
    if type(offset) is not int or any(type(size) is not tuple for size in sizes) or len(shape) != len(strides):
        raise pickle.UnpicklingError(f"a tensor has offset {quoted(offset)}, shape and strides {quoted(sizes)}")
    if len(shape) > MAX_DIMENSIONS:
        raise pickle.UnpicklingError(f"a tensor has {len(shape)} dimensions, expected at most {MAX_DIMENSIONS}")
    if any(type(number) is not int for numbers in sizes for number in numbers):
        raise pickle.UnpicklingError(f"a tensor has shape and strides {quoted(sizes)}, expected integers")
    return PickledTensor(storage, dtype_name, offset, shape, strides)


_KNOWN: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): NewDict(),
    ("torch", "Size"): _Sizes(),
    ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
    ("torch._utils", "_rebuild_tensor"): _RebuildTensor(),
    ("torch._utils", "_rebuild_tensor_v3"): _RebuildTypedTensor(),
    ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
    ("torch.storage", "UntypedStorage"): StorageType(None),
    ("torch", "UntypedStorage"): StorageType(None),
    **{("torch", name): StorageType(dtype_name) for name, dtype_name in _STORAGE_DTYPES.items()},
    **{("torch", name): PickledDType(dtype_name) for name, dtype_name in _DTYPES.items()},
}


def known_value(where: str, module: str, name: str) -> Any:
    """Return the value that a name in a pickle refers to; names that are not in the table are an error."""
    known = _KNOWN.get((module, name))
    if known is None:
        raise FormatError(
            f"{where}: names {quoted(f'{module}.{name}')}, which is not called;"
            " expected only tensors, dictionaries and plain values of common types"
        )
    return known


def storage_of(where: str, reference: Any) -> PickledStorage:
    """Return the storage that a reference names: ``("storage", type, key, device, elements)``.

    Files from before PyTorch 1.6 add None, or a view of the storage, which only very old ones have.
    """
    if isinstance(reference, tuple) and len(reference) == 6 and reference[5] is None:
        reference = reference[:5]
    if isinstance(reference, tuple) and len(reference) == 5 and reference[0] == "storage":
        _, storage_type, key, _, elements = reference
        if isinstance(storage_type, StorageType) and isinstance(key, str) and type(elements) is int:
            return PickledStorage(storage_type.dtype_name, key, elements)
    raise FormatError(f"{where}: refers to {quoted(reference)}, expected the storage of a tensor")
