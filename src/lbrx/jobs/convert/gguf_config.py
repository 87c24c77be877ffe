"""The config.json of a GGUF model: the one that was stored in it, or one made from its key-values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lbrx.errors import FormatError
from lbrx.files.formats.strict_json import parse_object
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.gguf_metadata import CONFIG_KEY, main_type, model_metadata
from lbrx.models.architectures.dimensions import ConfigValues, Dimensions
from lbrx.models.architectures.gguf_families import FAMILIES, Family
from lbrx.models.architectures.rope import (
    LONG_FACTORS,
    ROPE_FREQUENCIES,
    SHORT_FACTORS,
    Floats,
    llama3_config,
    plain_float,
    rope_settings,
    scaling_config,
)
from lbrx.tensors.dtype import DTYPES

# The end of a key in GGUF, and what config.json calls it.
_COUNTS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_OPTIONAL = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_TOKEN_IDS = {"bos": "bos", "eos": "eos", "padding": "pad"}
_TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


def stored_config(metadata: Mapping[str, Any], where: str) -> tuple[Family, dict[str, Any]] | None:
    """The config.json that lbrx put into the file, None if there is none or other key-values disagree with it."""
    text = metadata.get(CONFIG_KEY)
    if not isinstance(text, str):
        return None
    config = parse_object(text, f"{where}: key {CONFIG_KEY!r}", unique_keys=False)
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    settings = ConfigValues(config, family.defaults, where)
    sizes = Dimensions.of(settings, family.is_mixture)
    expected = model_metadata(family, settings, sizes, rope_settings(settings))
    is_same = all(_is_alike(metadata.get(key), value) for key, value in expected.items())
    return (family, config) if is_same else None


def _is_alike(value: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(value, int | float):
        return bool(np.float32(value) == np.float32(expected))
    return bool(value == expected)


def made_config(
    family: Family, metadata: Mapping[str, Any], tensors: Mapping[str, PlannedTensor], where: str
) -> tuple[dict[str, Any], list[str]]:
    """A config.json from key-values and tensors, and warnings about what they do not tell."""
    prefix = f"{family.architecture}."
    config: dict[str, Any] = {"architectures": [family.class_name], "model_type": family.model_type}
    for end, key in _COUNTS.items():
        config[key] = _whole_number(metadata, prefix + end, where)
    for end, key in _OPTIONAL.items():
        if prefix + end in metadata:
            config[_own_key(family, key)] = _plain(metadata[prefix + end])
    if not config.get("sliding_window"):
        config["sliding_window"] = None
    embedding = tensors.get("token_embd.weight")
    config |= {
        "vocab_size": _whole_number(metadata, prefix + "vocab_size", where)
        if embedding is None
        else embedding.shape[0],
        "rms_norm_eps": plain_float(float(metadata.get(prefix + "attention.layer_norm_rms_epsilon", 1e-6))),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": _TORCH_NAMES.get(main_type(list(tensors.values())), "bfloat16"),
        "hidden_act": "gelu_pytorch_tanh" if family.is_gemma else "silu",
    }
    for name, key in _TOKEN_IDS.items():
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            config[f"{key}_token_id"] = int(token_id)
    rope, warnings = _rope_config(family, metadata, tensors, config, where)
    return {**config, **_family_config(family, metadata, tensors, config), **rope}, warnings


def _own_key(family: Family, key: str) -> str:
    return "num_local_experts" if key == "num_experts" and family.model_type == "mixtral" else key


def _plain(value: Any) -> Any:
    return plain_float(value) if isinstance(value, float) else value


def _whole_number(metadata: Mapping[str, Any], key: str, where: str) -> int:
    value = metadata.get(key)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        value = int(value[0])  # one for each layer
    if isinstance(value, bool) or not isinstance(value, int):
        problem = "is missing" if value is None else f"is {value!r:.60}"
        raise FormatError(f"{where}: key {key!r} {problem}; expected a whole number")
    return value


def _layer_types(family: Family, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Which layers have a sliding window: every one but each n-th, or those that a list marks."""
    layers = range(config["num_hidden_layers"])
    given = metadata.get(f"{family.architecture}.attention.sliding_window_pattern", family.llama_cpp_period)
    if not config["sliding_window"]:
        given = 1
    if isinstance(given, int):
        is_sliding = [(layer + 1) % given != 0 for layer in layers]
    else:
        is_sliding = [bool(mark) for mark in given]
    return ["sliding_attention" if slides else "full_attention" for slides in is_sliding]


