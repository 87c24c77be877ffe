"""MLX quantization: a weight of 32-bit words with scales, and biases in affine mode.

Rows of the weight are streams of codes, lowest bits first. Encoding gives the same bytes as ``mx.quantize`` of f32
values on a CPU. 16-bit values are first converted to f32, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs.codec import Codec, Part, groups_shape
from lbrx.tensors.coded import Blocks, Decode, Encode, Encoding
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.expr import Expr
from lbrx.tensors.shape import Layout
from lbrx.tensors.tensor import Tensor

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUP_SIZES = (32, 64, 128)
FLOAT_MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits and group size
WORD_BITS = 32
_DTYPE_NUMBERS = {"f32": 0, "f16": 1, "bf16": 2}  # of scales and biases


@dataclass(frozen=True, slots=True)
class MlxMode:
    """How MLX encodes a weight, as in ``quantization`` of a model's ``config.json``."""

    mode: str = "affine"
    bits: int = 4
    group_size: int = 64

    def __post_init__(self) -> None:
        if self.mode == "affine":
            if self.bits not in AFFINE_BITS or self.group_size not in AFFINE_GROUP_SIZES:
                raise UsageError(
                    f"MLX has no affine encoding with {self.bits} bits in groups of {self.group_size}; expected "
                    f"{', '.join(map(str, AFFINE_BITS))} and groups of {', '.join(map(str, AFFINE_GROUP_SIZES))}"
                )
        elif FLOAT_MODES.get(self.mode) != (self.bits, self.group_size):
            known = ", ".join(f"{mode} ({bits} bits, groups of {size})" for mode, (bits, size) in FLOAT_MODES.items())
            raise UsageError(
                f"MLX has no encoding {self.mode!r} with {self.bits} bits in groups of {self.group_size}; "
                f"expected affine, {known}"
            )

    @property
    def group_bytes(self) -> int:
        """Bytes of one group's codes."""
        return self.group_size * self.bits // 8


@dataclass(frozen=True, slots=True)
class MlxWeight:
    """The tensors in which MLX stores a weight: ``name.weight``, ``name.scales`` and, if affine, ``name.biases``."""

    weight: Tensor
    scales: Tensor
    biases: Tensor | None


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """The codes that a decoded weight has in its file, in the form of MLX. They have the same values.

    With ``is_swapped``, those of the weight whose last two axes are swapped.
    """

    mode: MlxMode
    make: Callable[[], MlxWeight]
    is_swapped: bool = False


def dequantize(weight: Tensor, scales: Tensor, biases: Tensor | None, mode: MlxMode) -> Tensor:
    """Return the f32 values of a weight, decoded piece by piece when needed."""
    shape = (*weight.shape[:-1], weight.shape[-1] * WORD_BITS // mode.bits)
    if scales.shape != groups_shape(shape, mode.group_size, f"MLX {mode.mode}"):
        raise ShapeError(
            f"scales of shape {scales.shape} do not match a weight of {weight.shape} words encoded as {mode}"
        )
    if (biases is not None) != (mode.mode == "affine") or (biases is not None and biases.shape != scales.shape):
        raise ShapeError(f"MLX {mode.mode}: expected biases only in affine mode, with the shape of the scales")
    numbers = (scales,) if biases is None else (scales, biases)
    parts = (_bytes_of(weight.expr), *(number.expr for number in numbers))
    coding = mlx_codec(mode, tuple(number.dtype for number in numbers))
    return Tensor(Decode(parts, coding, Layout.contiguous(shape)))


def encoded_mlx(values: Tensor, mode: MlxMode | None = None) -> MlxWeight:
    """Encode a tensor as MLX does. Nothing is computed until the parts are read or written.

    >>> import lbrx, numpy as np
    >>> coded = encoded_mlx(lbrx.tensor(np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)), MlxMode(bits=8))
    >>> coded.weight.shape, coded.scales.shape
    ((2, 32), (2, 2))
    >>> bool(abs(dequantize(coded.weight, coded.scales, coded.biases, MlxMode(bits=8))[1, -1] - 1) < 0.01)
    True
    """
    coding = mode or MlxMode()
    groups_shape(values.shape, coding.group_size, f"MLX {coding.mode}")
    if values.shape[-1] * coding.bits % WORD_BITS:
        raise ShapeError(
            f"rows of {values.shape[-1]} codes of {coding.bits} bits are not a whole number of {WORD_BITS}-bit words"
        )
    numbers = DTYPES[values.dtype.name if values.dtype.name in _DTYPE_NUMBERS else "f32"]
    encoding = Encoding(values.expr, mlx_codec(coding, (numbers, numbers)))
    weight, scales, *biases = (Tensor(Encode(encoding, part)) for part in range(len(encoding.codec.parts)))
    return MlxWeight(weight, scales, biases[0] if biases else None)


def mlx_codec(mode: MlxMode, numbers: tuple[DType, ...]) -> Codec:
    """Return the codec of a mode. ``numbers`` are the dtypes of scales and biases (a choice only in affine mode)."""
    size, bits = mode.group_size, mode.bits
    words = Part("u32", mode.group_bytes, "" if mode.mode == "affine" else f"{mode.mode}_codes")
    if mode.mode == "affine":
        return Codec(
            f"mlx_{mode.mode}",
            size,
            words.block_bytes,
            "affine",
            encoder="encode_parts",
            parameters=(size, bits, _DTYPE_NUMBERS.get(numbers[0].name, 0)),
            decoder_parameters=(size, bits),
            numbers=tuple(number.numpy for number in numbers),
            parts=(words, *(Part(number.name, number.itemsize) for number in numbers)),
        )
    scale_type: Any = ml_dtypes.float8_e4m3fn if mode.mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
    return Codec(
        f"mlx_{mode.mode}",
        size,
        words.block_bytes,
        "groups",
        decoder="decode_e2m1" if bits == 4 else "decode_e4m3",
        decoder_parameters=(size,),
        numbers=(scale_type,),
        parts=(words, Part("u8", 1, f"{mode.mode}_scales")),
    )


def _bytes_of(words: Expr) -> Expr:
    return words.stored if isinstance(words, Blocks) else words
