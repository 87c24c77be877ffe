"""compressed-tensors: 8-bit codes, integers of 1 to 8 bits in words, and 4- and 6-bit floats in bytes.

A weight is recognized by the types and shapes of its parts, because one checkpoint may mix formats. Arithmetic is that
of the library: in the dtype of the scales, and in f32 for NVFP4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbrx.files.checkpoint.quantized.fp8 import FLOATS, SCALES, block_size, repeated
from lbrx.files.checkpoint.quantized.parts import EXPONENTS, HALVES, Parts
from lbrx.tensors.codecs.packed import E2M1, E2M3, Packing, integers, looked_up, spread, unpacked
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Expr, apply, cast
from lbrx.tensors.shape import Shape
from lbrx.tensors.views import broadcast, reshaped

FORMATS = (
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp6-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
    "dense",
)


def decode(name: str, parts: Parts) -> Expr:
    """Return the values of a weight."""
    weight = name.removesuffix("_packed")
    scales = f"{weight}_scale"
    if not parts.has(scales):
        raise parts.error(name, f"is quantized, but its part {scales!r} is missing")
    if weight == name:
        return _plain_codes(name, scales, parts)
    if parts.type_of(name) == "i32":
        return _packed_integers(name, weight, parts)
    return _packed_floats(name, weight, parts)


def _in_type_of(scales: str, values: Expr, parts: Parts) -> Expr:
    """Round to the dtype of the scales, in which the library computes."""
    scale_type = parts.type_of(scales)
    if scale_type in (EXPONENTS, "u8"):
        scale_type = "bf16"
    return cast(values, DTYPES[scale_type]) if scale_type in HALVES else values


def _plain_codes(name: str, scales: str, parts: Parts) -> Expr:
    codes = parts.part(name, name, (*FLOATS, "i8"))
    block = block_of(parts)
    values: Expr = cast(codes, DTYPES["f32"])
    zero_points = f"{name}_zero_point"
    if parts.has(zero_points):
        values = apply("sub", values, repeated(name, zero_points, codes.shape, parts, block, ("i8", *FLOATS)))
    return _in_type_of(scales, apply("mul", values, repeated(name, scales, codes.shape, parts, block, SCALES)), parts)


def block_of(parts: Parts) -> tuple[int, int] | None:
    """Return the rows and columns of a block that the settings name."""
    return next((size for size in map(block_size, _weight_settings(parts.settings, "block_structure")) if size), None)


def _weight_settings(settings: Mapping[str, Any], key: str) -> Iterator[Any]:
    """Yield a setting of the weights of each group of the config."""
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and key in weights:
            yield weights[key]


def _packed_integers(name: str, weight: str, parts: Parts) -> Expr:
    codes = parts.part(name, name, ("i32",))
    scales = f"{weight}_scale"
    shape = _shape(name, weight, codes.shape, parts)
    bits = bits_of(name, codes.shape[-1], shape[-1], parts)
    offset = -(1 << (bits - 1))
    values = unpacked(codes, shape, Packing(bits, 4 * codes.shape[-1]), integers(bits, offset))
    group_index = f"{weight}_g_idx"
    index = parts.groups(name, group_index, shape[-1]) if parts.has(group_index) else None
    if parts.has(f"{weight}_zero_point"):
        values = apply("sub", values, _zero_points(name, weight, bits, shape, index, parts))
    if index is None:
        return _in_type_of(scales, apply("mul", values, repeated(name, scales, shape, parts, None, SCALES)), parts)
    source = parts.part(name, scales, ("f32", *HALVES))
    parts.check_groups(name, group_index, source.shape[-1])
    return _in_type_of(scales, apply("mul", values, looked_up(source, index, shape)), parts)


def _shape(name: str, weight: str, packed: Shape, parts: Parts) -> Shape:
    """The shape of a weight, which the library stores because words may have unused bits."""
    part = f"{weight}_shape"
    shape = tuple(parts.integers(name, part))
    if len(shape) != len(packed) or shape[:-1] != packed[:-1] or len(shape) < 2 or shape[-1] < 1:
        raise parts.error(part, f"is {shape}, which does not match packed codes of shape {packed}")
    return shape


def bits_of(name: str, words: int, columns: int, parts: Parts) -> int:
    """Return the bits of a code: those of the settings, if as many words hold a row."""
    given = [bits for bits in _weight_settings(parts.settings, "num_bits") if type(bits) is int and 1 <= bits <= 8]
    fitting: list[int] = [bits for bits in (*given, *range(1, 9)) if -(-columns * bits // 32) == words]
    if not fitting:
        raise parts.error(name, f"has {words} words in a row, which do not hold {columns} codes of 1 to 8 bits")
    return fitting[0]


def _zero_points(name: str, weight: str, bits: int, shape: Shape, index: Expr | None, parts: Parts) -> Expr:
    part, scales = f"{weight}_zero_point", parts.shape_of(f"{weight}_scale")
    if parts.type_of(part) != "i32":
        return repeated(name, part, shape, parts, None, ("i8",))
    grid = (*shape[:-1], scales[-1])
    expected = (*shape[:-2], -(-shape[-2] * bits // 32), scales[-1])
    codes = parts.part(name, part, ("i32",), expected)
    packing = Packing(bits, line_step=4, word_step=4 * scales[-1], is_across=True)
    zero_points = unpacked(codes, grid, packing, integers(bits, -(1 << (bits - 1))))
    if index is not None:
        return looked_up(zero_points, index, shape)
    if shape[-1] % grid[-1]:
        raise parts.error(part, f"has shape {expected}, which does not divide rows of {shape[-1]} codes into groups")
    return spread(zero_points, shape, block=(1, shape[-1] // grid[-1]))


def _packed_floats(name: str, weight: str, parts: Parts) -> Expr:
    codes = parts.part(name, name, ("u8",))
    part, bytes_per_row = f"{weight}_scale", codes.shape[-1]
    scales = parts.shape_of(part)
    is_nvfp4 = parts.type_of(part) == "f8_e4m3"
    is_six_bits = not is_nvfp4 and scales[-1:] and 24 * scales[-1] == bytes_per_row
    bits, group = (6, 32) if is_six_bits else (4, 16 if is_nvfp4 else 32)
    shape = (*codes.shape[:-1], bytes_per_row * 8 // bits)
    expected = (*codes.shape[:-1], shape[-1] // group)
    source = parts.part(name, part, ("f8_e4m3",) if is_nvfp4 else ("u8", EXPONENTS), expected)
    values = unpacked(codes, shape, Packing(bits, bytes_per_row), E2M3 if is_six_bits else E2M1)
    number_type = None if is_nvfp4 else EXPONENTS
    spread_scales = spread(source, shape, block=(1, group), number_type=number_type)
    if is_nvfp4:
        whole = parts.part(name, f"{weight}_global_scale", ("f32",))
        if whole.shape not in ((), (1,)):
            raise parts.error(f"{weight}_global_scale", f"has shape {whole.shape}, expected one number")
        spread_scales = apply("div", spread_scales, broadcast(reshaped(whole, (1, 1)), shape))
    return cast(apply("mul", values, spread_scales), DTYPES["bf16"])
