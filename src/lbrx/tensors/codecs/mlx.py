"""MLX's codings: a weight of 32-bit words with scales, and biases where the mode is affine.

Rows of the weight are streams of codes, lowest bits first. What is made equals what ``mx.quantize`` makes of f32 values
on a CPU; values of half types are coded from their exact f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs.decoded import DecodedStorage
from lbrx.tensors.codecs.groups import Floats, decoded_groups, groups_shape, numbers_from
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Blocks, Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import Storage
from lbrx.tensors.tensor import Tensor

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUP_SIZES = (32, 64, 128)
FLOAT_MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits and group size
WORD_BITS = 32
AFFINE = "affine"


@dataclass(frozen=True, slots=True)
class MlxMode:
    """How MLX codes a weight: what a model's ``config.json`` says under ``quantization``."""

    mode: str = "affine"
    bits: int = 4
    group_size: int = 64

    def __post_init__(self) -> None:
        if self.mode == "affine":
            if self.bits not in AFFINE_BITS or self.group_size not in AFFINE_GROUP_SIZES:
                raise UsageError(
                    f"MLX has no affine coding of {self.bits} bits in groups of {self.group_size}; expected bits of "
                    f"{', '.join(map(str, AFFINE_BITS))} and groups of {', '.join(map(str, AFFINE_GROUP_SIZES))}"
                )
        elif FLOAT_MODES.get(self.mode) != (self.bits, self.group_size):
            known = ", ".join(f"{mode} ({bits} bits, groups of {size})" for mode, (bits, size) in FLOAT_MODES.items())
            raise UsageError(
                f"MLX has no coding {self.mode!r} of {self.bits} bits in groups of {self.group_size}; "
                f"expected affine, {known}"
            )

    @property
    def group_bytes(self) -> int:
        """Bytes of the codes of one group."""
        return self.group_size * self.bits // 8


@dataclass(frozen=True, slots=True)
class MlxWeight:
    """The tensors that MLX keeps of a weight: ``name.weight``, ``name.scales`` and, if affine, ``name.biases``."""

    weight: Tensor
    scales: Tensor
    biases: Tensor | None


def dequantize(weight: Tensor, scales: Tensor, biases: Tensor | None, mode: MlxMode) -> Tensor:
    """The f32 values of a weight, decoded piece by piece as they are needed."""
    shape = (*weight.shape[:-1], weight.shape[-1] * WORD_BITS // mode.bits)
    if scales.shape != groups_shape(shape, mode.group_size, f"MLX {mode.mode}"):
        raise ShapeError(f"scales of shape {scales.shape} do not fit a weight of {weight.shape} words coded as {mode}")
    if (biases is not None) != (mode.mode == "affine") or (biases is not None and biases.shape != scales.shape):
        raise ShapeError(f"MLX {mode.mode}: biases go with affine coding, and have the shape of the scales")
    decoded = _decoded(_stored(weight), scales, biases, mode)
    return Tensor(Source(decoded, DTYPES["f32"], Layout.contiguous(shape)))


def _decoded(codes: Storage, scales: Tensor, biases: Tensor | None, mode: MlxMode) -> DecodedStorage:
    size, bits = mode.group_size, mode.bits
    if biases is not None:
        numbers = (_numbers(scales), _numbers(biases))
        return decoded_groups(codes, bits, size, "decode", numbers, (size, bits), AFFINE)
    scale_type: Any = ml_dtypes.float8_e4m3fn if mode.mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
    decoder = "decode_e2m1" if bits == 4 else "decode_e4m3"
    return decoded_groups(codes, bits, size, decoder, (numbers_from(_stored(scales), scale_type),), (size,))


def _numbers(tensor: Tensor) -> Callable[[int, int], Floats]:
    return numbers_from(_stored(tensor), tensor.dtype.numpy)


def _stored(tensor: Tensor) -> Storage:
    """The storage of all elements of a tensor in order."""
    expr = tensor.expr
    if isinstance(expr, Blocks):
        return expr.storage
    if isinstance(expr, Source) and expr.rows is None and expr.layout == Layout.contiguous(expr.shape):
        return expr.storage
    storage = tensor.realize().storage
    assert storage is not None
    return storage
