"""The config.json of a model, made from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lbrx.errors import FormatError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.activations import config_name, usual_activation
from lbrx.models.architectures.config import MOST, Config
from lbrx.models.architectures.family import Family, most_items
from lbrx.models.architectures.gguf_layers import listed_config, periods_of, with_numbers
from lbrx.models.architectures.gguf_metadata import (
    COUNTS,
    EPSILONS,
    EXPERT_SIZES,
    PERIOD,
    PREDICTING,
    SECTIONS,
    SOFTCAPS,
    WINDOW,
    YARN_LOG_MULTIPLIER,
    gguf_of,
    main_type,
    norm_of,
)
from lbrx.models.architectures.records import Gguf
from lbrx.models.architectures.rope import (
    FULL_ATTENTION,
    LONG_FACTORS,
    ROPE_FREQUENCIES,
    SHORT_FACTORS,
    SLIDING_ATTENTION,
    Floats,
    llama3_config,
    plain_float,
    scaling_config,
)

_TOKEN_IDS = {"bos": "bos", "eos": "eos", "padding": "pad"}
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


def config_of_metadata(
    family: Family, metadata: Mapping[str, Any], tensors: Mapping[str, PlannedTensor], where: str
) -> tuple[dict[str, Any], list[str]]:
    """Build a config.json from key-values and tensors; also return warnings about missing facts."""
    gguf = gguf_of(family)
    prefix = f"{gguf.name}."
    per_layer = [prefix + end for end in gguf.layer_keys]
    values = Config(with_numbers(_uniform(metadata, prefix), per_layer), where=where, error_class=FormatError)
    config: dict[str, Any] = {"architectures": [family.class_name], "model_type": family.model_type}
    most = {"block_count": most_items(tensors)}
    counts = {end: key for end, key in COUNTS.items() if end not in gguf.without}
    config |= {key: values.count(prefix + end, at_most=most.get(end, MOST)) for end, key in counts.items()}
    others = {"attention.key_length": "head_dim", WINDOW: "sliding_window", **{key: key for key in SOFTCAPS}}
    others |= {"expert_count": family.expert_count or "num_experts", "expert_used_count": "num_experts_per_tok"}
    others |= {end: key for end, key in EXPERT_SIZES.items() if key in family.defaults}
    for name, key in {prefix + end: key for end, key in others.items()}.items():
        if name in metadata:
            is_real = key in SOFTCAPS
            config[key] = plain_float(values.number(name)) if is_real else values.count(name, at_least=0)
    config |= _more_config(family, values, prefix, config)
    given = {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}
    config |= listed_config(gguf, given, config["num_hidden_layers"], where)
    config |= periods_of(gguf, given, tensors.keys(), config["num_hidden_layers"])
    if not config.get("sliding_window"):
        config["sliding_window"] = None
    embedding = tensors.get("token_embd.weight")
    config |= {
        "vocab_size": values.count(prefix + "vocab_size") if embedding is None else embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": TORCH_NAMES.get(main_type(list(tensors.values())), "bfloat16"),
        "hidden_act": config_name(usual_activation(family)),
    }
    for name, key in _TOKEN_IDS.items():
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            config[f"{key}_token_id"] = int(token_id)
    norm = norm_of(family)
    is_read = norm.epsilon in gguf.keys.values() or EPSILONS[norm.function] in gguf.without
    if norm.epsilon.isidentifier() and not is_read:
        config[norm.epsilon] = plain_float(values.number(prefix + EPSILONS[norm.function], default=1e-6))
    rope: dict[str, Any] = {}
    warnings: list[str] = []
    if family.defaults.get("rope_theta") is not None:
        rope, warnings = _rope_config(family, values, tensors, config)
    config |= _taken_for_granted(family, values, tensors, config) | rope
    return {family.keys.get(key, key): value for key, value in config.items() if key[0] != "_"}, warnings


def _more_config(family: Family, values: Config, prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of keys that the record of a family describes."""
    gguf = gguf_of(family)
    given = {name.removeprefix(prefix): value for name, value in values.given.items()}
    result: dict[str, Any] = {}
    for name, key in gguf.keys.items():
        if key.isidentifier() and key not in gguf.config and name in given:
            result[key] = plain_float(given[name]) if isinstance(given[name], float) else given[name]
    known = Config(
        {name.replace(".", "_"): value for name, value in given.items()}, {**config, **result, **gguf.stored_defaults}
    )
    for key, expression in gguf.config.items():
        value = known.evaluate(expression)
        result[key] = plain_float(value) if isinstance(value, float) else value
    if family.prediction_key and PREDICTING in given:
        count = values.count(prefix + PREDICTING, at_least=0)
        result[family.prediction_key] = count
        result[family.layers_key] = values.count(prefix + "block_count") - count
    return result


