"""GPTQ and AWQ: integers in words of 32 bits, stored for inputs by outputs, with scales and zero points of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.checkpoint.quantized.parts import HALVES, Parts
from lbrx.tensors.codecs.packed import Packing, Table, integers, looked_up, spread, unpacked
from lbrx.tensors.expr import Expr, Source, apply, cast
from lbrx.tensors.shape import Shape

WORD_BITS, WORD_BYTES = 32, 4
GPTQ_BITS = (2, 3, 4, 8)
AWQ_BITS = 4
GPTQ_FORMATS = ("gptq", "gptq_v2")
_NUMBERS = {"qzeros": ("i32",), "scales": ("f32", *HALVES)}
_OVERRIDES = ("dynamic", "extra_config")  # settings of modules, in GPTQModel and AutoRound
_NO_GROUPS = -1  # the group size of a weight whose columns are one group


@dataclass(frozen=True, slots=True)
class _Weight:
    """What the codes of a weight need to be values: group size, bits, and an index of groups if columns are sorted."""

    name: str
    module: str
    shape: Shape
    bits: int
    group_size: int
    index: Expr | None

    @property
    def groups(self) -> int:
        return -(-self.shape[1] // self.group_size)


def unknown_gptq(settings: Mapping[str, Any]) -> str | None:
    """Return what of the settings of GPTQ lbrx cannot decode."""
    return (
        _unknown_bits(settings, GPTQ_BITS)
        or _unknown_layout(settings, GPTQ_FORMATS)
        or _unknown(settings, "pack_dtype", ("int32", "torch.int32"))
        or ("Marlin's layout" if settings.get("is_marlin_format") else None)
    )


def unknown_awq(settings: Mapping[str, Any]) -> str | None:
    """Return what of the settings of AWQ lbrx cannot decode."""
    return (
        _unknown_bits(settings, (AWQ_BITS,))
        or _unknown_layout(settings, ("gemm",))
        or ("llm-awq's layout" if settings.get("backend") == "llm-awq" else None)
    )


def _layouts(settings: Mapping[str, Any]) -> dict[str, str]:
    """The names of the layout: libraries have used three keys."""
    given = {key: settings.get(key) for key in ("checkpoint_format", "format", "version")}
    return {key: str(value).lower() for key, value in given.items() if value}


def is_second_version(settings: Mapping[str, Any]) -> bool:
    """Return whether zero points are stored as they are; the first version stores them less one."""
    return "gptq_v2" in _layouts(settings).values()


def _unknown_layout(settings: Mapping[str, Any], known: tuple[str, ...]) -> str | None:
    layouts = _layouts(settings)
    unknown = next((f"{key} {settings[key]!r:.40}" for key, name in layouts.items() if name not in known), None)
    if unknown is None and len(set(layouts.values())) > 1:
        return "contradictory settings: " + ", ".join(f"{key} {name!r}" for key, name in layouts.items())
    return unknown


def _unknown_bits(settings: Mapping[str, Any], known: tuple[int, ...]) -> str | None:
    bits = settings.get("bits", settings.get("w_bit", AWQ_BITS))
    return None if bits in known else f"{bits!r:.20} bits"


def _unknown(settings: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str | None:
    value = settings.get(key) or known[0]
    return None if str(value).lower() in known else f"{key} {str(value)[:40]!r}"


def decode_gptq(name: str, parts: Parts) -> Expr:
    """Return the values: (code - zero point) scale, rounded to the dtype of the scales. Columns may be in any group."""
    codes = parts.part(name, name, ("i32",))
    module = name.removesuffix(".qweight")
    bits = bits_of(name, module, parts)
    if len(codes.shape) != 2 or codes.shape[0] * WORD_BITS % bits or 0 in codes.shape:
        raise parts.error(name, f"has shape {codes.shape}, expected words of {bits} bits for inputs by outputs")
    inputs, outputs = codes.shape[0] * WORD_BITS // bits, codes.shape[1]
    group_size = group_size_of(name, module, inputs, parts)
    index_name = f"{module}.g_idx"
    weight = _Weight(name, module, (outputs, inputs), bits, group_size, None)
    if parts.has(index_name):
        index = parts.groups(name, index_name, inputs)
        parts.check_groups(name, index_name, weight.groups)
        if parts.integers(name, index_name) != [column // group_size for column in range(inputs)]:
            weight = _Weight(name, module, (outputs, inputs), bits, group_size, index)
    values = unpacked(codes, weight.shape, Packing(bits, WORD_BYTES, WORD_BYTES * outputs), integers(bits))
    is_second = is_second_version(parts.settings)
    largest = (1 << bits) - 1
    zeros = integers(bits) if is_second else Table(tuple(float(code + 1 & largest) for code in range(largest + 1)))
    return _scaled(values, weight, zeros, "", parts)


def decode_awq(name: str, parts: Parts) -> Expr:
    """Return the values: (code - zero point) scale, rounded to the dtype of the scales."""
    codes = parts.part(name, name, ("i32",))
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise parts.error(name, f"has shape {codes.shape}, expected inputs by words of outputs")
    inputs, words = codes.shape
    shape = (words * WORD_BITS // AWQ_BITS, inputs)
    module = name.removesuffix(".qweight")
    weight = _Weight(name, module, shape, AWQ_BITS, group_size_of(name, module, inputs, parts), None)
    packing = Packing(AWQ_BITS, WORD_BYTES * words, is_across=True, order="even first")
    values = unpacked(codes, shape, packing, integers(AWQ_BITS))
    return _scaled(values, weight, integers(AWQ_BITS), "even first", parts)


def bits_of(name: str, module: str, parts: Parts) -> int:
    """Return the bits of a code: those of the settings, unless these may differ between modules."""
    bits: int = parts.settings.get("bits", 4)
    zeros, scales = (parts.part(name, f"{module}.{part}", types) for part, types in _NUMBERS.items())
    if not any(parts.settings.get(key) for key in _OVERRIDES) or not scales.shape[-1:]:
        return bits
    fitting = (each for each in GPTQ_BITS if -(-scales.shape[-1] * each // WORD_BITS) == zeros.shape[-1])
    return next(fitting, bits)


def group_size_of(name: str, module: str, inputs: int, parts: Parts) -> int:
    """Return the columns of a group: those of the settings, unless these may differ between modules."""
    groups = parts.part(name, f"{module}.scales", _NUMBERS["scales"]).shape[:1]
    if any(parts.settings.get(key) for key in _OVERRIDES) and groups and groups[0] and inputs % groups[0] == 0:
        return inputs // groups[0]
    key = "q_group_size" if "q_group_size" in parts.settings else "group_size"
    return inputs if parts.settings.get(key, 128) == _NO_GROUPS else parts.count(key, 128)


def _scaled(codes: Expr, weight: _Weight, zeros: Table, order: str, parts: Parts) -> Expr:
    outputs, groups, bits = weight.shape[0], weight.groups, weight.bits
    scales = parts.part(weight.name, f"{weight.module}.scales", ("f32", *HALVES), (groups, outputs))
    words = -(-outputs * bits // WORD_BITS)
    packed = parts.part(weight.name, f"{weight.module}.qzeros", ("i32",), (groups, words))
    packing = Packing(bits, WORD_BYTES * words, is_across=True, order=order)
    zero_points = unpacked(packed, (outputs, groups), packing, zeros)
    differences = apply("sub", codes, _repeated(zero_points, weight, is_across=False))
    values = apply("mul", differences, _repeated(scales, weight, is_across=True))
    return cast(values, scales.dtype)


def _repeated(numbers: Expr | Source, weight: _Weight, is_across: bool) -> Expr:
    if weight.index is not None:
        return looked_up(numbers, weight.index, weight.shape, is_across=is_across)
    return spread(numbers, weight.shape, block=(1, weight.group_size), is_across=is_across)
