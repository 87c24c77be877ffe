"""What kernels take and give: arrays in buffers of a device, and weights in any coding."""

from __future__ import annotations

import math
import weakref
from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import Buffer, BufferBinding
from lbrx.errors import DTypeError, ShapeError, UsageError

Shape = tuple[int, ...]
ELEMENT_TYPES: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i32": np.dtype(np.int32),
    "u8": np.dtype(np.uint8),
}
FLOAT_NUMBERS = {"f32": 0, "f16": 1, "bf16": 2}
"""The numbers that shaders know floating-point types by."""
CODING_NUMBERS = {**FLOAT_NUMBERS, "q4_0": 3, "q8_0": 4, "q4_k": 5, "q6_k": 6, "affine4": 7, "affine8": 8}
"""The numbers that shaders know codings of weights by."""
BLOCKS = {"q4_0": (32, 18), "q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}
"""Values and bytes of a block."""
AFFINE_BITS = {"affine4": 4, "affine8": 8}
AFFINE_GROUPS = (32, 64, 128)
BINDING_ALIGNMENT = 4
"""Metal's rule for the offset of a buffer."""
_QUAD_ALIGNMENT = 16


class Lease:
    """A buffer of the pool: returned when the lease is forgotten. Kernels that were dispatched may still use it."""

    __slots__ = ("__weakref__",)

    def __init__(self, context: MetalContext, buffer: Buffer) -> None:
        weakref.finalize(self, context.return_buffer, buffer).atexit = False


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Elements in C order in a buffer, from byte ``offset`` on. ``owner`` is what keeps the buffer alive."""

    buffer: Buffer
    dtype: str
    shape: Shape
    offset: int = 0
    owner: object = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_TYPES:
            raise DTypeError(f"kernels have no element type {self.dtype!r}; expected {', '.join(ELEMENT_TYPES)}")
        if self.offset % BINDING_ALIGNMENT or self.offset < 0 or self.offset + self.nbytes > self.buffer.nbytes:
            raise UsageError(
                f"an array of {self.nbytes} bytes from byte {self.offset} on does not fit a buffer of "
                f"{self.buffer.nbytes} bytes; offsets are multiples of {BINDING_ALIGNMENT}"
            )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(ELEMENT_TYPES[self.dtype].itemsize)

    @property
    def binding(self) -> BufferBinding:
        """What a dispatch takes; the kernel may touch nothing else of the buffer."""
        return BufferBinding(self.buffer, self.offset, self.nbytes)

    def is_aligned(self, row_length: int) -> bool:
        """Whether rows of so many elements can be read four elements at a time."""
        return self.offset % _QUAD_ALIGNMENT == 0 and row_length % 4 == 0

    def reshape(self, *shape: int) -> DeviceArray:
        """The same elements under another shape."""
        if math.prod(shape) != self.size:
            raise ShapeError(f"an array of shape {self.shape} has no shape {shape}")
        return DeviceArray(self.buffer, self.dtype, shape, self.offset, self.owner)


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """A matrix [outputs, inputs] as a file stores it: plain elements, blocks, or codes with scales and biases."""

    coding: str
    shape: tuple[int, int]
    values: DeviceArray
    scales: DeviceArray | None = None
    biases: DeviceArray | None = None
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.coding not in CODING_NUMBERS:
            raise DTypeError(f"kernels have no coding {self.coding!r}; expected one of {', '.join(CODING_NUMBERS)}")
        expected = weight_bytes(self.coding, self.shape)
        if self.values.nbytes != expected:
            raise ShapeError(
                f"a weight of shape {self.shape} in {self.coding} has {self.values.nbytes} bytes; expected {expected}"
            )
        if self.coding in AFFINE_BITS:
            self._check_groups()

    def _check_groups(self) -> None:
        rows, columns = self.shape
        if self.group_size not in AFFINE_GROUPS or columns % self.group_size:
            raise ShapeError(
                f"{self.coding}: rows of {columns} in groups of {self.group_size}; expected whole groups of "
                f"{', '.join(map(str, AFFINE_GROUPS))}"
            )
        wanted = (rows, columns // self.group_size)
        for name, part in (("scales", self.scales), ("biases", self.biases)):
            if part is None or part.shape != wanted or part.dtype not in FLOAT_NUMBERS:
                raise ShapeError(f"{self.coding}: {name} have to be numbers of shape {wanted}")
        if self.scales is not None and self.biases is not None and self.scales.dtype != self.biases.dtype:
            raise DTypeError(f"{self.coding}: scales are {self.scales.dtype}, but biases {self.biases.dtype}")

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.values, self.scales, self.biases) if part is not None)

    @property
    def constants(self) -> dict[str, bool | int | float]:
        """Function constants of every kernel that includes ``weights.h``."""
        return {
            "weight_coding": CODING_NUMBERS[self.coding],
            "weight_group": self.group_size or 1,
            "weight_numbers": FLOAT_NUMBERS[self.scales.dtype] if self.scales is not None else 0,
            "weight_has_scales": self.scales is not None,
            "weight_is_aligned": self.values.is_aligned(self.shape[1]),
        }


def weight_bytes(coding: str, shape: tuple[int, int]) -> int:
    """Bytes of the values of a weight.

    >>> weight_bytes("q4_0", (2, 64)), weight_bytes("affine4", (2, 64)), weight_bytes("bf16", (2, 3))
    (72, 64, 12)
    """
    rows, columns = shape
    if coding in FLOAT_NUMBERS:
        return rows * columns * int(ELEMENT_TYPES[coding].itemsize)
    if coding in AFFINE_BITS:
        return rows * columns * AFFINE_BITS[coding] // 8
    values, nbytes = BLOCKS[coding]
    if columns % values:
        raise ShapeError(f"{coding}: rows of {columns} are no whole number of blocks of {values}")
    return rows * (columns // values) * nbytes


def upload(context: MetalContext, array: NDArray[Any]) -> DeviceArray:
    """A copy of an array in a buffer from the pool, which gets it back when nobody uses the array any more.

    >>> context = MetalContext.open("emulated")
    >>> download(context, upload(context, np.array([1.0, 2.0], np.float16)))
    array([1., 2.], dtype=float16)
    """
    for name, dtype in ELEMENT_TYPES.items():
        if array.dtype == dtype:
            buffer = context.buffer_from(array)
            return DeviceArray(buffer, name, array.shape, 0, Lease(context, buffer))
    raise DTypeError(f"kernels have no element type {array.dtype}; expected {', '.join(ELEMENT_TYPES)}")


def empty(context: MetalContext, dtype: str, shape: Shape) -> DeviceArray:
    """An array from the pool with unspecified contents, for a kernel to write."""
    if dtype not in ELEMENT_TYPES:
        raise DTypeError(f"kernels have no element type {dtype!r}; expected {', '.join(ELEMENT_TYPES)}")
    nbytes = math.prod(shape) * int(ELEMENT_TYPES[dtype].itemsize)
    buffer = context.get_buffer(nbytes, host_access=False)
    return DeviceArray(buffer, dtype, shape, 0, Lease(context, buffer))


def download(context: MetalContext, array: DeviceArray) -> NDArray[Any]:
    """The elements, copied when the kernels that write them are done."""
    contents = context.array(array.buffer, np.uint8)[array.offset : array.offset + array.nbytes]
    elements: NDArray[Any] = contents.view(ELEMENT_TYPES[array.dtype])
    return elements.reshape(array.shape)