def _uniform(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the key-values of an architecture; a list with equal values for all layers becomes one number."""

    def plain(key: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not value.size or key.endswith((PERIOD, SECTIONS)):
            return value
        return value[0].item() if (value == value[0]).all() else value

    return {key: plain(key, metadata[key]) for key in metadata if key.startswith(prefix)}


def _layer_types(gguf: Gguf, values: Config, config: Mapping[str, Any]) -> list[str]:
    """Return which layers have a sliding window: all but every n-th, or those that a list marks."""
    layers, key = config["num_hidden_layers"], f"{gguf.name}.{PERIOD}"
    given = values.get(key)
    if isinstance(given, np.ndarray | list) and config["sliding_window"]:
        if len(given) != layers:
            raise values.wrong(f"{key!r} has {len(given)} values; expected one for each of {layers} layers")
        is_sliding = [bool(mark) for mark in given]
    else:
        period = gguf.full_attention_period if given is None else values.count(key)
        is_sliding = [bool(config["sliding_window"]) and (layer + 1) % (period or 1) != 0 for layer in range(layers)]
    return [SLIDING_ATTENTION if slides else FULL_ATTENTION for slides in is_sliding]


def assumed_scalar(gguf: Gguf, layers: int, hidden: int, heads: int, head: int) -> int:
    """Return the number whose square root divides the attention scores in llama.cpp."""
    return hidden // heads if layers == gguf.layers_scaled_by_width else head


def _taken_for_granted(
    family: Family, values: Config, tensors: Mapping[str, PlannedTensor], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that llama.cpp hard-codes for some families instead of reading them from the file."""
    gguf = gguf_of(family)
    options: dict[str, Any] = {key: f"blk.0.{name}" in tensors for key, name in gguf.true_if_stored.items()}
    if "query_pre_attn_scalar" in family.defaults:
        layers, hidden, heads = (config[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
        options["query_pre_attn_scalar"] = assumed_scalar(gguf, layers, hidden, heads, _head_size(config))
        options["hidden_activation"] = config["hidden_act"]
    if gguf.lists_windows and not Config(config).evaluate(gguf.windows_when):
        options["sliding_window"] = None
    elif gguf.full_attention_period is not None or (gguf.lists_windows and config.get("sliding_window")):
        options["layer_types"] = _layer_types(gguf, values, config)
    stored = tuple(name.removeprefix("blk.0.") for name in tensors)
    known = Config({**config, **options})
    options |= {key: known.evaluate(expression, stored=stored) for key, expression in gguf.derived.items()}
    return {**options, **gguf.fixed}


def _head_size(config: Mapping[str, Any]) -> int:
    return max(int(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])), 1)


def _rope_config(
    family: Family,
    values: Config,
    tensors: Mapping[str, PlannedTensor],
    config: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    gguf, defaults, head = gguf_of(family), family.defaults, _head_size(config)
    prefix = f"{gguf.name}.rope."
    theta = plain_float(values.number(prefix + "freq_base", default=defaults["rope_theta"]))
    settings: dict[str, Any] = {"rope_theta": theta, "rope_scaling": scaling_config(values, prefix + "scaling.")}
    warnings: list[str] = []
    logs = values.get(prefix.removesuffix("rope.") + YARN_LOG_MULTIPLIER)
    if gguf.yarn_log_multiplier is not None and logs is not None and settings["rope_scaling"]:
        scale = plain_float(float(logs) / gguf.yarn_log_multiplier)
        settings["rope_scaling"] |= {"mscale": scale, "mscale_all_dim": scale}
    if "rope_local_base_freq" in defaults:
        local = values.number(prefix + "freq_base_swa", default=defaults["rope_local_base_freq"])
        settings["rope_local_base_freq"] = plain_float(local)
    if ROPE_FREQUENCIES in tensors and "proportional" in gguf.rope_types:
        factors = _values(tensors[ROPE_FREQUENCIES])
        part = float((factors == 1).sum() / max(factors.size, 1))
        full = {"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": theta}
        windows = {"rope_type": "default", "rope_theta": settings["rope_local_base_freq"]}
        return {"rope_parameters": {FULL_ATTENTION: full, SLIDING_ATTENTION: windows}}, warnings
    if ROPE_FREQUENCIES in tensors:
        settings["rope_scaling"] = llama3_config(_values(tensors[ROPE_FREQUENCIES]), theta, head)
        if settings["rope_scaling"] is None:
            warnings.append(
                f"{values.where}: {ROPE_FREQUENCIES} does not match Llama 3; 'rope_scaling' of config.json is empty"
            )
    if gguf.has_rope_sections:
        given_sections = values.get(f"{gguf.name}.{SECTIONS}")
        if not isinstance(given_sections, np.ndarray):
            raise values.wrong(f"'{gguf.name}.{SECTIONS}' is {given_sections!r:.60}; expected a list")
        settings["rope_scaling"] = {"rope_type": "default", "mrope_section": given_sections.tolist()[:3]}
    rotated = int(values.number(prefix + "dimension_count", default=head))
    has_longrope = "longrope" in gguf.rope_types
    if has_longrope:
        length = values.number(prefix + "scaling.original_context_length", default=config["max_position_embeddings"])
        settings["original_max_position_embeddings"] = int(length)
    if has_longrope or rotated != head or "partial_rotary_factor" in defaults:
        settings["partial_rotary_factor"] = rotated / head
    if LONG_FACTORS in tensors and SHORT_FACTORS in tensors and has_longrope:
        long, short = (_values(tensors[name]) for name in (LONG_FACTORS, SHORT_FACTORS))
        settings["rope_scaling"] = {
            "type": "longrope",
            "long_factor": [plain_float(value) for value in long],
            "short_factor": [plain_float(value) for value in short],
        }
    return settings, warnings


def _values(planned: PlannedTensor) -> Floats:
    values: Floats = planned.make().numpy().astype(np.float32)
    return values
