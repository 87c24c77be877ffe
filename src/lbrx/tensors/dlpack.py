"""DLPack capsules for the dtypes that NumPy lacks: bf16 and 8-bit floats.

See https://dmlc.github.io/dlpack: a capsule holds a DLManagedTensor, and its consumer calls the deleter.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

TYPE_CODES = {"bf16": (4, 16), "f8_e4m3": (10, 8), "f8_e5m2": (12, 8)}
"""DLPack's type code and bits of each dtype."""
CPU = (1, 0)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
_NAME = b"dltensor"
_alive: dict[int, Any] = {}  # keeps the targets of capsules alive until their deleter is called


def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _forget_unused(capsule: int) -> None:
    """Destroy a capsule. Consumers rename the capsules that they take, so this frees only unused ones."""
    if _is_valid(capsule, _NAME):
        _alive.pop(_pointer(capsule, _NAME), None)


_deleter = _Deleter(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget_unused)


def capsule(array: npt.NDArray[Any], dtype_name: str) -> Any:
    """Return a capsule of a contiguous copy of an array. Consumers may write to it.

    >>> type(capsule(np.zeros(2, np.uint16), "bf16")).__name__
    'PyCapsule'
    """
    values = np.array(array, order="C")
    code, bits = TYPE_CODES[dtype_name]
    shape = (ctypes.c_int64 * max(values.ndim, 1))(*values.shape)
    managed = _Managed()
    managed.tensor = _Tensor(values.ctypes.data, *CPU, values.ndim, code, bits, 1, shape, None, 0)
    managed.deleter = _deleter
    address = ctypes.addressof(managed)
    _alive[address] = managed, values, shape
    return _new(address, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))
