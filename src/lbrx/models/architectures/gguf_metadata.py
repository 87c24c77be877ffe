"""Convert the sizes and options of a model between GGUF metadata and config.json, in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.errors import FormatError, UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.activations import config_name, usual_activation
from lbrx.models.architectures.config import MOST, Config
from lbrx.models.architectures.family import Family, most_items
from lbrx.models.architectures.gguf_layers import list_metadata, listed_config, periods_of, with_numbers
from lbrx.models.architectures.records import Gguf, Norm
from lbrx.models.architectures.rope import (
    FULL_ATTENTION,
    LONG_FACTORS,
    ROPE_FREQUENCIES,
    SHORT_FACTORS,
    SLIDING_ATTENTION,
    Floats,
    llama3_config,
    longrope_attention_factor,
    plain_float,
    rope_section,
    scaling_config,
    scaling_metadata,
)

# Suffix of the GGUF key, and the key in config.json.
_COUNTS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_HEAD_SIZES = {"attention.key_length": "head_dim", "attention.value_length": "head_dim"}
_WINDOW = "attention.sliding_window"
_PERIOD = "attention.sliding_window_pattern"
_SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_SECTIONS = "rope.dimension_sections"
_EXPERT_SIZES = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_PREDICTING = "nextn_predict_layers"
_YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_EPSILONS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}
_REAL_ENDS = ("scale", "clamp_kqv", "max_alibi_bias")  # of keys whose values are f32
_TOKEN_IDS = {"bos": "bos", "eos": "eos", "padding": "pad"}
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


def gguf_of(family: Family) -> Gguf:
    """Return the GGUF record of a family; raise if it cannot be converted."""
    assert family.gguf is not None
    return family.gguf


# -- from a config -----------------------------------------------------------------------------------------------------


def metadata_of_config(family: Family, config: Config, rope: Config, prediction_count: int = 0) -> dict[str, Any]:
    """Return the key-values ``{arch}.*``: sizes, attention, rotation and experts.

    ``prediction_count`` is the number of layers that predict further tokens, after the others.
    """
    gguf = gguf_of(family)
    counts = {end: key for end, key in (_COUNTS | _HEAD_SIZES).items() if end not in gguf.without}
    if gguf_of(family).is_encoder:
        return _encoder_metadata(family, config, rope)
    pairs: dict[str, Any] = {end: config.count(key) for end, key in counts.items()}
    pairs["context_length"] = config.size(gguf.context_length)
    norm = _norm(family)
    pairs |= {_EPSILONS[norm.function]: config.real(norm.epsilon), "vocab_size": config.count("vocab_size")}
    if family.defaults.get("rope_theta") is not None:
        pairs |= _rope_metadata(gguf, config, rope)
    pairs |= _window_metadata(family, config)
    pairs |= {key: config.number(key) for key in _SOFTCAPS if key in family.defaults and config.get(key) is not None}
    if family.expert_count is not None:
        pairs["expert_count"] = config.count(family.expert_count)
        pairs["expert_used_count"] = config.count("num_experts_per_tok")
        sizes = {end: key for end, key in _EXPERT_SIZES.items() if key in family.defaults}
        pairs |= {end: config.count(key) for end, key in sizes.items() if config.get(key) is not None}
    pairs = {key: value for key, value in pairs.items() if key not in gguf.without}
    further = _more_metadata(family, config)
    pairs |= {key: value for key, value in further.items() if key not in pairs or not isinstance(value, str)}
    multiplier = gguf.yarn_log_multiplier
    if multiplier is not None and rope.get("mscale_all_dim") is not None:
        pairs[_YARN_LOG_MULTIPLIER] = multiplier * rope.number("mscale_all_dim")
    pairs |= list_metadata(gguf, config, rope, config.count(family.layers_key), prediction_count)
    if prediction_count:
        pairs |= {"block_count": pairs["block_count"] + prediction_count, _PREDICTING: prediction_count}
    return {f"{gguf_of(family).name}.{key}": value for key, value in pairs.items() if value is not None}


def _encoder_metadata(family: Family, config: Config, rope: Config) -> dict[str, Any]:
    """Return the key-values of an encoder, which are those that the record of its family describes."""
    pairs = _more_metadata(family, config)
    if pairs.get("rope.freq_base") is not None:  # in modern configs by layer type
        pairs["rope.freq_base"] = rope.number("rope_theta", default=pairs["rope.freq_base"])
        local = rope_section(config, SLIDING_ATTENTION)
        pairs["rope.freq_base_swa"] = local.number("rope_theta", default=pairs["rope.freq_base_swa"])
    return {f"{gguf_of(family).name}.{key}": value for key, value in pairs.items() if value is not None}


def _more_metadata(family: Family, config: Config) -> dict[str, Any]:
    """Return the key-values that the record of a family describes."""
    pairs: dict[str, Any] = {}
    for name, expression in gguf_of(family).keys.items():
        value = config.evaluate(expression)
        if isinstance(value, str) or value is None:
            pairs[name] = value
            continue
        if not isinstance(value, int | float) or not -MOST < value < MOST:
            raise config.wrong(f"{expression!r} is {value!r:.60}; expected a number, or true or false")
        if name in _COUNTS and isinstance(value, float):
            value = config.size(expression)
        is_real = isinstance(family.defaults.get(expression), float) or name.endswith(_REAL_ENDS)
        pairs[name] = float(value) if is_real and not isinstance(value, bool) else value
    return pairs


def stored_prediction_count(family: Family, metadata: Mapping[str, Any]) -> int:
    """Return how many of the layers of a GGUF file predict further tokens."""
    values = Config(metadata, where="the GGUF file", error_class=FormatError)
    key = f"{gguf_of(family).name}.{_PREDICTING}"
    return values.count(key, at_least=0) if values.get(key) is not None else 0


def _norm(family: Family) -> Norm:
    """Return the norm of a family; variants have the same function and epsilon."""
    norm = Norm() if family.decoder is None else family.decoder.norm
    return norm if isinstance(norm, Norm) else next(iter(norm.parts.values()))


def _rope_metadata(gguf: Gguf, config: Config, rope: Config) -> dict[str, Any]:
    rope_type = rope.get("rope_type")
    if rope_type not in (*gguf.rope_types, "dynamic"):
        raise UsageError(
            f"{config.where}: rope type {rope_type!r} is not one that llama.cpp has for {gguf.name}; "
            f"expected one of {', '.join(gguf.rope_types)}"
        )
    pairs: dict[str, Any] = {
        "rope.dimension_count": rotated_elements(config, rope),
        "rope.freq_base": rope.number("rope_theta"),
    }
    if rope_type == "dynamic" and rope.get("alpha") is not None:
        pairs |= _stretched_base(rope, pairs["rope.dimension_count"])
    has_windows = gguf.full_attention_period is not None or gguf.lists_windows
    if rope.get("rope_local_base_freq") is not None and has_windows:
        pairs["rope.freq_base_swa"] = rope.number("rope_local_base_freq")
    pairs |= _section_metadata(gguf, config, rope)
    context = config.count("max_position_embeddings")
    pairs |= {f"rope.scaling.{end}": value for end, value in scaling_metadata(rope, context).items()}
    if "longrope" in gguf.rope_types:
        default = config.count("original_max_position_embeddings")
        original = int(rope.number("original_max_position_embeddings", default=default))
        pairs["rope.scaling.original_context_length"] = original
        if rope_type == "longrope":
            pairs["rope.scaling.attn_factor"] = longrope_attention_factor(context, original)
    return pairs


def _stretched_base(rope: Config, rotated: int) -> dict[str, Any]:
    """Return the keys of positions whose base is multiplied once and for all, as those of Hunyuan."""
    factor = rope.number("alpha") ** (rotated / (rotated - 2)) if rotated > 2 else 1.0
    length = 1 << 18
    return {
        "rope.freq_base": rope.number("rope_theta") * factor,
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": length,
        "context_length": length,
    }


def _section_metadata(gguf: Gguf, config: Config, rope: Config) -> dict[str, Any]:
    """Return the elements of a head that positions in time, height and width rotate, and lengths of lists."""
    pairs: dict[str, Any] = {}
    for name, key in gguf.counted.items():
        listed = config.get(key)
        if isinstance(listed, list):
            pairs[name] = len(listed)
    if gguf.has_rope_sections:
        given = rope.get("mrope_section")
        if not isinstance(given, list) or not 1 <= len(given) <= 4 or any(type(each) is not int for each in given):
            raise rope.wrong(f"'mrope_section' is {given!r:.60}; expected up to four whole numbers")
        pairs[_SECTIONS] = [*given, 0, 0, 0][:4]
    return pairs


def rotated_elements(config: Config, rope: Config) -> int:
    """Return how many elements of each head are rotated."""
    return int(rope.number("partial_rotary_factor", default=1.0) * config.count("head_dim"))


def _window_metadata(family: Family, config: Config) -> dict[str, Any]:
    """Return the sliding window, and the layers that have it if they differ from what llama.cpp expects."""
    gguf = gguf_of(family)
    if gguf.lists_windows:
        return _listed_windows(family, config)
    if gguf.needs_window:
        return {_WINDOW: config.get("sliding_window") or 0}
    if gguf.full_attention_period is None:
        return {}
    period = _full_attention_period(gguf.full_attention_period, config)
    if period == 1:
        return {}
    pairs = {_WINDOW: config.count("sliding_window")}
    return pairs if period == gguf.full_attention_period else {**pairs, _PERIOD: period}


def _listed_windows(family: Family, config: Config) -> dict[str, Any]:
    if config.get("sliding_window") is None:
        return {}
    layers = config.count("num_hidden_layers")
    rule = next(rule.value for rule in family.layer_rules if rule.key == "layer_types")
    given = config.per_layer("layer_types", layers, (SLIDING_ATTENTION, FULL_ATTENTION))
    types = given or [config.evaluate(rule, layer=layer) for layer in range(layers)]
    return {_WINDOW: config.count("sliding_window"), _PERIOD: [each == SLIDING_ATTENTION for each in types]}


def _full_attention_period(usual: int, config: Config) -> int:
    """Return n if every n-th layer has full attention; 1 if all have."""
    layers = config.count("num_hidden_layers")
    layer_types = config.per_layer("layer_types", layers, (SLIDING_ATTENTION, FULL_ATTENTION))
    if layer_types is None:
        return int(config.get("sliding_window_pattern") or usual)
    is_full = [layer_type == FULL_ATTENTION for layer_type in layer_types]
    candidates: tuple[int, ...] = (usual, *range(1, layers + 2))
    for candidate in candidates:
        if is_full == [(layer + 1) % candidate == 0 for layer in range(layers)]:
            return candidate
    raise UsageError(
        f"{config.where}: 'layer_types' mixes full and sliding attention irregularly; "
        "llama.cpp only supports full attention in every n-th layer"
    )


# -- to a config -------------------------------------------------------------------------------------------------------


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
    counts = {end: key for end, key in _COUNTS.items() if end not in gguf.without}
    config |= {key: values.count(prefix + end, at_most=most.get(end, MOST)) for end, key in counts.items()}
    others = {"attention.key_length": "head_dim", _WINDOW: "sliding_window", **{key: key for key in _SOFTCAPS}}
    others |= {"expert_count": family.expert_count or "num_experts", "expert_used_count": "num_experts_per_tok"}
    others |= {end: key for end, key in _EXPERT_SIZES.items() if key in family.defaults}
    for name, key in {prefix + end: key for end, key in others.items()}.items():
        if name in metadata:
            is_real = key in _SOFTCAPS
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
    norm = _norm(family)
    is_read = norm.epsilon in gguf.keys.values() or _EPSILONS[norm.function] in gguf.without
    if norm.epsilon.isidentifier() and not is_read:
        config[norm.epsilon] = plain_float(values.number(prefix + _EPSILONS[norm.function], default=1e-6))
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
    if family.prediction_key and _PREDICTING in given:
        count = values.count(prefix + _PREDICTING, at_least=0)
        result[family.prediction_key] = count
        result[family.layers_key] = values.count(prefix + "block_count") - count
    return result


def _uniform(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the key-values of an architecture; a list with equal values for all layers becomes one number."""

    def plain(key: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not value.size or key.endswith((_PERIOD, _SECTIONS)):
            return value
        return value[0].item() if (value == value[0]).all() else value

    return {key: plain(key, metadata[key]) for key in metadata if key.startswith(prefix)}


def _layer_types(gguf: Gguf, values: Config, config: Mapping[str, Any]) -> list[str]:
    """Return which layers have a sliding window: all but every n-th, or those that a list marks."""
    layers, key = config["num_hidden_layers"], f"{gguf.name}.{_PERIOD}"
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
    logs = values.get(prefix.removesuffix("rope.") + _YARN_LOG_MULTIPLIER)
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
        given_sections = values.get(f"{gguf.name}.{_SECTIONS}")
        if not isinstance(given_sections, np.ndarray):
            raise values.wrong(f"'{gguf.name}.{_SECTIONS}' is {given_sections!r:.60}; expected a list")
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


def main_type(tensors: Sequence[PlannedTensor]) -> str:
    """Return the type that most elements of matrices have.

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
