"""The element types: one row each.

Kernels never see a 16-bit or 8-bit float. They see the *carrier*, an unsigned integer that holds the bits, and convert
in registers. ``compute`` is the type of arithmetic on a dtype.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, nearest


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DType:
    """An element type. It equals its names: ``tensor.dtype == "bf16"``.

    >>> from lbrx.tensors.dtype import dtype
    >>> dtype("bf16").bits, dtype("bf16").compute.name
    (16, 'f32')
    """

    name: str
    bits: int
    kind: str  # "f" float, "i" signed, "u" unsigned, "b" bool
    carrier: np.dtype[Any]  # holds the bits in memory; packed elements share a byte
    numpy_name: str  # the name in NumPy or ml_dtypes
    compute_name: str
    safetensors: str | None  # the name in a SafeTensors header
    gguf: int | None  # ggml's type id

    @property
    def compute(self) -> DType:
        """The type of arithmetic on this dtype.

        >>> dtype("bf16").compute
        DType(f32)
        """
        return DTYPES[self.compute_name]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of an element.

        >>> dtype("f32").numpy
        dtype('float32')
        """
        return _numpy_dtype(self.numpy_name)

    @property
    def is_packed(self) -> bool:
        """Whether several elements share one byte.

        >>> dtype("i4").is_packed, dtype("i8").is_packed
        (True, False)
        """
        return self.bits < 8

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers.

        >>> dtype("bf16").is_float
        True
        """
        return self.kind == "f"

    @property
    def itemsize(self) -> int:
        """Bytes of the carrier.

        >>> dtype("bf16").itemsize
        2
        """
        return int(self.carrier.itemsize)

    def nbytes(self, elements: int) -> int:
        """Return the bytes of this many elements. Packed elements are rounded up to a whole byte.

        >>> dtype("i4").nbytes(3)
        2
        """
        return (elements * self.bits + 7) // 8

    def __eq__(self, other: object) -> bool:
        """Compare with a dtype, its name or its NumPy dtype.

        >>> dtype("bf16") == "bf16", dtype("bf16") == "bfloat16", dtype("f32") == np.float32, dtype("f32") == "f16"
        (True, True, True, False)
        """
        if self is other:
            return True
        if isinstance(other, str):
            return _ALIASES.get(other, other) == self.name
        return isinstance(other, (np.dtype, type)) and self.numpy == other

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


DTypeLike = DType | str | np.dtype[Any] | type
"""A dtype, its name, or the NumPy dtype or type."""


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name not in _ADDED_TO_NUMPY:
        return np.dtype(name)
    import ml_dtypes

    result: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return result


_ADDED_TO_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "int2")


def _row(
    name: str, bits: int, kind: str, carrier: str, numpy: str, compute: str, safetensors: str | None, gguf: int | None
) -> DType:
    return DType(name, bits, kind, np.dtype(carrier), numpy, compute, safetensors, gguf)


_ROWS = (
    _row("f64", 64, "f", "float64", "float64", "f64", "F64", 28),
    _row("f32", 32, "f", "float32", "float32", "f32", "F32", 0),
    _row("f16", 16, "f", "uint16", "float16", "f32", "F16", 1),
    _row("bf16", 16, "f", "uint16", "bfloat16", "f32", "BF16", 30),
    _row("f8_e4m3", 8, "f", "uint8", "float8_e4m3fn", "f32", "F8_E4M3", None),
    _row("f8_e5m2", 8, "f", "uint8", "float8_e5m2", "f32", "F8_E5M2", None),
    _row("i64", 64, "i", "int64", "int64", "i64", "I64", 27),
    _row("i32", 32, "i", "int32", "int32", "i32", "I32", 26),
    _row("i16", 16, "i", "int16", "int16", "i16", "I16", 25),
    _row("i8", 8, "i", "int8", "int8", "i8", "I8", 24),
    _row("u8", 8, "u", "uint8", "uint8", "u8", "U8", None),
    _row("bool", 8, "b", "uint8", "bool", "bool", "BOOL", None),
    _row("i4", 4, "i", "uint8", "int4", "i8", None, None),
    _row("i2", 2, "i", "uint8", "int2", "i8", None, None),
)

DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
BY_SAFETENSORS: dict[str, DType] = {row.safetensors: row for row in _ROWS if row.safetensors}
BY_GGUF: dict[int, DType] = {row.gguf: row for row in _ROWS if row.gguf is not None}
_BY_NUMPY: dict[np.dtype[Any], DType] = {row.numpy: row for row in _ROWS if row.numpy_name not in _ADDED_TO_NUMPY}
_OTHER_NAMES = {"double": "f64", "float": "f32", "half": "f16", "fp16": "f16", "fp32": "f32"}
_ALIASES = {row.numpy_name: row.name for row in _ROWS} | _OTHER_NAMES


def dtype(spec: DTypeLike) -> DType:
    """Look up a dtype by name (``"bf16"``, ``"bfloat16"``, ``"torch.bfloat16"``), NumPy dtype or DType.

    >>> dtype("bfloat16"), dtype(np.float32)
    (DType(bf16), DType(f32))
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str):
        plain = spec.removeprefix("torch.")
        name = _ALIASES.get(plain, plain)
        if name in DTYPES:
            return DTYPES[name]
        raise DTypeError(
            f"unknown dtype {spec!r}; expected one of {', '.join(DTYPES)}{nearest(spec, [*DTYPES, *_ALIASES])}"
        )
    try:
        wanted = np.dtype(spec).newbyteorder("=")
    except TypeError as error:
        raise DTypeError(f"{spec!r} is not a dtype; expected one of {', '.join(DTYPES)}") from error
    known = _BY_NUMPY.get(wanted)
    if known is None:
        known = next((row for row in _ROWS if row.numpy == wanted), None)
    if known is None:
        raise DTypeError(f"NumPy dtype {np.dtype(spec)} has no lbrx dtype; expected one of {', '.join(DTYPES)}")
    return known


@cache
def promote(a: DType, b: DType) -> DType:
    """Return the dtype of arithmetic between two dtypes: NumPy's rules over their compute types.

    >>> promote(dtype("bf16"), dtype("i8"))
    DType(f32)
    """
    if a.compute is b.compute:
        return a.compute
    return _BY_NUMPY[np.result_type(a.compute.numpy, b.compute.numpy)]
