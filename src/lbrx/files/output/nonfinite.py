"""Values that are not finite: found on the way at no cost, counted only where there are any."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import numpy as np

from lbrx.errors import LbrxError
from lbrx.tensors.coded import Encode
from lbrx.tensors.creation import evaluate
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import Bytes
from lbrx.tensors.tensor import Tensor

RESULT = "result"
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


class NonFiniteError(LbrxError, ValueError):
    """A tensor has values that are NaN or infinite, and that was forbidden."""


def count_nonfinite(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """How many NaN and how many infinities each tensor has; those that have none are left out.

    >>> from lbrx import tensor
    >>> count_nonfinite({"a": tensor([1.0, float("nan")]), "b": tensor([1.0, 2.0])})
    {'a': (1, 0)}
    """
    counts = {}
    for where, tensor in tensors.items():
        values = _before_coding(tensor) if tensor.shape else tensor.reshape(1)
        if not values.dtype.is_float:
            continue
        nans, infinities = evaluate(values.isnan().sum(), (abs(values) == math.inf).sum())
        if nans or infinities:
            counts[where] = (int(nans), int(infinities))
    return counts


def _before_coding(tensor: Tensor) -> Tensor:
    """The values of a tensor, before they are quantized if that is still to be done."""
    expr = tensor.expr
    return Tensor(expr.encoding.values) if isinstance(expr, Encode) and not expr.part else tensor


def describe(counts: Mapping[str, tuple[int, int]]) -> str:
    """The counts in words.

    >>> describe({"models/a": (1, 0), "result": (1, 2)})
    '1 NaN and 0 infinite values in models/a; 1 NaN and 2 infinite values in the result'
    """
    return "; ".join(
        f"{nans} NaN and {infinities} infinite values in {'the result' if where == RESULT else where}"
        for where, (nans, infinities) in counts.items()
    )


def has_nonfinite(data: Bytes, dtype: DType) -> bool:
    """Whether some elements in these bytes are NaN or infinite; always False for whole numbers.

    >>> import lbrx, numpy as np
    >>> has_nonfinite(np.array([1.0, -np.inf], np.float32).view(np.uint8), lbrx.dtype("f32"))
    True
    """
    if not dtype.is_float or not data.size:
        return False
    if dtype.itemsize not in (2, 4) or data.size < _NATIVE_BYTES:
        return _has_large_bits(data, dtype)
    whole = data.size - data.size % _WORD_BYTES
    return _has_all_bits(data[:whole], dtype) or (whole < data.size and _has_large_bits(data[whole:], dtype))


def _has_large_bits(data: Bytes, dtype: DType) -> bool:
    """The bits of positive numbers, taken as integers, are in the order of the numbers, and those of infinity and NaN
    are the highest; so are those of negative ones when the integers are unsigned. Two maxima tell."""
    first = _FIRST_NONFINITE[dtype.name]
    bits = data.view(f"i{dtype.itemsize}")
    sign = 1 << (dtype.bits - 1)
    return bool(bits.max() >= first or bits.view(f"u{dtype.itemsize}").max() >= first + sign)


def _has_all_bits(data: Bytes, dtype: DType) -> bool:
    """All bits of the exponent are set, in either half of a word where the elements are halves."""
    from lbrx.devices.cpu.build.native import kernel

    low = _FIRST_NONFINITE[dtype.name]
    flag = getattr(_flags, "array", None)
    if flag is None:
        flag = _flags.array = np.zeros(1, np.uint8)
    flag[0] = 0
    high = low << 16 if dtype.itemsize == 2 else low
    kernel("finite", "find", 5)(data.ctypes.data, data.size // 4, low, high, flag.ctypes.data)
    return bool(flag[0])
