"""Element-wise operations and casts over arrays of register types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.scalars import SCALAR_FUNCTIONS
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.storage import Bytes

Array = npt.NDArray[Any]


def _minimum(a: Array, b: Array) -> Array:
    return np.where((a <= b) | (a != a), a, b)


def _maximum(a: Array, b: Array) -> Array:
    return np.where((a >= b) | (a != a), a, b)


def _in_f64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function that is rounded to the type of its argument once, at the end."""
    return lambda values: function(values.astype(np.float64)).astype(values.dtype)


def order_key(values: Array) -> Array:
    """Integers that sort as the values do: NaN above everything, both zeros alike."""
    if values.dtype.kind != "f":
        return values.astype(np.int64 if values.dtype == np.int64 else np.int32)
    integer = np.int64 if values.dtype == np.float64 else np.int32
    largest = np.iinfo(integer).max
    bits = (values + values.dtype.type(0)).view(integer)
    return np.where(np.isnan(values), largest, np.where(bits < 0, bits ^ largest, bits))


OPERATIONS: dict[str, Callable[..., Any]] = {
    **SCALAR_FUNCTIONS,
    "minimum": _minimum,
    "maximum": _maximum,
    **{name: _in_f64(SCALAR_FUNCTIONS[name]) for name in ("exp", "log", "sin", "cos", "acos", "tanh")},
    "isnan": lambda values: values != values,
    "order_key": order_key,
}
"""By the names of the operations; "cast" is apart because it depends on a dtype."""


def cast(values: Array, target: DType) -> Array:
    """Values rounded to a dtype, in the type in which arithmetic on it is done."""
    if target.name == "bool":
        return np.not_equal(values, 0)
    if target.kind in "iu" and values.dtype.kind == "f":
        return _clipped(values, target)
    if target.is_packed:
        shift = np.int8(8 - target.bits)
        return (values.astype(np.int8) << shift) >> shift
    if target.compute is target:
        return values.astype(target.numpy)
    return _narrow(values).astype(target.numpy).astype(np.float32)


def _clipped(values: Array, target: DType) -> Array:
    """Floats as integers: truncated, clipped at the ends, NaN as 0."""
    unsigned = target.kind == "u"
    low = 0 if unsigned else -(1 << (target.bits - 1))
    high = (1 << (target.bits if unsigned else target.bits - 1)) - 1
    whole = np.trunc(values.astype(np.float64))
    inside = (whole > low) & (whole < high)  # NaN is not
    found = np.where(inside, whole, 0).astype(np.int64)
    found = np.where(whole >= float(high), high, np.where(whole <= low, low, found))
    return found.astype(target.compute.numpy)


def _narrow(values: Array) -> Array:
    """Numbers as float32, from which a second rounding to a shorter float is the correct one."""
    if values.dtype == np.int64:  # beyond 53 bits, the low 11 bits only say whether any of them was set
        sticky = (values & ~0x7FF) | np.where(values & 0x7FF, 0x400, 0)
        is_long = (values >> 53 != 0) & (values >> 53 != -1)
        values = np.where(is_long, sticky, values)
    if values.dtype not in (np.int64, np.int32, np.float64):
        return values.astype(np.float32)
    wide = values.astype(np.float64)
    narrow = wide.astype(np.float32)
    back = narrow.astype(np.float64)
    toward_zero = narrow.view(np.int32) - (abs(back) > abs(wide))
    odd = (toward_zero | 1).astype(np.int32).view(np.float32)
    return np.where((back != wide) & ~np.isnan(wide), odd, narrow)


def decoded(data: Bytes, index: npt.NDArray[np.int64], dtype: DType) -> Array:
    """The elements at some indices of stored bytes, in the type in which arithmetic on them is done."""
    if dtype.is_packed:
        left = (8 - dtype.bits - index * dtype.bits % 8).astype(np.uint8)
        top = data[index * dtype.bits // 8] << left
        return np.right_shift(top.view(np.int8), np.int8(8 - dtype.bits))
    elements: Array = data.view(dtype.carrier)[index]
    if dtype.name == "bool":
        return np.not_equal(elements, 0)
    return elements.view(dtype.numpy).astype(dtype.compute.numpy)


def encoded(values: Array, dtype: DType) -> Bytes:
    """Values as the bytes of a dtype; elements of packed dtypes share bytes, the first in the lowest bits."""
    if not dtype.is_packed:
        return cast(values, dtype).astype(dtype.numpy).view(np.uint8)
    per_byte = 8 // dtype.bits
    codes = np.zeros((-(-values.size // per_byte), per_byte), np.uint8)
    codes.reshape(-1)[: values.size] = cast(values, dtype).view(np.uint8) & ((1 << dtype.bits) - 1)
    packed: Bytes = np.bitwise_or.reduce(codes << (np.arange(per_byte) * dtype.bits).astype(np.uint8), axis=1)
    return packed


def typed(value: Any, dtype_name: str) -> Any:
    """A Python or NumPy number as a scalar of a register type."""
    return np.asarray(value).astype(DTYPES[dtype_name].numpy)[()]
