"""Pickles read by rules of our own: they can make tensors, dictionaries and plain values, and nothing else.

A pickle is a program for a small machine. Before it runs, its instructions are read one by one: only those that PyTorch
needs are allowed, and none of them may ask for more memory than the pickle has bytes. While it runs, every name that
it looks up is looked up in a table of this module. What the table gives has no attributes that the pickle could set.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

from lbrx.errors import FormatError
from lbrx.files.formats.header import quoted
from lbrx.tensors.dtype import DTYPES

MAX_PICKLE_BYTES = 32 << 20

_INSTRUCTIONS = """PROTO FRAME STOP MARK POP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
    BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
    BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID"""
_ALLOWED = frozenset(name for line in _INSTRUCTIONS.splitlines() for name in line.split())
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
    """The type of a storage: its dtype, or None for bytes whose dtype the tensor knows."""

    dtype_name: str | None


class PickledDType(NamedTuple):
    """A dtype of PyTorch, by the name that it has here."""

    dtype_name: str


class PickledStorage(NamedTuple):
    """A run of elements in a member of the archive; ``elements`` are bytes if there is no dtype."""

    dtype_name: str | None
    key: str
    elements: int


class PickledTensor(NamedTuple):
    """A tensor: elements of a storage, seen through an offset, sizes and strides, all as the pickle gives them."""

    storage: PickledStorage
    dtype_name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class StateDict(dict[Any, Any]):
    """Stands for an ordered dictionary. What a pickle sets as its attributes is dropped."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        del state


class _NewStateDict:
    __slots__ = ()

    def __call__(self, *items: Any) -> StateDict:
        return StateDict(*items)


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
            raise pickle.UnpicklingError(f"a parameter is made of {quoted(tensor)}, expected a tensor")
        return tensor


class _Sizes:
    """``torch.Size(sizes)``."""

    __slots__ = ()

    def __call__(self, sizes: Any = ()) -> tuple[Any, ...]:
        return tuple(sizes)


def _tensor(storage: Any, dtype: Any, offset: Any, shape: Any, strides: Any) -> PickledTensor:
    if not isinstance(storage, PickledStorage):
        raise pickle.UnpicklingError(f"a tensor is made of {quoted(storage)}, expected a storage")
    dtype_name = dtype.dtype_name if isinstance(dtype, PickledDType) else storage.dtype_name
    if dtype_name is None or (storage.dtype_name is not None and storage.dtype_name != dtype_name):
        raise pickle.UnpicklingError(f"a tensor has elements of {quoted(dtype)} in a storage of {storage.dtype_name}")
    sizes = [shape, strides]
    if type(offset) is not int or any(type(size) is not tuple for size in sizes) or len(shape) != len(strides):
        raise pickle.UnpicklingError(f"a tensor has offset {quoted(offset)}, shape and strides {quoted(sizes)}")
    if any(type(number) is not int for numbers in sizes for number in numbers):
        raise pickle.UnpicklingError(f"a tensor has shape and strides {quoted(sizes)}, expected whole numbers")
    return PickledTensor(storage, dtype_name, offset, shape, strides)


_KNOWN: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _NewStateDict(),
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


def _known(where: str, module: str, name: str) -> Any:
    known = _KNOWN.get((module, name))
    if known is None:
        raise FormatError(
            f"{where}: names {quoted(f'{module}.{name}')}, which is not called;"
            " expected nothing but tensors, dictionaries and plain values of usual types"
        )
    return known


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content))
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        return _known(self._where, module, name)

    def persistent_load(self, pid: Any) -> PickledStorage:
        """``("storage", type, key, device, elements)``"""
        if isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage":
            _, storage_type, key, _, elements = pid
            if isinstance(storage_type, StorageType) and isinstance(key, str) and type(elements) is int:
                return PickledStorage(storage_type.dtype_name, key, elements)
        raise FormatError(f"{self._where}: refers to {quoted(pid)}, expected the storage of a tensor")


# Whatever instructions without sense make the unpickler raise.
_BROKEN = (
    pickle.UnpicklingError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)


def unpickle(content: bytes, where: str) -> Any:
    """What a pickle holds: dictionaries, plain values and `PickledTensor`. Nothing that it names is imported or called.

    >>> unpickle(pickle.dumps({"step": 3}), "a.pt")
    {'step': 3}
    >>> unpickle(b"cos\\nsystem\\n.", "a.pt")
    Traceback (most recent call last):
    lbrx.errors.FormatError: a.pt: names 'os.system', which is not called; expected ... tensors, ...
    """
    _check_instructions(content, where)
    try:
        return _Unpickler(content, where).load()
    except _BROKEN as error:
        raise FormatError(f"{where}: is not a pickle of tensors: {_short(error)}") from error


def _check_instructions(content: bytes, where: str) -> None:
    from pickletools import genops  # long tables of texts, which only pickles need

    remembered = 0
    try:
        for instruction, argument, offset in genops(content):
            if instruction.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                _known(where, module, name)
            if instruction.name not in _ALLOWED:
                raise FormatError(
                    f"{where}: has the instruction {instruction.name} at byte {offset}, which files of tensors do not "
                    "need; nothing was run"
                )
            if instruction.name in ("BINPUT", "LONG_BINPUT"):
                remembered += 1
                # A list as long as the largest number is allocated; PyTorch numbers from 0 without gaps.
                if isinstance(argument, int) and argument >= 2 * remembered + 256:
                    raise FormatError(f"{where}: remembers a value as number {argument}, the {remembered}. of them")
    except (ValueError, AttributeError) as error:  # of genops, where bytes are missing or are no instruction
        raise FormatError(f"{where}: is not a pickle: {_short(error)}") from error


def _short(error: BaseException) -> str:
    return quoted(str(error) or type(error).__name__)
