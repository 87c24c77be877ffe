"""What llama.cpp wants to know of a model: the key-values of a GGUF file, made from a config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.file_types import FILE_TYPES, FLOAT_TYPES, QUANTIZATION_VERSION
from lbrx.models.architectures.dimensions import ConfigValues, Dimensions
from lbrx.models.architectures.gguf_families import Family
from lbrx.models.architectures.rope import longrope_attention_factor, scaling_metadata
from lbrx.models.architectures.scope import text_section

CONFIG_KEY = "lbrx.hf.config"  # the JSON of config.json
DTYPE_KEY = "lbrx.hf.dtype"  # the type of tensors in the Hugging Face model
DTYPES_KEY = "lbrx.hf.dtypes"  # JSON: tensors of other types
TIED_HEAD_KEY = "lbrx.hf.has_tied_head"  # whether the model stores a head that is its embedding
NORM_REST_PREFIX = "lbrx.hf.norm_rest."  # what rounding took from a norm when 1 was added


def model_metadata(family: Family, settings: ConfigValues, sizes: Dimensions, rope: ConfigValues) -> dict[str, Any]:
    """The key-values ``{arch}.*``: sizes, attention, rotation and experts."""
    pairs: dict[str, Any] = {
        "block_count": sizes.layers,
        "context_length": settings.count("max_position_embeddings"),
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.feed_forward,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.key_heads,
        "attention.key_length": sizes.head,
        "attention.value_length": sizes.head,
        "attention.layer_norm_rms_epsilon": settings.number("rms_norm_eps"),
        "vocab_size": sizes.vocab,
        **_rope_metadata(family, settings, sizes, rope),
        **_window_metadata(family, settings, sizes),
    }
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if family.is_gemma and settings.get(key) is not None:
            pairs[key] = settings.number(key)
    if family.is_mixture:
        pairs |= {"expert_count": sizes.experts, "expert_used_count": settings.count("num_experts_per_tok")}
    if settings.get("moe_intermediate_size") is not None and family.is_mixture:
        pairs["expert_feed_forward_length"] = sizes.expert_feed_forward
    if sizes.shared_feed_forward:
        pairs["expert_shared_feed_forward_length"] = sizes.shared_feed_forward
    return {f"{family.architecture}.{key}": value for key, value in pairs.items()}


def _rope_metadata(family: Family, settings: ConfigValues, sizes: Dimensions, rope: ConfigValues) -> dict[str, Any]:
    rope_type = rope.get("rope_type")
    if rope_type not in (*family.rope_types, "dynamic"):
        raise UsageError(
            f"{settings.where}: rope type {rope_type!r} of config.json is not one that llama.cpp has for "
            f"{family.architecture}; expected one of {', '.join(family.rope_types)}"
        )
    pairs: dict[str, Any] = {
        "rope.dimension_count": rotated_elements(sizes, rope),
        "rope.freq_base": rope.number("rope_theta"),
    }
    if rope.get("rope_local_base_freq") is not None and family.llama_cpp_period is not None:
        pairs["rope.freq_base_swa"] = rope.number("rope_local_base_freq")
    context = settings.count("max_position_embeddings")
    pairs |= {f"rope.scaling.{end}": value for end, value in scaling_metadata(rope, context).items()}
    if family.model_type == "phi3":
        original = original_length(settings, rope)
        pairs["rope.scaling.original_context_length"] = original
        if rope_type == "longrope":
            pairs["rope.scaling.attn_factor"] = longrope_attention_factor(context, original)
    return pairs


def rotated_elements(sizes: Dimensions, rope: ConfigValues) -> int:
    """How many elements of each head are rotated."""
    return int(rope.number("partial_rotary_factor", default=1.0) * sizes.head)


def original_length(settings: ConfigValues, rope: ConfigValues) -> int:
    """The context length that a Phi-3 model was first trained for."""
    default = settings.count("original_max_position_embeddings", "max_position_embeddings")
    return int(rope.number("original_max_position_embeddings", default=default))


def _window_metadata(family: Family, settings: ConfigValues, sizes: Dimensions) -> dict[str, Any]:
    """The sliding window, and which layers have it if they are not those that llama.cpp expects."""
    if family.model_type == "phi3":
        return {"attention.sliding_window": settings.get("sliding_window") or 0}
    if family.llama_cpp_period is None:
        return {}
    period = full_attention_period(family, settings, sizes)
    if period == 1:
        return {}
    pairs = {"attention.sliding_window": settings.count("sliding_window")}
    return pairs if period == family.llama_cpp_period else {**pairs, "attention.sliding_window_pattern": period}


def full_attention_period(family: Family, settings: ConfigValues, sizes: Dimensions) -> int:
    """Every how many layers one has full attention; 1 if all have."""
    assert family.llama_cpp_period is not None
    layer_types = settings.get("layer_types")
    if layer_types is None:
        period = settings.get("sliding_window_pattern", "_sliding_window_pattern") or family.llama_cpp_period
        return int(period)
    is_full = [layer_type == "full_attention" for layer_type in layer_types]
    candidates: tuple[int, ...] = (family.llama_cpp_period, *range(1, sizes.layers + 2))
    for candidate in candidates:
        if is_full == [(layer + 1) % candidate == 0 for layer in range(sizes.layers)]:
            return candidate
    raise UsageError(
        f"{settings.where}: 'layer_types' of config.json mixes full and sliding attention irregularly; "
        "llama.cpp can only have every n-th layer with full attention"
    )


def general_metadata(family: Family, tensors: Sequence[PlannedTensor], name: str, sizes: Dimensions) -> dict[str, Any]:
    """The key-values ``general.*``."""
    main = main_type(tensors)
    return {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": name,
        "general.size_label": size_label(tensors, sizes.experts),
        "general.file_type": FILE_TYPES[main if main in FLOAT_TYPES else "f16"].number,
        "general.quantization_version": QUANTIZATION_VERSION,
    }


def main_type(tensors: Sequence[PlannedTensor]) -> str:
    """The type that most elements of matrices have.

    >>> import lbrx
    >>> values = (lbrx.full((8, 8), 0, "bf16"), lbrx.full((99,), 0, "f32"))
    >>> main_type([PlannedTensor.of("w", value) for value in values])
    'bf16'
    """
    totals: dict[str, int] = {}
    for tensor in tensors:
        if len(tensor.shape) > 1:
            totals[tensor.type_name] = totals.get(tensor.type_name, 0) + math.prod(tensor.shape)
    return max(totals, key=lambda name: totals[name], default="f32")


def size_label(tensors: Sequence[PlannedTensor], experts: int) -> str:
    """The size of a model as its users call it, such as ``8x7B``: of a mixture what one expert and the rest have.

    >>> import lbrx
    >>> size_label([PlannedTensor.of("w", lbrx.full((1200, 1000), 0, "f32"))], 0)
    '1.2M'
    """
    total = sum(math.prod(tensor.shape) for tensor in tensors)
    if not experts:
        return _short_count(total)
    stacked = sum(math.prod(tensor.shape) for tensor in tensors if "_exps." in tensor.name)
    return f"{experts}x{_short_count(total - stacked + stacked // experts)}"


def _short_count(count: int) -> str:
    """A number of parameters with two digits or more."""
    scales = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
    scale, letter = next((row for row in scales if count >= row[0]), (1e3, "K"))
    scaled = count / scale
    return f"{scaled:.{max(2 - len(str(round(scaled)).lstrip('0')), 0)}f}{letter}"


def source_metadata(config: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, Any]:
    """What brings the Hugging Face model back whole: its config.json and the types of its tensors.

    >>> source_metadata({"model_type": "llama"}, {"a": "bf16", "b": "bf16", "c": "f32"})["lbrx.hf.dtypes"]
    '{"c": "f32"}'
    """
    names = list(dtypes.values())
    usual = max(dict.fromkeys(names), key=names.count, default="f32")
    others = {name: dtype for name, dtype in dtypes.items() if dtype != usual}
    pairs = {CONFIG_KEY: json.dumps(config, ensure_ascii=False), DTYPE_KEY: usual}
    return {**pairs, DTYPES_KEY: json.dumps(others, ensure_ascii=False)} if others else pairs


def text_config(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The config.json of the language model alone: of a multimodal model its text section.

    >>> from lbrx.models.architectures.gguf_families import FAMILIES
    >>> nested = {"model_type": "gemma3", "dtype": "bfloat16", "text_config": {"hidden_size": 8}}
    >>> text_config(nested, FAMILIES["gemma3_text"])["architectures"]
    ['Gemma3ForCausalLM']
    """
    section = text_section(config)
    if section is config:
        return dict(config)
    outer = {key: config[key] for key in _SHARED_KEYS if config.get(key) is not None}
    return {"architectures": [family.class_name], **outer, **section, "model_type": family.model_type}


_SHARED_KEYS = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