def _family_config(
    family: Family, metadata: Mapping[str, Any], tensors: Mapping[str, PlannedTensor], config: Mapping[str, Any]
) -> dict[str, Any]:
    """What only some families have, and llama.cpp takes for granted."""
    if family.model_type == "llama":
        biases = ("blk.0.attn_q.bias", "blk.0.ffn_up.bias")
        return dict(zip(("attention_bias", "mlp_bias"), (name in tensors for name in biases), strict=True))
    if family.is_gemma:
        head = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        by_hidden = (family.architecture, config["num_hidden_layers"]) in (("gemma2", 46), ("gemma3", 62))
        scalar = config["hidden_size"] // config["num_attention_heads"] if by_hidden else head
        return {
            "query_pre_attn_scalar": scalar,
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": _layer_types(family, metadata, config),
        }
    return {"norm_topk_prob": family.architecture == "qwen3moe"} if family.architecture.endswith("moe") else {}


def _rope_config(
    family: Family,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, PlannedTensor],
    config: Mapping[str, Any],
    where: str,
) -> tuple[dict[str, Any], list[str]]:
    prefix = f"{family.architecture}.rope."
    theta = plain_float(float(metadata.get(prefix + "freq_base", family.defaults["rope_theta"])))
    head = int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))
    settings: dict[str, Any] = {"rope_theta": theta, "rope_scaling": scaling_config(metadata, prefix + "scaling.")}
    warnings = []
    if "rope_local_base_freq" in family.defaults:
        local = metadata.get(prefix + "freq_base_swa", family.defaults["rope_local_base_freq"])
        settings["rope_local_base_freq"] = plain_float(float(local))
    if ROPE_FREQUENCIES in tensors:
        settings["rope_scaling"] = llama3_config(_values(tensors[ROPE_FREQUENCIES]), theta, head)
        if settings["rope_scaling"] is None:
            warnings.append(
                f"{where}: {ROPE_FREQUENCIES} has other numbers than Llama 3; 'rope_scaling' of config.json is empty"
            )
    if family.model_type == "phi3":
        settings |= _phi3_rope(metadata, tensors, config, prefix, head)
    return settings, warnings


def _phi3_rope(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, PlannedTensor],
    config: Mapping[str, Any],
    prefix: str,
    head: int,
) -> dict[str, Any]:
    original = int(metadata.get(prefix + "scaling.original_context_length", config["max_position_embeddings"]))
    share = int(metadata.get(prefix + "dimension_count", head)) / head
    settings: dict[str, Any] = {"original_max_position_embeddings": original, "partial_rotary_factor": share}
    if LONG_FACTORS in tensors and SHORT_FACTORS in tensors:
        long, short = (_values(tensors[name]) for name in (LONG_FACTORS, SHORT_FACTORS))
        settings["rope_scaling"] = {
            "type": "longrope",
            "long_factor": [plain_float(value) for value in long],
            "short_factor": [plain_float(value) for value in short],
        }
    return settings


def _values(planned: PlannedTensor) -> Floats:
    values: Floats = planned.make().numpy().astype(np.float32)
    return values


def with_dtype(config: Mapping[str, Any], type_name: str) -> dict[str, Any]:
    """A config that names the type that most weights have.

    >>> with_dtype({"torch_dtype": "float32"}, "bf16")
    {'torch_dtype': 'bfloat16'}
    """
    name = _TORCH_NAMES.get(type_name)
    key = "dtype" if "dtype" in config else "torch_dtype"
    if name is None or type_name not in DTYPES:
        return dict(config)
    return {**config, key: name}


def stored_dtypes(text: Any, where: str) -> dict[str, str]:
    """The types of tensors that differ from the usual one, checked.

    >>> stored_dtypes('{"a": "f32"}', "a.gguf")
    {'a': 'f32'}
    """
    if text is None:
        return {}
    try:
        dtypes = json.loads(text)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{where}: the types of tensors are not JSON: {error}") from error
    if not isinstance(dtypes, dict) or any(name not in DTYPES for name in dtypes.values()):
        raise FormatError(f"{where}: the types of tensors are {text!r:.60}; expected an object of dtypes")
    return dtypes
