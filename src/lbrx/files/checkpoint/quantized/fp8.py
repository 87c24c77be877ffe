"""8-bit codes with scales for the whole weight, for rows, or for blocks: FP8, MXFP8 and INT8."""

from __future__ import annotations

import math
from typing import Any

from lbrx.files.checkpoint.quantized.parts import EXPONENTS, Parts
from lbrx.files.formats.header import quoted
from lbrx.tensors.codecs.packed import E2M1, Packing, spread, unpacked
from lbrx.tensors.expr import Expr, apply
from lbrx.tensors.shape import Shape
from lbrx.tensors.views import broadcast, reshaped

FLOATS = ("f8_e4m3", "f8_e5m2")
SCALES = ("f32", "f16", "bf16", EXPONENTS, "u8")


def scales_of(name: str, parts: Parts) -> str:
    """Return the name of the scales of a tensor.

    Fused experts have no ``.weight``: the scales of ``gate_up_proj`` are ``gate_up_proj_scale_inv``.
    """
    found = [scales for ending in ("_scale_inv", "_scale") if parts.has(scales := name + ending)]
    if not found:
        raise parts.error(name, f"is {parts.type_of(name)}, but has no scales {quoted(name + '_scale_inv')}")
    return found[0]


def decode(name: str, parts: Parts) -> Expr:
    """Return the values of 8-bit floats, or of pairs of 4-bit floats in bytes: code times scale in f32."""
    codes = parts.part(name, name, (*FLOATS, "i8"))
    scales_name = scales_of(name, parts)
    scales = parts.part(name, scales_name, SCALES)
    if codes.dtype.name != "i8":
        return apply("mul", codes, repeated(name, scales_name, codes.shape, parts, block_of(parts)))
    shape = (*codes.shape[:-1], 2 * codes.shape[-1])
    if len(shape) < 2 or scales.shape[:-1] != shape[:-1]:
        raise parts.error(scales_name, f"has shape {scales.shape}, expected scales for the rows of {shape}")
    values = unpacked(codes, shape, Packing(4, shape[-1] // 2), E2M1)
    return apply("mul", values, repeated(name, scales_name, shape, parts, None))


def block_of(parts: Parts) -> tuple[int, int] | None:
    """Return the rows and columns of a block that the settings name."""
    return block_size(parts.settings.get("weight_block_size"))


def block_size(size: Any) -> tuple[int, int] | None:
    """Return the rows and columns of a block, if settings name them."""
    if not isinstance(size, list) or len(size) != 2 or not all(type(each) is int and each > 0 for each in size):
        return None
    return size[0], size[1]


def repeated(
    name: str,
    scales_name: str,
    shape: Shape,
    parts: Parts,
    block: tuple[int, int] | None,
    types: tuple[str, ...] = SCALES,
) -> Expr:
    """Return scales, or zero points, for each element of a weight.

    They are for the whole weight, for its rows, or for blocks.
    """
    scales = parts.part(name, scales_name, types)
    is_exponent = parts.type_of(scales_name) in (EXPONENTS, "u8")
    if math.prod(scales.shape) == 1 and not is_exponent:
        return broadcast(reshaped(scales, (1,) * len(shape)), shape)
    grid, block = grid_of(name, scales_name, shape, parts, block)
    if grid[-1] == 1 and block[0] == 1 and not is_exponent:
        return broadcast(reshaped(scales, grid), shape)
    number_type = EXPONENTS if is_exponent else None
    return spread(reshaped(scales, grid), shape, block=block, number_type=number_type)


def grid_of(
    name: str, scales_name: str, shape: Shape, parts: Parts, block: tuple[int, int] | None
) -> tuple[Shape, tuple[int, int]]:
    """Return how many blocks a weight has in each axis, and the rows and columns of a block.

    The block size is the given one if as many blocks cover the weight, else the weight is divided into equal blocks.
    """
    own = parts.shape_of(scales_name)
    grid = (*own, 1) if len(shape) >= 2 and own == shape[:-1] else own
    if len(shape) < 2 or len(grid) != len(shape) or grid[:-2] != shape[:-2] or 0 in grid:
        raise parts.error(scales_name, f"has shape {own}, expected scales of {quoted(name)} of shape {shape}")
    pairs = list(zip(shape[-2:], grid[-2:], strict=True))
    if block is None or any(-(-size // each) != count for (size, count), each in zip(pairs, block, strict=True)):
        if any(size % count for size, count in pairs):
            raise parts.error(
                scales_name, f"has shape {own}, which does not divide {quoted(name)} of shape {shape} into blocks"
            )
        block = shape[-2] // grid[-2], shape[-1] // grid[-1]
    return grid, block
