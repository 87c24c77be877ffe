"""What products and operations on arrays take: arrays and tensors, seen as f32 in C order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import ShapeError
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor

_F32 = np.dtype(np.float32)
Floats = npt.NDArray[np.float32]
Values = npt.NDArray[Any] | Tensor
"""What operations take. A `lbrx.engine.recording.Recorded` value stands for an array."""


def floats(values: Values) -> Floats:
    """The values as f32 in C order: themselves where they are that already."""
    if type(values) is np.ndarray and values.dtype == _F32 and values.flags.c_contiguous:
        return values
    if recorder_of(values) is not None:
        recorded: Any = values
        return recorded.contiguous()  # type: ignore[no-any-return]
    if isinstance(values, Tensor):
        values = values.numpy() if values.type_name == "f32" else values.to("f32").numpy()
    return np.ascontiguousarray(values, np.float32).reshape(np.shape(values))


def recorder_of(values: object) -> Any:
    """The recorder of a value that is being recorded, else None."""
    return getattr(values, "recorder", None)


def is_bf16(values: Values) -> bool:
    """Whether values are stored as bf16."""
    if type(values) is np.ndarray:  # checked first: calls are many and short
        return bool(values.dtype == DTYPES["bf16"].numpy)
    if isinstance(values, Tensor):
        return values.type_name == "bf16"
    return getattr(values, "dtype", None) == DTYPES["bf16"].numpy


def row_vector(values: Values, columns: int, what: str) -> Floats:
    """A vector with one number for every column."""
    numbers = floats(values)
    if numbers.shape != (columns,):
        raise ShapeError(f"{what} has shape {numbers.shape}; expected ({columns},), one number for every column")
    return numbers


def with_last_axis(values: Values, what: str) -> Floats:
    """The values as f32, which must have at least one axis."""
    numbers = floats(values)
    if numbers.ndim == 0:
        raise ShapeError(f"{what} takes an array with at least one axis, not a single number")
    return numbers
