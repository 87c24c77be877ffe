"""A Hugging Face model quantized for transformers and vLLM: SafeTensors with codes, and settings in config.json.

Linear layers inside of the language model are quantized. Embeddings, the output matrix, norms, routers, and the towers
of multi-modal models stay as they are; the settings list them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents, LatestParts, PlannedTensor
from lbrx.jobs.quantize.choice import Choice
from lbrx.jobs.quantize.coded import CodedTensor, Quantization
from lbrx.jobs.quantize.group_codes import Calibration, GroupCoding, read_calibration
from lbrx.jobs.quantize.hf_types import (
    COMPRESSED_TENSORS,
    GPTQ,
    GROUP_SIZES,
    HfType,
    byte_parts,
    config_group,
    packed_parts,
    rounded_plainly,
    scale_type_of,
)
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.jobs.quantize.packed_codes import Rounded
from lbrx.jobs.quantize.targets import HfTarget
from lbrx.models.architectures import known_family
from lbrx.models.architectures.mlx_experts import separate_experts, with_separate_weights
from lbrx.ops.group_feedback import GroupCodes, GroupSpec
from lbrx.tensors.creation import full
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as tensor_of

WEIGHT, HEAD = ".weight", "lm_head"
_IN_LAYER = re.compile(r"\.\d+\.")
_TOWER = re.compile(r"(^|\.)(vision|visual|audio|image|multi_modal|mm|mtp)[a-z_]*\.")
_ROUTER = re.compile(r"(^|\.)(gate|router|wg|shared_expert_gate)(\.|$)")
_EMBEDDING = re.compile(r"emb|(^|\.)w[tp]e$")
_SHARED_NUMBER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
"""Weights that vLLM joins: they have the same number in NVFP4."""

Parts = Mapping[str, Tensor]


def quantize_hf(contents: Contents, options: QuantizeOptions) -> Quantization:
    """What becomes of a model with Hugging Face names; nothing is computed."""
    target, config = options.target, contents.config
    assert isinstance(target, HfTarget)
    if config is None:
        raise UsageError("the model has no config.json, which tells transformers and vLLM how weights are quantized")
    _check_layout(config)
    tensors = separate_experts(with_separate_weights(contents.tensors, config), config)
    choices = {tensor.name: _choose(tensor, target, options) for tensor in tensors}
    types = {name: found for name, choice in choices.items() if (found := target.type_of(choice.type_name)) is not None}
    if not types:
        raise UsageError(f"the model has no layer that can be quantized as {options.to}")
    sharing = _sharing(tensors, types)
    calibration = read_calibration(replace(contents, tensors=tensors), options)
    coded = tuple(
        _coded(each, choices[each.name], types.get(each.name), sharing.get(each.name), calibration) for each in tensors
    )
    kept = [each.name.removesuffix(WEIGHT) for each in tensors if each.name not in types and _is_linear(each)]
    modules = {name.removesuffix(WEIGHT): own for name, own in types.items()}
    result = replace(
        contents,
        tensors=tuple(part for tensor in coded for part in tensor.parts),
        config={**config, "quantization_config": _settings(target.type, modules, kept)},
        warnings=(*contents.warnings, *_misfit_warnings(coded, target)),
    )
    return Quantization(result, coded)


def _misfit_warnings(coded: Sequence[CodedTensor], target: HfTarget) -> Iterator[str]:
    """A warning if layers are not quantized because of their shapes, and the group size that they have room for."""
    misfits = [each for each in coded if each.choice.misfit is not None]
    if not misfits:
        return
    own = target.type
    fitting = [size for size in GROUP_SIZES if size < own.group_size and own.is_packed]
    fitting = [size for size in fitting if all(each.source.shape[-1] % size == 0 for each in misfits)]
    advice = f"; --group-size {fitting[-1]} fits them" if fitting else ""
    yield (
        f"{len(misfits)} layer{'s' * (len(misfits) != 1)}, such as {misfits[0].source.name!r}, "
        f"cannot be quantized as {own.name}: {misfits[0].choice.reason}{advice}"
    )


def _check_layout(config: Mapping[str, Any]) -> None:
    family = known_family(config)
    if family is not None and any(weight.is_transposed for weight in family.layer):
        raise UsageError(
            f"the layers of {family.name} have one column for each output, which the libraries do not quantize; "
            "expected another model, or another type, such as q4_k_m or mlx_4"
        )


def _is_linear(tensor: PlannedTensor) -> bool:
    """Whether a tensor is the weight of a linear layer; embeddings are not."""
    name = tensor.name.removesuffix(WEIGHT)
    is_matrix = name != tensor.name and len(tensor.shape) == 2
    return is_matrix and "conv" not in name and _EMBEDDING.search(name) is None


def _choose(tensor: PlannedTensor, target: HfTarget, options: QuantizeOptions) -> Choice:
    if not _is_linear(tensor):
        wanted = options.embedding_type if tensor.name.endswith("embed_tokens.weight") else None
        if wanted is not None:
            return Choice(wanted.lower(), "--embedding-type")
        is_embedding = len(tensor.shape) == 2 and _EMBEDDING.search(tensor.name.removesuffix(WEIGHT)) is not None
        return Choice(tensor.type_name, "embedding" if is_embedding else "not a linear layer")
    asked = _asked_for(tensor.name.removesuffix(WEIGHT), options)
    reason = None if asked is not None else _reason_to_keep(tensor.name.removesuffix(WEIGHT))
    if reason is not None:
        return Choice(tensor.type_name, reason)
    type_name, reason = asked or (target.type.name, "base type")
    found = target.type_of(type_name)
    misfit = None if found is None else found.misfit(tensor.shape)
    return Choice(type_name, reason) if misfit is None else Choice(tensor.type_name, misfit, type_name)


def _asked_for(module: str, options: QuantizeOptions) -> tuple[str, str] | None:
    """The type that an option names for a layer."""
    is_output = module.endswith(HEAD)
    if is_output and options.output_type is not None and not options.leave_output:
        return options.output_type.lower(), "--output-type"
    override = options.override_of(module + WEIGHT)
    return None if override is None else (override.type_name, f"--tensor-type {override.pattern}")


def _reason_to_keep(module: str) -> str | None:
    if _TOWER.search(module) is not None:
        return "not of the language model"
    if _IN_LAYER.search(module) is None:
        return "output matrix" if module.endswith(HEAD) else "not in a layer"
    if _ROUTER.search(module) is not None:
        return "router"
    return "linear attention" if ".linear_attn." in module else None


# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SharedLimit:
    """The largest magnitude of several weights, which is computed once."""

    tensors: Sequence[PlannedTensor]
    known: float | None = None

    def value(self) -> Tensor:
        if self.known is None:
            self.known = max(float(abs(each.make().dequantize().to("f32")).max()) for each in self.tensors)
        return full((), self.known, "f32")


def _sharing(tensors: Sequence[PlannedTensor], types: Mapping[str, HfType]) -> dict[str, _SharedLimit]:
    """The limits of weights that share the number of NVFP4, by name."""
    by_name = {each.name: each for each in tensors if each.name in types and types[each.name].name == "ct_nvfp4"}
    found: dict[str, _SharedLimit] = {}
    for name in by_name:
        block, _, own = name.removesuffix(WEIGHT).rpartition(".")
        for group in _SHARED_NUMBER:
            if own == group[0]:
                names = [f"{block}.{each}{WEIGHT}" for each in group if f"{block}.{each}{WEIGHT}" in by_name]
                found |= dict.fromkeys(names, _SharedLimit([by_name[each] for each in names]))
    return found


_latest: LatestParts[Parts] = LatestParts()


def _coded(
    tensor: PlannedTensor, choice: Choice, own: HfType | None, limit: _SharedLimit | None, calibration: Calibration
) -> CodedTensor:
    if own is None:
        if choice.type_name == tensor.type_name:
            return CodedTensor(tensor, choice, (tensor,))
        cast = tensor.mapped(lambda values: values.dequantize().to(choice.type_name), type_name=choice.type_name)
        return CodedTensor(tensor, choice, (cast,))
    module = tensor.name.removesuffix(WEIGHT)
    encode = partial(_encoded, own=own, scale_type=scale_type_of(own, tensor.type_name))
    stand_in = full(tensor.shape, 0.0, "f32")  # types and shapes are the same whatever the values
    outline = encode(stand_in, largest=None)

    def made(part: str) -> Tensor:
        return _latest.of(
            tensor,
            lambda: encode(tensor.make().dequantize().to("f32"), largest=None if limit is None else limit.value()),
        )[part]

    parts = tuple(
        PlannedTensor(f"{module}.{part}", made_part.type_name, made_part.shape, partial(made, part), unit=module)
        for part, made_part in outline.items()
    )
    if not calibration.is_used or not own.is_packed:
        return CodedTensor(tensor, choice, parts)
    coding = _coding(tensor, own)
    return CodedTensor(tensor, choice, calibration.applied(tensor, parts, coding), coding)


def _coding(tensor: PlannedTensor, own: HfType) -> GroupCoding:
    """How a weight is encoded with importances."""
    size = own.group_size or tensor.shape[-1]
    kind = "symmetric" if own.is_symmetric else "zero point"
    spec = GroupSpec(own.bits, size, kind, scale_type_of(own, tensor.type_name))
    module = tensor.name.removesuffix(WEIGHT)

    def parts(found: GroupCodes) -> Parts:
        scales = tensor_of(found.steps).to(spec.number_type)
        zero_points = tensor_of(np.rint(-found.lows / found.steps))
        made = packed_parts(Rounded(tensor_of(found.codes).to("f32"), scales, zero_points), own)
        return {f"{module}.{ending}": part for ending, part in made.items()}

    return GroupCoding(spec, parts)


def _encoded(values: Tensor, *, own: HfType, scale_type: str, largest: Tensor | None) -> Parts:
    if not own.is_packed:
        return byte_parts(values, own, scale_type, largest)
    return packed_parts(rounded_plainly(values, own, scale_type), own)


# -- settings ----------------------------------------------------------------------------------------------------------


def _settings(usual: HfType, modules: Mapping[str, HfType], kept: Sequence[str]) -> dict[str, Any]:
    """What config.json says: the type of most layers, and the names of others."""
    if usual.library == COMPRESSED_TENSORS:
        return _compressed_settings(usual, modules, kept)
    own: dict[str, Any] = {"quant_method": usual.library, "bits": usual.bits, "group_size": usual.group_size}
    if usual.library == GPTQ:
        others = {f"+:^{re.escape(name)}$": {"bits": own.bits} for name, own in modules.items() if own != usual}
        left_out: dict[str, Any] = {f"-:^{re.escape(name)}$": {} for name in kept if name != HEAD}
        own |= {"sym": True, "desc_act": False, "checkpoint_format": "gptq", "pack_dtype": "int32"}
        own |= {"lm_head": HEAD in modules, "true_sequential": True}
        return own | ({"dynamic": others | left_out} if others or left_out else {})
    return own | {"zero_point": True, "version": "gemm", "modules_to_not_convert": list(_with_head(modules, kept))}


def _with_head(modules: Mapping[str, HfType], kept: Sequence[str]) -> Iterator[str]:
    """Layers that are not quantized, and the head, which may be the embedding."""
    yield from kept
    if not any(name.endswith(HEAD) for name in (*modules, *kept)):
        yield HEAD


def _compressed_settings(usual: HfType, modules: Mapping[str, HfType], kept: Sequence[str]) -> dict[str, Any]:
    types = dict.fromkeys(modules.values())
    groups = {}
    for number, own in enumerate(sorted(types, key=lambda each: each != usual)):
        targets = ["Linear"] if own == usual else [name for name, each in modules.items() if each == own]
        groups[f"group_{number}"] = config_group(own, targets)
    formats = dict.fromkeys(own.format for own in types)
    return {
        "quant_method": COMPRESSED_TENSORS,
        "format": next(iter(formats)) if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": list(_with_head(modules, kept)),
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }
