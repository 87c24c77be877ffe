"""Values without axes: computed with NumPy's scalars, outside of passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.fuse import Input, InputNumber
from lbrx.tensors.coded import stored_key
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr, Kth, Map, MatMul, Scalar, Source, Stored, common_dtype
from lbrx.tensors.storage import Storage

if TYPE_CHECKING:
    from lbrx.engine.bind import Known


def _order_key(value: Any) -> Any:
    """An integer that sorts as the value does: NaN above everything, both zeros alike."""
    if not isinstance(value, np.floating):
        return value
    integer = np.int64 if value.dtype == np.float64 else np.int32
    largest = np.iinfo(integer).max
    bits: Any = (value + value.dtype.type(0)).view(integer)
    return largest if np.isnan(value) else bits ^ (bits >> (8 * bits.itemsize - 1) & largest)


def _erf(value: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(value).astype(value.dtype)


def _pow(base: Any, exponent: Any) -> Any:
    """A power; a negative power of an integer is rounded toward zero."""
    if base.dtype.kind == "f":
        return np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)
    whole = np.power(base, np.maximum(exponent, 0))
    inverse = np.where(base == 1, 1, np.where(base == -1, 1 - 2 * (exponent & 1), 0)).astype(base.dtype)
    return np.where(exponent < 0, inverse, whole)


SCALAR_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "round": np.rint,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "acos": np.arccos,
    "tanh": np.tanh,
    "erf": _erf,
    "pow": _pow,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "isnan": np.isnan,
    "where": np.where,
    "order_key": _order_key,
}
_OWN_TYPES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "order_key"})


def scalar_value(expr: Expr, known: Known) -> Any:
    """The value of an expression without axes, whose reductions are known.

    >>> from lbrx.engine.bind import Known
    >>> from lbrx.tensors.expr import apply
    >>> float(scalar_value(apply("div", Scalar(1.0), Scalar(4.0)), Known()))
    0.25
    """
    if isinstance(expr, Scalar):
        return known.input_numbers[expr.number] if isinstance(expr, InputNumber) else expr.value
    value = known.scalars.get(id(expr))
    if value is not None:
        return value
    with np.errstate(all="ignore"):
        return _value(expr, known)


def _value(expr: Expr, known: Known) -> Any:
    if isinstance(expr, Scalar):
        return scalar_value(expr, known)
    value = known.scalars.get(id(expr))
    if value is None:
        value = known.scalars[id(expr)] = _computed(expr, known)
    return value


def _computed(expr: Expr, known: Known) -> Any:
    if isinstance(expr, Map):
        return _mapped(expr, [_value(arg, known) for arg in expr.args])
    if isinstance(expr, Source | Input):
        storage, first = known.source(expr)
        return _read(storage, expr.dtype, first)
    if isinstance(expr, Stored):
        return _read(known.stored[stored_key(expr.inner)], expr.dtype, expr.layout.offset)
    if isinstance(expr, MatMul):
        return _read(known.stored[id(expr)], expr.dtype, 0)
    if isinstance(expr, Kth):
        result = known.searches[id(expr.search)]
        return {"value": result.value, "key": result.key, "index": result.index}[expr.part]
    raise AssertionError(f"{type(expr).__name__} should be known by now")


def _mapped(expr: Map, values: list[Any]) -> Any:
    if expr.op == "cast":
        return _cast(values[0], expr)
    if expr.op == "sqrt" and type(values[0]) is np.float64 and values[0] >= 0:
        return np.float64(math.sqrt(values[0]))  # a norm: as exact, and without the cost of NumPy's settings
    dtype = common_dtype(expr.args) if expr.op in _OWN_TYPES else expr.dtype
    start = 1 if expr.op == "where" else 0
    typed = [*values[:start], *(_typed(value, dtype) for value in values[start:])]
    return _typed(SCALAR_FUNCTIONS[expr.op](*typed), expr.dtype)


def _typed(value: Any, dtype: DType) -> Any:
    """The value in the type that a dtype computes in."""
    wanted = dtype.compute.numpy
    if type(value) is wanted.type:
        return value
    if wanted.kind == "f" and isinstance(value, float):  # NumPy's float64 is one, too
        return wanted.type(value)
    return np.asarray(value).astype(wanted)[()]


def _cast(value: Any, expr: Expr) -> Any:
    """Rounded to the dtype and widened again to the type it computes in; floats clip at the ends of integers."""
    dtype = expr.dtype
    number = np.asarray(value)
    if dtype.kind in "iu" and number.dtype.kind == "f":
        return dtype.compute.numpy.type(_clipped(float(number), dtype.bits, dtype.kind == "i"))
    if dtype.is_packed:
        wrapped = int(number) & ((1 << dtype.bits) - 1)
        return dtype.compute.numpy.type(wrapped - (1 << dtype.bits) * (wrapped >> (dtype.bits - 1)))
    if dtype.compute is not dtype and number.dtype != np.float32:
        number = _odd_f32(number.item())
    return number.astype(dtype.numpy).astype(dtype.compute.numpy)[()]


def _odd_f32(exact: float | int) -> npt.NDArray[np.float32]:
    """The number as float32 rounded to odd, so that a second rounding to a half type is the correct one."""
    narrow = np.asarray(exact, np.float32)
    if math.isnan(exact) or narrow.item() == exact:
        return narrow
    if abs(narrow.item()) > abs(exact):
        narrow = np.asarray(np.nextafter(narrow, np.float32(0.0)))
    return (narrow.view(np.uint32) | np.uint32(1)).view(np.float32)


def _clipped(number: float, bits: int, signed: bool) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if math.isnan(number):
        return 0
    return low if number <= low else high if number >= high else int(number)


def _read(storage: Storage, dtype: DType, index: int) -> Any:
    """One element of a storage, in the type it computes in."""
    if dtype.is_packed:
        byte = int(storage.read_at(index * dtype.bits // 8, 1)[0])
        code = (byte >> (index * dtype.bits % 8)) & ((1 << dtype.bits) - 1)
        return np.int8(code - (1 << dtype.bits) * (code >> (dtype.bits - 1)))
    window = np.array(storage.read_at(index * dtype.itemsize, dtype.itemsize))
    return window.view(dtype.numpy).astype(dtype.compute.numpy)[0]
