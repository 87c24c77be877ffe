"""bitsandbytes: codes of 4 bits for blocks of a flat weight (nf4, fp4), and int8 with a scale for each row."""

from __future__ import annotations

import math

from lbrx.errors import DTypeError
from lbrx.files.checkpoint.quantized.parts import Parts
from lbrx.tensors.codecs.packed import Packing, Table, spread, unpacked
from lbrx.tensors.dtype import DTYPES, DType, dtype
from lbrx.tensors.expr import Expr, Scalar, apply, cast
from lbrx.tensors.shape import Shape
from lbrx.tensors.views import broadcast, reshaped

STATES = tuple(f".quant_state.bitsandbytes__{each}" for each in ("nf4", "fp4"))
_INT8_FACTOR = 7.874015718698502e-3  # 1 / 127
_ROW_ORDER = 0


def decode(name: str, parts: Parts) -> Expr:
    """Return the values: entry of the map times largest magnitude of the block in f32, as the dtype of the state."""
    if parts.type_of(name) == "i8":
        return _int8(name, parts)
    state_name = next((name + each for each in STATES if parts.has(name + each)), name + STATES[0])
    state = parts.record(name, state_name)
    shape, block, value_type = state.get("shape"), state.get("blocksize"), _dtype(state.get("dtype"))
    if not _is_shape(shape) or type(block) is not int or block < 2 or value_type is None:
        raise parts.error(state_name, f"describes shape {shape!r:.60}, blocksize {block!r:.20} and a dtype of weights")
    sizes: Shape = tuple(shape or ())
    codes, elements = parts.part(name, name, ("u8",)), math.prod(sizes)
    if not sizes or 2 * math.prod(codes.shape) != elements or sizes[-1] % 2:
        raise parts.error(name, f"has {math.prod(codes.shape)} bytes, which do not hold a weight of shape {sizes}")
    line = sizes[-1] if sizes[-1] % block == 0 else math.gcd(sizes[-1], block)
    table = parts.numbers(name, f"{name}.quant_map")
    if len(table) != 16:
        raise parts.error(f"{name}.quant_map", f"has {len(table)} values, expected 16")
    flat = (elements // line, line)
    values = unpacked(codes, flat, Packing(4, line // 2, order="high first"), Table(table))
    blocks = -(-elements // block)
    largest = _largest(name, state, blocks, parts)
    grid = (flat[0], line // block) if line % block == 0 else (blocks, 1)
    size = (1, block) if line % block == 0 else (block // line, line)
    scales = spread(reshaped(largest, grid), flat, block=size)
    return cast(reshaped(apply("mul", values, scales), sizes), value_type)


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)


def _dtype(name: object) -> DType | None:
    try:
        value_type = dtype(name) if isinstance(name, str) else None
    except DTypeError:
        return None
    return value_type if value_type is not None and value_type.name in ("f32", "f16", "bf16") else None


def _largest(name: str, state: object, blocks: int, parts: Parts) -> Expr:
    """The largest magnitudes of the blocks, which may be quantized in blocks of their own."""
    if not parts.has(f"{name}.nested_absmax"):
        return parts.part(name, f"{name}.absmax", ("f32",), (blocks,))
    assert isinstance(state, dict)
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if type(size) is not int or size < 1 or not isinstance(offset, (int, float)):
        raise parts.error(name, f"is nested with blocksize {size!r:.20} and offset {offset!r:.20}")
    codes = parts.part(name, f"{name}.absmax", ("u8",), (blocks,))
    table = parts.numbers(name, f"{name}.nested_quant_map")
    if len(table) != 256:
        raise parts.error(f"{name}.nested_quant_map", f"has {len(table)} values, expected 256")
    own = parts.part(name, f"{name}.nested_absmax", ("f32",), (-(-blocks // size),))
    row = (1, blocks)
    values = unpacked(reshaped(codes, row), row, Packing(8, blocks), Table(table))
    scales = spread(reshaped(own, (1, own.shape[0])), row, block=(1, size))
    return apply("add", apply("mul", values, scales), Scalar(float(offset)))


def _int8(name: str, parts: Parts) -> Expr:
    codes = parts.part(name, name, ("i8",))
    module = name.removesuffix(".weight")
    layout = f"{module}.weight_format"
    if parts.has(layout) and parts.integers(name, layout) != [_ROW_ORDER]:
        raise parts.error(layout, "is not the order of rows, which is the only one that can be decoded")
    if len(codes.shape) != 2:
        raise parts.error(name, f"has shape {codes.shape}, expected a matrix")
    scales = parts.part(name, f"{module}.SCB", ("f32",), codes.shape[:1])
    rows = broadcast(reshaped(scales, (codes.shape[0], 1)), codes.shape)
    return apply("mul", apply("mul", cast(codes, DTYPES["f32"]), rows), Scalar(_INT8_FACTOR))
