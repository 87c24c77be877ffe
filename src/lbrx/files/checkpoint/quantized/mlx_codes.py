"""Codes of quantized weights in the form of MLX, if it has the same coding: they are moved instead of decoded.

MXFP4 and MXFP8 always are. NVFP4 is if the scale of the whole weight is a power of two that fits into the scales of
its groups, and FP8 is MXFP8 if its scales are powers of two for whole groups.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lbrx.files.checkpoint.quantized import compressed_tensors, fp8
from lbrx.files.checkpoint.quantized.parts import EXPONENTS, Parts
from lbrx.files.checkpoint.quantized.schemes import COMPRESSED_TENSORS, FP8, GPT_OSS, MODELOPT
from lbrx.files.checkpoint.quantized.weights import QuantizedWeights
from lbrx.tensors.codecs.mlx import WORD_BITS, MlxMode, MlxWeight, StoredCodes
from lbrx.tensors.coded import Blocks
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.tensor import Tensor, tensor

MXFP4, MXFP8, NVFP4 = MlxMode("mxfp4", 4, 32), MlxMode("mxfp8", 8, 32), MlxMode("nvfp4", 4, 16)
_EXPONENTS = (EXPONENTS, "u8")
_NOT_A_NUMBER = 255
_E4M3: Any = ml_dtypes.float8_e4m3fn


def mlx_codes(weights: QuantizedWeights, name: str) -> StoredCodes | None:
    """Return the codes of a weight, or None if MLX does not have this coding. At most scales are read."""
    if not weights.is_decoded(name) or len(weights[name].shape) < 2:
        return None
    parts, stored, shape = weights.parts, weights.stored_name(name), weights[name].shape
    type_name = parts.type_of(stored)
    if weights.scheme is MODELOPT and type_name == "u8":
        return _nvfp4(stored, f"{stored}_scale", _power_of_two(parts, f"{stored}_scale_2"), shape, parts)
    if weights.scheme is COMPRESSED_TENSORS and type_name == "u8":
        weight = stored.removesuffix("_packed")
        if parts.type_of(f"{weight}_scale") == "f8_e4m3":
            factor = _power_of_two(parts, f"{weight}_global_scale")
            return _nvfp4(stored, f"{weight}_scale", None if factor is None else 1 / factor, shape, parts)
        if 2 * parts.shape_of(stored)[-1] == shape[-1]:
            return _moved(MXFP4, stored, f"{weight}_scale", shape, parts)
    if weights.scheme is GPT_OSS and len(shape) == 3:
        swapped = shape[0], shape[2], shape[1]
        codes = _moved(MXFP4, stored, f"{stored.removesuffix('_blocks')}_scales", swapped, parts)
        return StoredCodes(codes.mode, codes.make, is_swapped=True)
    if weights.scheme in (FP8, COMPRESSED_TENSORS, MODELOPT) and type_name == "f8_e4m3":
        is_compressed = weights.scheme is COMPRESSED_TENSORS
        block = compressed_tensors.block_of(parts) if is_compressed else fp8.block_of(parts)
        return _fp8(stored, shape, parts, block)
    return None


def _moved(mode: MlxMode, stored: str, scales: str, shape: Shape, parts: Parts) -> StoredCodes:
    """Codes and exponents as they are."""

    def make() -> MlxWeight:
        exponents = Tensor(_bytes(parts.part(stored, scales, _EXPONENTS)))
        if int((exponents == _NOT_A_NUMBER).sum()):
            raise parts.error(scales, "has exponents that are not numbers, which other formats do not have")
        return MlxWeight(_words(mode, stored, shape, parts), exponents, None)

    return StoredCodes(mode, make)


def _words(mode: MlxMode, stored: str, shape: Shape, parts: Parts) -> Tensor:
    source = parts.part(stored, stored, ("u8", "f8_e4m3"))
    return Tensor(Blocks(source.storage, "u32", (*shape[:-1], shape[-1] * mode.bits // WORD_BITS)))


def _bytes(source: Source) -> Source:
    return Source(source.storage, DTYPES["u8"], Layout.contiguous(source.shape))


def _with_scales(mode: MlxMode, stored: str, shape: Shape, parts: Parts, scales: npt.NDArray[np.uint8]) -> MlxWeight:
    return MlxWeight(_words(mode, stored, shape, parts), tensor(scales), None)


def _power_of_two(parts: Parts, name: str) -> float | None:
    values = parts.numbers(name, name)
    is_power = len(values) == 1 and values[0] > 0 and math.isfinite(values[0]) and math.frexp(values[0])[0] == 0.5
    return values[0] if is_power else None


def _nvfp4(stored: str, scales: str, factor: float | None, shape: Shape, parts: Parts) -> StoredCodes | None:
    """Codes as they are, and scales times a factor, if all products are scales, too."""
    if factor is None or shape[-1] % WORD_BITS:
        return None

    def scaled() -> npt.NDArray[np.uint8] | None:
        own = parts.stored(scales).to("f32").numpy() * np.float32(factor)
        rounded = own.astype(_E4M3)
        return rounded.view(np.uint8) if np.array_equal(rounded.astype(np.float32), own) else None

    def make() -> MlxWeight:
        values = scaled()
        assert values is not None
        return _with_scales(NVFP4, stored, shape, parts, values)

    return None if scaled() is None else StoredCodes(NVFP4, make)


def _fp8(stored: str, shape: Shape, parts: Parts, named: tuple[int, int] | None) -> StoredCodes | None:
    scales, group = fp8.scales_of(stored, parts), MXFP8.group_size
    if shape[-1] % group or parts.has(f"{stored}_zero_point"):
        return None
    expected = (*shape[:-1], shape[-1] // group)
    if parts.type_of(scales) in _EXPONENTS and parts.shape_of(scales) == expected:
        return _moved(MXFP8, stored, scales, shape, parts)
    if math.prod(parts.shape_of(scales)) == 1:
        grid, block = (1,) * len(shape), (shape[-2], shape[-1])
    else:
        grid, block = fp8.grid_of(stored, scales, shape, parts, named)
    if block[1] % group and grid[-1] > 1:
        return None

    def exponents() -> npt.NDArray[np.uint8] | None:
        if parts.type_of(scales) in _EXPONENTS:
            found = Tensor(_bytes(parts.part(stored, scales, _EXPONENTS))).numpy()
            if np.any(found == _NOT_A_NUMBER):
                return None
        else:
            bits = parts.stored(scales).to("f32").numpy().view(np.uint32)
            found = (bits >> 23).astype(np.uint8)
            if np.any(bits & 0x807FFFFF) or np.any(found == 0) or np.any(found == 255):  # no powers of two
                return None
        rows = np.repeat(found.reshape(grid), block[0], axis=-2)[..., : shape[-2], :]
        columns = np.repeat(rows, -(-block[1] // group), axis=-1)[..., : expected[-1]]
        return np.ascontiguousarray(np.broadcast_to(columns, expected))

    def make() -> MlxWeight:
        values = exponents()
        assert values is not None
        return _with_scales(MXFP8, stored, shape, parts, values)

    return None if exponents() is None else StoredCodes(MXFP8, make)
