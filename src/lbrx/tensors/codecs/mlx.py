"""MLX's codings: a weight of 32-bit words with scales, and biases where the mode is affine.

Rows of the weight are streams of codes, lowest bits first. What is made equals what ``mx.quantize`` makes of f32 values
on a CPU; values of half types are coded from their exact f32.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.codecs.groups import MODULE, groups_shape
from lbrx.tensors.coded import Blocks, Decode
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr
from lbrx.tensors.shape import Layout
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
    numbers = (scales,) if biases is None else (scales, biases)
    parts = (_bytes_of(weight.expr), *(number.expr for number in numbers))
    coding = mlx_codec(mode, tuple(number.dtype for number in numbers))
    return Tensor(Decode(parts, coding, Layout.contiguous(shape)))


def mlx_codec(mode: MlxMode, numbers: tuple[DType, ...]) -> Codec:
    """The codec of a mode; ``numbers`` are the dtypes of scales and biases."""
    size, bits = mode.group_size, mode.bits
    name = f"mlx_{mode.mode}"
    if mode.mode == "affine":
        types = tuple(number.numpy for number in numbers)
        return Codec(name, size, mode.group_bytes, AFFINE, decoder_parameters=(size, bits), numbers=types)
    scale_type: Any = ml_dtypes.float8_e4m3fn if mode.mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
    decoder = "decode_e2m1" if bits == 4 else "decode_e4m3"
    parameters = (size,)
    return Codec(
        name, size, mode.group_bytes, MODULE, decoder=decoder, decoder_parameters=parameters, numbers=(scale_type,)
    )


def _bytes_of(words: Expr) -> Expr:
    return words.stored if isinstance(words, Blocks) else words
