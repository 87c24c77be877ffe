"""A Hugging Face model quantized for MLX, as ``mlx_lm.convert`` does it.

Every linear layer and every embedding whose rows are whole groups is coded: its weight becomes ``name.weight``,
``name.scales`` and, in affine codings, ``name.biases``, and ``config.json`` tells the coding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES
from lbrx.jobs.quantize.budget import Measuring
from lbrx.jobs.quantize.choice import Choice
from lbrx.jobs.quantize.coded import CodedTensor, Quantization, refuse_to_requantize
from lbrx.jobs.quantize.group_codes import Calibration, GroupCoding, read_calibration
from lbrx.jobs.quantize.mixes import deserves_more_bits
from lbrx.jobs.quantize.mlx_budget import choose_mlx_for_size, trials_of_mlx
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.jobs.quantize.sensitivity import Trial
from lbrx.jobs.quantize.targets import MlxTarget, find_mlx_mode, mlx_name
from lbrx.models.architectures import known_family
from lbrx.models.architectures.mlx_modes import described, weight_parts
from lbrx.ops.group_feedback import GroupCodes, GroupSpec, packed_words
from lbrx.tensors.codecs.mlx import WORD_BITS, MlxMode, encoded_mlx
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as tensor_of

_WEIGHT = ".weight"
_STACK_MARKS = ("switch_mlp", "experts")
_VALUE_MARKS = ("v_proj", "v_a_proj", "v_b_proj")
_CAREFUL_MODE = MlxMode(bits=8, group_size=64)
# Layers that mlx_lm keeps at 8 bits, by model type and the end of their names, of models without a Family record.
_CAREFUL_LAYERS: Mapping[str, tuple[str, ...]] = {
    "qwen3_next": ("mlp.gate", "shared_expert_gate"),
    "gpt_oss": ("router",),
    "jamba": ("router",),
    "lfm2_moe": ("feed_forward.gate",),
    "minimax": ("block_sparse_moe.gate",),
    "granite": ("self_attn.o_proj", "mlp.down_proj", "lm_head"),
    "granitemoe": ("block_sparse_moe.router.layer", "self_attn.o_proj", "mlp.down_proj", "lm_head"),
}

# Routers that are not Linear layers in mlx_lm, so that it refuses quantized ones; by model type and end of their names.
_UNQUANTIZED_LAYERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "deepseek",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "joyai_llm_flash",
            "kimi_k2",
            "kimi_vl",
            "kimi_k25",
            "glm4_moe",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "solar_open",
            "dots1",
            "exaone_moe",
            "mimo_v2_flash",
            "bailing_moe",
            "bailing_moe_v2",
            "bailing_moe_v3",
            "bailing_moe_linear",
            "bailing_hybrid",
            "laguna",
        ),
        ("mlp.gate",),
    ),
    "nemotron_h": ("mixer.gate",),
}


def quantize_mlx(contents: Contents, options: QuantizeOptions, measuring: Measuring | None = None) -> Quantization:
    """What becomes of a model with Hugging Face names. Only errors of samples are computed, if there is a size."""
    target, config = options.target, contents.config
    assert isinstance(target, MlxTarget)
    if config is None:
        raise UsageError("the model has no config.json, which says for MLX how its weights are coded")
    total_error = None
    others: tuple[tuple[int, float], ...] = ()
    if options.has_size:
        of_size = target
        selection = choose_mlx_for_size(
            contents, options, lambda each: _undecided(each, config, of_size, options), measuring
        )
        modes, total_error, target = selection.modes, selection.total_error, MlxTarget(selection.usual)
        choices, others = selection.choices, selection.front
    else:
        modes, choices = _chosen(contents, config, target, options)
    calibration = read_calibration(contents, options)
    coded = tuple(_coded(t, choices[t.name], modes.get(t.name), options, calibration) for t in contents.tensors)
    settings = _settings(target, modes)
    result = replace(
        contents,
        format="mlx",
        tensors=tuple(part for tensor in coded for part in tensor.parts),
        config={**config, "quantization": settings, "quantization_config": settings},
    )
    return Quantization(result, coded, total_error, front=others)


def mlx_trials(contents: Contents, options: QuantizeOptions) -> list[Trial]:
    """What to measure of each tensor whose coding is chosen for a size."""
    target, config = options.target, contents.config or {}
    assert isinstance(target, MlxTarget)
    return trials_of_mlx(contents, options, lambda each: _undecided(each, config, target, options))


def _undecided(
    tensor: PlannedTensor, config: Mapping[str, Any], target: MlxTarget, options: QuantizeOptions
) -> tuple[MlxMode | str, str] | None:
    """The coding of a tensor that no size decides, or None."""
    unquantized = _UNQUANTIZED_LAYERS.get(str(config.get("model_type")), ())
    return _kept_router(tensor, unquantized) or _asked_for(tensor, target, options) or _kept(tensor, target.mode)


def _chosen(
    contents: Contents, config: Mapping[str, Any], target: MlxTarget, options: QuantizeOptions
) -> tuple[dict[str, MlxMode], dict[str, Choice]]:
    """The codings of the weights that are coded, and a choice for every tensor."""
    modes: dict[str, MlxMode] = {}
    choices: dict[str, Choice] = {}
    mix = _Mix(contents, config, target) if target.high_mode is not None else None
    family, model_type = known_family(config), str(config.get("model_type"))
    careful = _CAREFUL_LAYERS.get(model_type, ()) if family is None else family.careful_in_mlx
    unquantized = _UNQUANTIZED_LAYERS.get(model_type, ())
    for tensor in contents.tensors:
        choice = _kept_router(tensor, unquantized) or _asked_for(tensor, target, options) or _kept(tensor, target.mode)
        if choice is None:
            module = tensor.name.removesuffix(_WEIGHT)
            if mix is not None:
                choice = mix.choose(module)
            else:
                choice = (_CAREFUL_MODE, "careful layer") if module.endswith(careful) else (target.mode, "base coding")
        mode, reason = choice
        if isinstance(mode, MlxMode) and _fits(tensor, mode):
            modes[tensor.name], choices[tensor.name] = mode, Choice(mlx_name(mode), reason)
        elif isinstance(mode, MlxMode):
            reason = f"rows of {tensor.shape[-1]} are not a multiple of the group size {mode.group_size}"
            choices[tensor.name] = Choice(tensor.type_name, reason)
        else:
            choices[tensor.name] = Choice(mode, reason)
    return modes, choices


def _kept_router(tensor: PlannedTensor, unquantized: tuple[str, ...]) -> tuple[str, str] | None:
    if unquantized and tensor.name.removesuffix(_WEIGHT).endswith(unquantized):
        return tensor.type_name, "mlx_lm cannot load this layer quantized"
    return None


def _kept(tensor: PlannedTensor, mode: MlxMode) -> tuple[str, str] | None:
    if not is_layer(tensor):
        return tensor.type_name, "not a linear layer or an embedding"
    if not _fits(tensor, mode):
        return tensor.type_name, f"rows of {tensor.shape[-1]} are not a multiple of the group size {mode.group_size}"
    return None


def is_layer(tensor: PlannedTensor) -> bool:
    """Whether a tensor is the weight of a linear layer, of an embedding, or of a stack of experts."""
    if not tensor.name.endswith(_WEIGHT) or "conv" in tensor.name:
        return False
    return len(tensor.shape) == 2 or (len(tensor.shape) == 3 and any(mark in tensor.name for mark in _STACK_MARKS))


def _fits(tensor: PlannedTensor, mode: MlxMode) -> bool:
    return tensor.shape[-1] % mode.group_size == 0


def _asked_for(tensor: PlannedTensor, target: MlxTarget, options: QuantizeOptions) -> tuple[MlxMode | str, str] | None:
    """The coding that an option names for a tensor, if it can be coded."""
    if not is_layer(tensor):
        return None
    name = tensor.name.removesuffix(_WEIGHT)
    is_output, is_embedding = name.endswith("lm_head"), name.endswith("embed_tokens")
    if is_output and options.leave_output:
        return tensor.type_name, "--leave-output"
    override = options.override_of(tensor.name)
    wanted, reason = (override.type_name, f"--tensor-type {override.pattern}") if override else (None, "")
    if is_output and options.output_type is not None:
        wanted, reason = options.output_type.lower(), "--output-type"
    if is_embedding and options.embedding_type is not None:
        wanted, reason = options.embedding_type.lower(), "--embedding-type"
    if wanted is None:
        return None
    mode = find_mlx_mode(wanted)
    if mode is not None and mode.mode == target.mode.mode == "affine":
        mode = replace(mode, group_size=target.mode.group_size)
    return mode or wanted, reason


class _Mix:
    """A mixed recipe: more bits for values and for the way down in some layers, and for the output."""

    def __init__(self, contents: Contents, config: Mapping[str, Any], target: MlxTarget) -> None:
        if not any("down_proj" in tensor.name for tensor in contents.tensors):
            raise UsageError(
                "the model has no 'down_proj', which mixed recipes go by; expected another target, as mlx_4"
            )
        self._layers = _layer_count(config)
        self._low, self._high = target.mode, target.high_mode or target.mode

    def choose(self, module: str) -> tuple[MlxMode, str]:
        layer = next((int(piece) for piece in module.split(".") if piece.isdigit()), 0)
        is_sensitive = "down_proj" in module or any(mark in module for mark in _VALUE_MARKS)
        if "lm_head" in module or (is_sensitive and deserves_more_bits(layer, self._layers)):
            return self._high, "high bits of the mix"
        return self._low, "low bits of the mix"


def _layer_count(config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    for section in (config, text if isinstance(text, Mapping) else {}):
        count = section.get("num_hidden_layers")
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    raise UsageError("config.json has no 'num_hidden_layers', which mixed recipes go by")


def _coded(
    tensor: PlannedTensor, choice: Choice, mode: MlxMode | None, options: QuantizeOptions, calibration: Calibration
) -> CodedTensor:
    if mode is None and choice.type_name == tensor.type_name:
        return CodedTensor(tensor, choice, (tensor,))
    if not options.allow_requantize:
        refuse_to_requantize(tensor, choice.type_name)
    if mode is None:
        part = tensor.mapped(lambda values: values.dequantize().to(choice.type_name), type_name=choice.type_name)
        return CodedTensor(tensor, choice, (part,))
    plain = mlx_parts(tensor, mode)
    if not calibration.is_used or mode.mode != "affine":
        return CodedTensor(tensor, choice, plain)
    spec = GroupSpec(mode.bits, mode.group_size, "free", _number_type(tensor))
    coding = GroupCoding(spec, partial(_grouped_parts, tensor.name.removesuffix(_WEIGHT), tensor.shape, spec))
    return CodedTensor(tensor, choice, calibration.applied(tensor, plain, coding), coding)


def _grouped_parts(module: str, shape: tuple[int, ...], spec: GroupSpec, codes: GroupCodes) -> dict[str, Tensor]:
    """The tensors of a weight whose codes are chosen."""
    words = packed_words(codes.codes, spec.bits)
    *rows, columns = shape
    weight = Blocks(CpuStorage(words.reshape(-1).view(np.uint8)), "u32", (*rows, columns * spec.bits // WORD_BITS))
    numbers = (*rows, columns // spec.size)
    scales, biases = (tensor_of(each.reshape(numbers)).to(spec.number_type) for each in (codes.steps, codes.lows))
    return {f"{module}.weight": Tensor(weight), f"{module}.scales": scales, f"{module}.biases": biases}


def _number_type(tensor: PlannedTensor) -> str:
    return tensor.type_name if tensor.type_name in FLOAT_TYPES else "f32"


def mlx_parts(tensor: PlannedTensor, mode: MlxMode) -> tuple[PlannedTensor, ...]:
    """The tensors that MLX has of a weight."""
    numbers = "u8" if mode.mode != "affine" else _number_type(tensor)
    return weight_parts(tensor, mode, lambda values: encoded_mlx(values.dequantize(), mode), numbers)


def _settings(target: MlxTarget, modes: Mapping[str, MlxMode]) -> dict[str, Any]:
    """What config.json says: the coding of most layers, and those of others; a mix names the coding of each."""
    usual = target.mode if target.high_mode is None else replace(target.mode, bits=MlxMode().bits)
    own: dict[str, Any] = described(usual)
    for name, mode in modes.items():
        if target.high_mode is not None or mode != target.mode:
            own[name.removesuffix(_WEIGHT)] = described(mode)
    return own
