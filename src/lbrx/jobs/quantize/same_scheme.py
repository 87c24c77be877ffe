"""Models in the quantization that another model has: codes, scales and settings as its library writes them.

Scales are those of plain rounding: the largest magnitude of a group becomes the largest code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.checkpoint.quantized import compressed_tensors, fp8, integer_words
from lbrx.files.checkpoint.quantized.schemes import (
    ACTIVATIONS,
    AWQ,
    BITNET,
    BITSANDBYTES,
    COMPRESSED_TENSORS,
    GPT_OSS,
    GPTQ,
    MODELOPT,
)
from lbrx.files.checkpoint.quantized.weights import QuantizedWeights
from lbrx.files.formats.header import quoted
from lbrx.files.output.contents import Contents, LatestParts, PlannedTensor
from lbrx.jobs.quantize import byte_codes, packed_codes
from lbrx.jobs.quantize.byte_codes import LARGEST, BlockArithmetic, library_arithmetic
from lbrx.jobs.quantize.packed_codes import can_pack, scales_in_type
from lbrx.tensors.codecs.codec import Part
from lbrx.tensors.codecs.mlx import MlxMode, mlx_codec
from lbrx.tensors.coded import Encode, Encoding
from lbrx.tensors.creation import full, where
from lbrx.tensors.shape import Shape
from lbrx.tensors.tensor import Tensor

SAME = "same"
_SCALE_TYPES = ("f32", "f16", "bf16")
_LARGEST_NVFP4 = 448.0 * 6.0  # scale times code
_LAYER = re.compile(r"\.\d+\.")
_WEIGHT = ".weight"

Encoded = Mapping[str, Tensor]  # by the names that the parts have in the other model
Encoder = Callable[[Tensor], Encoded]


@dataclass(frozen=True, slots=True)
class _Template:
    """A weight of the other model: its plain name, that of its codes, and its shape."""

    name: str
    stored: str
    shape: Shape


def in_same_scheme(contents: Contents, model: QuantizedWeights) -> Contents:
    """Return a plain model quantized like another: the weights that are quantized there, in the same layout.

    A weight that the other model does not have, such as one of a layer that was repeated, follows those with the same
    name in other layers.
    """
    _check_scheme(model)
    tensors: list[PlannedTensor] = []
    templates = _templates(model)
    for planned in contents.tensors:
        template = templates.get(planned.name) or (
            None if planned.name in model else templates.get(_in_any_layer(planned.name))
        )
        tensors += [planned] if template is None else _parts(planned, template, model)
    activations = tuple(_activation_scales(contents, model))
    warnings = contents.warnings
    if any(model.parts.type_of(template.stored) == "i32" for template in templates.values()):
        warnings = (*warnings, "codes of integers in words are rounded without calibration, unlike those of the inputs")
    if activations:
        warnings = (*warnings, f"the {len(activations)} scales of activations are those of {model.parts.where}")
    settings = dict(model.parts.settings)
    config = None if contents.config is None else dict(contents.config)
    if config is not None and settings:
        config["quantization_config"] = settings
    return replace(contents, tensors=(*tensors, *activations), config=config, warnings=warnings)


def _check_scheme(model: QuantizedWeights) -> None:
    if model.scheme is BITNET:
        raise UsageError(
            f"{model.parts.where}: is quantized with {model.scheme.name}, which cannot be written, because merged "
            "weights are not -1, 0 and 1; expected another quantization (without 'same', the output has plain weights)"
        )


def _templates(model: QuantizedWeights) -> dict[str, _Template]:
    """The quantized weights by name, and one for each name without the number of its layer."""
    found: dict[str, _Template] = {}
    for name in model:
        if model.is_decoded(name):
            template = _Template(name, model.stored_name(name), model[name].shape)
            found[name] = template
            found.setdefault(_in_any_layer(name), template)
    return found


def _in_any_layer(name: str) -> str:
    return _LAYER.sub(".*.", name, count=1)


def _activation_scales(contents: Contents, model: QuantizedWeights) -> Iterator[PlannedTensor]:
    modules = {each.name.removesuffix(_WEIGHT) for each in contents.tensors}
    for name in model.parts.entries:
        if name.endswith(ACTIVATIONS) and name.rpartition(".")[0] in modules and name not in contents.by_name:
            yield PlannedTensor.of(name, model.parts.stored(name))


def _parts(planned: PlannedTensor, template: _Template, model: QuantizedWeights) -> list[PlannedTensor]:
    encode = _encoder(planned.shape, template, model)
    outline = encode(full(planned.shape, 0.0, "f32"))  # types and shapes are the same whatever the values
    base, own = template.name.removesuffix(_WEIGHT), planned.name.removesuffix(_WEIGHT)

    def made(part: str) -> Tensor:
        return _latest.of(planned, lambda: encode(planned.make().to("f32")))[part]

    return [
        PlannedTensor(own + part[len(base) :], tensor.type_name, tensor.shape, partial(made, part), unit=own)
        for part, tensor in outline.items()
    ]


_latest: LatestParts[Encoded] = LatestParts()


def _encoder(shape: Shape, template: _Template, model: QuantizedWeights) -> Encoder:
    """How a weight is encoded like another. Keys of the result are the names of the parts of the other weight."""
    parts, stored = model.parts, template.stored
    type_name = parts.type_of(stored)
    weight = stored.removesuffix("_packed")
    if model.scheme is BITSANDBYTES and type_name == "i8":
        return lambda values: _int8_of_bitsandbytes(values, stored)
    if model.scheme is GPT_OSS:
        return lambda values: _gpt_oss(values, stored)
    if type_name == "i32":
        packed = _packed_encoder(shape, template, model)
        if packed is not None:
            return packed
    if model.scheme is MODELOPT and type_name == "u8":
        whole = parts.shape_of(f"{stored}_scale_2")
        if whole in ((), (1,)) and len(shape) == 2:
            return lambda values: _nvfp4(values, stored, f"{stored}_scale", f"{stored}_scale_2", whole)
    if model.scheme is COMPRESSED_TENSORS and type_name == "u8":
        scales = f"{weight}_scale"
        if parts.type_of(scales) == "f8_e4m3":
            name = f"{weight}_global_scale"
            whole = parts.shape_of(name)
            return lambda values: _compressed_nvfp4(values, stored, scales, name, whole)
        if parts.type_of(scales) == "u8" and 2 * parts.shape_of(stored)[-1] == template.shape[-1]:
            return lambda values: dict(zip((stored, scales), byte_codes.mxfp4(values), strict=True))
    if type_name in LARGEST and model.scheme is not BITSANDBYTES and not parts.has(f"{stored}_zero_point"):
        scales = fp8.scales_of(stored, parts)
        if parts.type_of(scales) in _SCALE_TYPES and parts.shape_of(stored) == template.shape:
            return _blocks_encoder(shape, template, scales, model)
    raise UsageError(
        f"{parts.where}: tensor {quoted(stored)} is quantized in a way that cannot be written; expected codes of 8 "
        "bits with float scales and no zero points, 4-bit floats, or 2, 4 or 8 bits in whole words (without "
        "'same', the output has plain weights)"
    )


def _packed_encoder(shape: Shape, template: _Template, model: QuantizedWeights) -> Encoder | None:
    """The encoder of integers in words; None if the rows or columns of the weight do not fill them."""
    parts, stored = model.parts, template.stored
    if model.scheme is COMPRESSED_TENSORS:
        weight, words = stored.removesuffix("_packed"), parts.shape_of(stored)[-1]
        bits = compressed_tensors.bits_of(stored, words, template.shape[-1], parts)
        start, scales = f"{weight}_", f"{weight}_scale"
        group_size = template.shape[-1] // parts.shape_of(scales)[-1]
        zeros = f"{weight}_zero_point"
        has_zeros = parts.has(zeros)
        is_known = len(parts.shape_of(scales)) == 2 and (not has_zeros or parts.type_of(zeros) == "i32")
    else:
        module = stored.removesuffix(".qweight")
        start, scales, is_known, has_zeros = f"{module}.", f"{module}.scales", True, True
        bits = 4 if model.scheme is AWQ else integer_words.bits_of(stored, module, parts)
        group_size = integer_words.group_size_of(stored, module, template.shape[-1], parts)
    if group_size == template.shape[-1]:
        group_size = shape[-1]
    scale_type = parts.type_of(scales)
    if not is_known or scale_type not in _SCALE_TYPES or not can_pack(shape, bits, group_size):
        return None
    has_index = parts.has(f"{start}g_idx")

    def encode(values: Tensor) -> Encoded:
        if model.scheme is COMPRESSED_TENSORS:
            grid = packed_codes.library_grid(values, bits, group_size, scale_type, is_symmetric=not has_zeros)
            own = packed_codes.library_rounded(values, bits, group_size, grid)
            found = packed_codes.compressed(own, bits, has_zero_points=has_zeros, has_index=has_index)
        else:
            is_symmetric = model.scheme is GPTQ  # which all of its kernels compute
            grid = packed_codes.plain_grid(values, bits, group_size, scale_type, is_symmetric=is_symmetric)
            own = packed_codes.rounded(values, bits, group_size, grid)
            is_second = integer_words.is_second_version(parts.settings)
            found = (
                packed_codes.gptq(own, bits, is_second=is_second, has_index=has_index)
                if model.scheme is GPTQ
                else packed_codes.awq(own)
            )
        return {start + ending: part for ending, part in found.items()}

    return encode


# -- codes of 8 bits ---------------------------------------------------------------------------------------------------


def _blocks_encoder(shape: Shape, template: _Template, scales: str, model: QuantizedWeights) -> Encoder:
    parts, stored = model.parts, template.stored
    given, type_name, scale_type = parts.shape_of(scales), parts.type_of(stored), parts.type_of(scales)
    is_whole = len(given) < 2 and given in ((), (1,))
    is_compressed = model.scheme is COMPRESSED_TENSORS
    named = compressed_tensors.block_of(parts) if is_compressed else fp8.block_of(parts)
    block = (shape[-2], shape[-1]) if is_whole else fp8.grid_of(stored, scales, template.shape, parts, named)[1]
    if not is_whole and block[1] == template.shape[-1]:
        block = (block[0], shape[-1])
    has_axis = is_whole or len(given) == len(template.shape)

    own = library_arithmetic(type_name, scale_type) if is_compressed else BlockArithmetic()

    def encode(values: Tensor) -> Encoded:
        if is_whole:
            limit = abs(values).max()
            numbers = scales_in_type(limit / LARGEST[type_name], scale_type)
            codes = byte_codes.to_codes(values / numbers.to("f32"), type_name)
            return {stored: codes, scales: numbers.reshape(*given)}
        codes, numbers = byte_codes.in_blocks(values, block, type_name, scale_type, own)
        return {stored: codes, scales: numbers if has_axis else numbers.reshape(*numbers.shape[:-1])}

    return encode


def _int8_of_bitsandbytes(values: Tensor, stored: str) -> Encoded:
    module = stored.removesuffix(_WEIGHT)
    largest = abs(values).max(axis=-1)
    steps = where(largest == 0, 0.0, 127.0 / largest)
    codes = (values * steps.reshape(-1, 1)).round().to("i8")
    return {stored: codes, f"{module}.SCB": largest, f"{module}.weight_format": full((), 0, "u8")}


# -- floats of 4 bits --------------------------------------------------------------------------------------------------


def _pairs(values: Tensor, mode: MlxMode, scale_type: str) -> tuple[Tensor, Tensor]:
    """Codes in bytes, and scales of groups."""
    own = mlx_codec(mode, ())
    codes, scales = own.parts
    codec = replace(own, parts=(Part("u8", codes.block_bytes, codes.encoder), Part(scale_type, 1, scales.encoder)))
    encoding = Encoding(values.expr, codec)
    return Tensor(Encode(encoding, 0)), Tensor(Encode(encoding, 1))


def _gpt_oss(values: Tensor, stored: str) -> Encoded:
    """Experts have their inputs as rows; blocks are along inputs."""
    experts, inputs, outputs = values.shape
    codes, exponents = _pairs(values.transpose(0, 2, 1), MlxMode("mxfp4", 4, 32), "u8")
    scales = f"{stored.removesuffix('_blocks')}_scales"
    return {stored: codes.reshape(experts, outputs, inputs // 32, 16), scales: exponents}


def _nvfp4(values: Tensor, stored: str, scales: str, whole: str, shape: Shape) -> Encoded:
    """ModelOpt: values are multiplied with the number of the whole weight."""
    largest = abs(values).max()
    number = where(largest == 0, 1.0, largest / _LARGEST_NVFP4)
    codes, numbers = _pairs(values / number, MlxMode("nvfp4", 4, 16), "f8_e4m3")
    return {stored: codes, scales: numbers, whole: number.reshape(*shape)}


def _compressed_nvfp4(values: Tensor, stored: str, scales: str, whole: str, shape: Shape) -> Encoded:
    codes, numbers, number = byte_codes.nvfp4(values, abs(values).max())
    return {stored: codes, scales: numbers, whole: number.reshape(*shape)}
