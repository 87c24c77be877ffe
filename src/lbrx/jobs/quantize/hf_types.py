"""Quantizations of SafeTensors models that transformers and vLLM load: a record for each, its settings and codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.jobs.quantize import byte_codes, packed_codes
from lbrx.jobs.quantize.byte_codes import MXFP4_GROUP, NVFP4_GROUP
from lbrx.jobs.quantize.packed_codes import Rounded
from lbrx.tensors.tensor import Tensor

COMPRESSED_TENSORS, GPTQ, AWQ = "compressed-tensors", "gptq", "awq"
GROUP_SIZES = (32, 64, 128)
FP8_BLOCK = (128, 128)
_INT8 = (("num_bits", 8), ("type", "int"), ("symmetric", True), ("strategy", "token"), ("dynamic", True))
_FP8 = (("num_bits", 8), ("type", "float"), *_INT8[2:])
_FP8_GROUPS = (*_FP8[:3], ("strategy", "group"), ("group_size", FP8_BLOCK[1]), ("dynamic", True))


@dataclass(frozen=True, slots=True)
class HfType:
    """A quantization of weights. Packed integers have groups of ``group_size`` columns, 0 meaning whole rows.

    ``format`` is that of compressed-tensors, and ``activations`` are its settings for the inputs of a layer, which are
    rounded while the model runs.
    """

    name: str
    library: str
    bits: int
    group_size: int
    summary: str
    format: str = ""
    is_symmetric: bool = True
    activations: tuple[tuple[str, Any], ...] = ()

    @property
    def is_packed(self) -> bool:
        """Whether codes are integers in words of 32 bits, whose group size can be chosen."""
        return self.library != COMPRESSED_TENSORS or self.format == "pack-quantized"

    def misfit(self, shape: tuple[int, ...]) -> str | None:
        """Return why a matrix cannot be quantized."""
        rows, columns = shape
        if self.group_size and columns % self.group_size:
            return f"rows of {columns} are not a multiple of the group size {self.group_size}"
        if self.is_packed and not packed_codes.can_pack(shape, self.bits, self.group_size or columns):
            count = packed_codes.WORD_BITS // self.bits
            return f"{rows} x {columns} is not a multiple of the {count} codes in a word"
        return None


_TYPES = (
    HfType("ct_int4", COMPRESSED_TENSORS, 4, 128, "4 bits, symmetric", "pack-quantized"),
    HfType("ct_int4_asym", COMPRESSED_TENSORS, 4, 128, "4 bits with zero points", "pack-quantized", is_symmetric=False),
    HfType("ct_int8_a16", COMPRESSED_TENSORS, 8, 128, "8 bits, symmetric", "pack-quantized"),
    HfType(
        "ct_int8",
        COMPRESSED_TENSORS,
        8,
        0,
        "8 bits for each row, inputs of 8 bits for each token",
        "int-quantized",
        activations=_INT8,
    ),
    HfType(
        "ct_fp8",
        COMPRESSED_TENSORS,
        8,
        0,
        "FP8 with a scale for each row, inputs of FP8 for each token",
        "float-quantized",
        activations=_FP8,
    ),
    HfType(
        "ct_fp8_block",
        COMPRESSED_TENSORS,
        8,
        0,
        "FP8 in blocks of 128 x 128, inputs of FP8 in groups of 128",
        "float-quantized",
        activations=_FP8_GROUPS,
    ),
    HfType("ct_nvfp4", COMPRESSED_TENSORS, 4, NVFP4_GROUP, "NVFP4 in groups of 16", "nvfp4-pack-quantized"),
    HfType("ct_mxfp4", COMPRESSED_TENSORS, 4, MXFP4_GROUP, "MXFP4 in groups of 32", "mxfp4-pack-quantized"),
    HfType("gptq_4", GPTQ, 4, 128, "4 bits, symmetric"),
    HfType("gptq_8", GPTQ, 8, 128, "8 bits, symmetric"),
    HfType("awq_4", AWQ, 4, 128, "4 bits with zero points", is_symmetric=False),
)
HF_TYPES = {each.name: each for each in _TYPES}


def find_hf_type(name: str, group_size: int | None = None) -> HfType | None:
    """Return the type of a name; None if it is none.

    >>> find_hf_type("ct_int4", 32).group_size
    32
    """
    known = HF_TYPES.get(name)
    if known is None or group_size is None:
        return known
    if not known.is_packed:
        raise UsageError(f"{name} has groups of a fixed size; a group size is for packed integers, such as ct_int4")
    if group_size not in GROUP_SIZES:
        expected = ", ".join(map(str, GROUP_SIZES))
        raise UsageError(f"{name} has no groups of {group_size}; expected one of {expected}")
    return replace(known, group_size=group_size)


def config_group(own: HfType, targets: list[str]) -> dict[str, Any]:
    """Return what the config of compressed-tensors says of the weights of a type."""
    weights: dict[str, Any] = {
        "num_bits": own.bits,
        "type": "int" if "int" in own.name else "float",
        "symmetric": own.is_symmetric,
        "dynamic": False,
    }
    if own.name == "ct_nvfp4":
        weights |= {"strategy": "tensor_group", "group_size": own.group_size, "scale_dtype": "torch.float8_e4m3fn"}
    elif own.name == "ct_fp8_block":
        weights |= {"strategy": "block", "block_structure": list(FP8_BLOCK)}
    elif own.group_size:
        weights |= {"strategy": "group", "group_size": own.group_size}
        weights |= {"scale_dtype": "torch.uint8"} if own.name == "ct_mxfp4" else {}
    else:
        weights |= {"strategy": "channel"}
    activations = dict(own.activations) or None
    group = {"targets": targets, "weights": weights, "input_activations": activations, "output_activations": None}
    return {**group, "format": own.format}


def rounded_plainly(values: Tensor, own: HfType, scale_type: str) -> Rounded:
    """Round a matrix to packed integers; the largest magnitude of a group becomes the largest code."""
    size = own.group_size or values.shape[-1]
    if own.library == COMPRESSED_TENSORS:
        grid = packed_codes.library_grid(values, own.bits, size, scale_type, is_symmetric=own.is_symmetric)
        return packed_codes.library_rounded(values, own.bits, size, grid)
    grid = packed_codes.plain_grid(values, own.bits, size, scale_type, is_symmetric=own.is_symmetric)
    return packed_codes.rounded(values, own.bits, size, grid)


def scale_type_of(own: HfType, type_name: str) -> str:
    """Return the type of scales for weights of a type: compressed-tensors uses the same, GPTQ and AWQ f16."""
    if own.library != COMPRESSED_TENSORS:
        return "f16"
    return type_name if type_name in packed_codes.SCALES_OF_ZEROS else "f32"


def packed_parts(own: Rounded, type: HfType) -> dict[str, Tensor]:
    """Return the tensors of a weight of packed integers, by their names behind that of the module."""
    if type.library == GPTQ:
        return dict(packed_codes.gptq(own, type.bits, is_second=False, has_index=True))
    if type.library == AWQ:
        return dict(packed_codes.awq(own))
    parts = packed_codes.compressed(own, type.bits, has_zero_points=not type.is_symmetric, has_index=False)
    return {f"weight_{ending}": part for ending, part in parts.items()}


def byte_parts(values: Tensor, own: HfType, scale_type: str, largest: Tensor | None = None) -> dict[str, Tensor]:
    """Return the tensors of a weight whose codes are in bytes, by their names behind that of the module.

    ``largest`` is the largest magnitude of all weights that share the number of NVFP4.
    """
    if own.name == "ct_nvfp4":
        limit = abs(values).max() if largest is None else largest
        codes, scales, number = byte_codes.nvfp4(values, limit, scale_type)
        return {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": number.reshape(1)}
    if own.name == "ct_mxfp4":
        codes, scales = byte_codes.mxfp4(values)
        return {"weight_packed": codes, "weight_scale": scales}
    type_name = "i8" if own.name == "ct_int8" else "f8_e4m3"
    block = FP8_BLOCK if own.name == "ct_fp8_block" else (1, values.shape[-1])
    arithmetic = byte_codes.library_arithmetic(type_name, scale_type)
    codes, scales = byte_codes.in_blocks(values, block, type_name, scale_type, arithmetic)
    return {"weight": codes, "weight_scale": scales}
