"""Whether values are finite, told by their bits while they are at hand."""

from __future__ import annotations

import threading

import numpy as np

from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import Bytes

# The bits of the least positive value that is not finite: infinity, or NaN in f8_e4m3, which has no infinity.
_FIRST_NONFINITE = {
    "f64": 0x7FF << 52,
    "f32": 0xFF << 23,
    "f16": 0x1F << 10,
    "bf16": 0xFF << 7,
    "f8_e4m3": 0x7F,
    "f8_e5m2": 0x1F << 2,
}
_WORD_BYTES = 4
_NATIVE_BYTES = 4096  # below, NumPy is quicker than a call
_flags = threading.local()


def has_nonfinite(data: Bytes, kind: DType) -> bool:
    """Whether some elements in these bytes are NaN or infinite; always False for whole numbers.

    >>> import lbrx, numpy as np
    >>> has_nonfinite(np.array([1.0, -np.inf], np.float32).view(np.uint8), lbrx.dtype("f32"))
    True
    """
    if not kind.is_float or not data.size:
        return False
    if kind.itemsize not in (2, 4) or data.size < _NATIVE_BYTES:
        return _has_large_bits(data, kind)
    whole = data.size - data.size % _WORD_BYTES
    return _has_all_bits(data[:whole], kind) or (whole < data.size and _has_large_bits(data[whole:], kind))


def _has_large_bits(data: Bytes, kind: DType) -> bool:
    """The bits of positive numbers, taken as integers, are in the order of the numbers, and those of infinity and NaN
    are the highest; so are those of negative ones when the integers are unsigned. Two maxima tell."""
    first = _FIRST_NONFINITE[kind.name]
    bits = data.view(f"i{kind.itemsize}")
    sign = 1 << (kind.bits - 1)
    return bool(bits.max() >= first or bits.view(f"u{kind.itemsize}").max() >= first + sign)


def _has_all_bits(data: Bytes, kind: DType) -> bool:
    """All bits of the exponent are set, in either half of a word where the elements are halves."""
    from lbrx.devices.cpu.native import kernel

    low = _FIRST_NONFINITE[kind.name]
    flag = getattr(_flags, "array", None)
    if flag is None:
        flag = _flags.array = np.zeros(1, np.uint8)
    flag[0] = 0
    high = low << 16 if kind.itemsize == 2 else low
    kernel("finite", "find", 5)(data.ctypes.data, data.size // 4, low, high, flag.ctypes.data)
    return bool(flag[0])
