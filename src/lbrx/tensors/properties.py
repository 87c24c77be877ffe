"""What a tensor says about itself: shape, dtype, name, quantization, storage and device."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.settings import Device
from lbrx.tensors.coded import Blocks, Encode, QuantizationInfo
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Coded, Source
from lbrx.tensors.functions import function
from lbrx.tensors.shape import Shape
from lbrx.tensors.shaping import Shaping
from lbrx.tensors.storage import Storage


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Properties of a tensor besides its values."""

    name: str | None = None
    quantization: QuantizationInfo | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Properties(Shaping):
    """Properties of a tensor that are known without computing anything."""

    __slots__ = ()
    metadata: TensorMetadata

    @property
    def shape(self) -> Shape:
        """The size of each axis.

        >>> import lbrx
        >>> lbrx.tensor([[1, 2, 3]]).shape
        (1, 3)
        """
        return self.expr.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the elements.

        >>> import lbrx
        >>> lbrx.tensor([1.0], dtype="bf16").dtype == "bf16"
        True
        """
        return self.expr.dtype

    @property
    def ndim(self) -> int:
        """The number of axes.

        >>> import lbrx
        >>> lbrx.tensor([[1, 2, 3]]).ndim
        2
        """
        return len(self.expr.shape)

    @property
    def size(self) -> int:
        """The number of elements.

        >>> import lbrx
        >>> lbrx.tensor([[1, 2, 3]]).size
        3
        """
        return math.prod(self.expr.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, or of the quantized blocks.

        >>> import lbrx
        >>> lbrx.tensor([1.0, 2.0], "bf16").nbytes
        4
        """
        if isinstance(self.expr, Coded):
            return self.expr.nbytes
        return self.expr.dtype.nbytes(self.size)

    @property
    def itemsize(self) -> int:
        """Bytes per element. Packed elements share a byte.

        >>> import lbrx
        >>> lbrx.tensor([1.0], "bf16").itemsize
        2
        """
        return self.expr.dtype.itemsize

    @property
    def name(self) -> str | None:
        """The name in its file, or the assigned name.

        >>> import lbrx
        >>> lbrx.tensor([1.0], name="norm.weight").name
        'norm.weight'
        """
        return self.metadata.name

    @property
    def quantization(self) -> QuantizationInfo | None:
        """How the tensor is quantized, or None. Scales and zero points are on the device of the tensor.

        >>> import lbrx
        >>> lbrx.zeros((32,), "f32").quantize("q8_0").quantization.bits
        8.5
        """
        info, coded = self.metadata.quantization, self.expr
        if info is None or info.scales is None or not isinstance(coded, (Blocks, Encode)):
            return info
        scales, zero_points = (None if number is None else self._made(number) for number in coded.numbers)
        return replace(info, scales=scales, zero_points=zero_points)

    @property
    def type_name(self) -> str:
        """The name of the dtype or of the quantization.

        >>> import lbrx
        >>> lbrx.zeros((32,), "f32").quantize("q8_0").type_name
        'q8_0'
        """
        return self.expr.codec if isinstance(self.expr, Coded) else self.expr.dtype.name

    @property
    def storage(self) -> Storage | None:
        """The storage of the elements, or None for a lazy expression.

        >>> import lbrx
        >>> lbrx.tensor([1.0]).storage.nbytes, (lbrx.tensor([1.0]) + 1).storage
        (8, None)
        """
        return self.expr.storage if isinstance(self.expr, (Source, Blocks)) else None

    @property
    def is_view(self) -> bool:
        """Whether the elements are stored and seen through a layout, so there is nothing to compute.

        >>> import lbrx
        >>> lbrx.tensor([1.0, 2.0])[1:].is_view, (lbrx.tensor([1.0]) + 1).is_view
        (True, False)
        """
        return isinstance(self.expr, Source)

    @property
    def device(self) -> Device:
        """The device of its elements, or of the elements that its expression reads. It equals its name as text.

        >>> import lbrx
        >>> lbrx.tensor([1.0]).device, lbrx.tensor([1.0]).device == "cpu"
        (Device('cpu'), True)
        """
        return Device(function("device_of")(self.expr))
