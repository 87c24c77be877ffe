"""The sizes and options of a model as GGUF metadata, made from its config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.config import MOST, Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_layers import list_metadata
from lbrx.models.architectures.records import Gguf, Norm
from lbrx.models.architectures.rope import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    longrope_attention_factor,
    rope_section,
    scaling_metadata,
)

# Suffix of the GGUF key, and the key in config.json.
COUNTS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}
_HEAD_SIZES = {"attention.key_length": "head_dim", "attention.value_length": "head_dim"}
WINDOW = "attention.sliding_window"
PERIOD = "attention.sliding_window_pattern"
SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
SECTIONS = "rope.dimension_sections"
EXPERT_SIZES = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
PREDICTING = "nextn_predict_layers"
YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
EPSILONS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}
_REAL_ENDS = ("scale", "clamp_kqv", "max_alibi_bias")  # of keys whose values are f32


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
    counts = {end: key for end, key in (COUNTS | _HEAD_SIZES).items() if end not in gguf.without}
    if gguf_of(family).is_encoder:
        return _encoder_metadata(family, config, rope)
    pairs: dict[str, Any] = {end: config.count(key) for end, key in counts.items()}
    pairs["context_length"] = config.size(gguf.context_length)
    norm = norm_of(family)
    pairs |= {EPSILONS[norm.function]: config.real(norm.epsilon), "vocab_size": config.count("vocab_size")}
    if family.defaults.get("rope_theta") is not None:
        pairs |= _rope_metadata(gguf, config, rope)
    pairs |= _window_metadata(family, config)
    pairs |= {key: config.number(key) for key in SOFTCAPS if key in family.defaults and config.get(key) is not None}
    if family.expert_count is not None:
        pairs["expert_count"] = config.count(family.expert_count)
        pairs["expert_used_count"] = config.count("num_experts_per_tok")
        sizes = {end: key for end, key in EXPERT_SIZES.items() if key in family.defaults}
        pairs |= {end: config.count(key) for end, key in sizes.items() if config.get(key) is not None}
    pairs = {key: value for key, value in pairs.items() if key not in gguf.without}
    further = _more_metadata(family, config)
    pairs |= {key: value for key, value in further.items() if key not in pairs or not isinstance(value, str)}
    multiplier = gguf.yarn_log_multiplier
    if multiplier is not None and rope.get("mscale_all_dim") is not None:
        pairs[YARN_LOG_MULTIPLIER] = multiplier * rope.number("mscale_all_dim")
    pairs |= list_metadata(gguf, config, rope, config.count(family.layers_key), prediction_count)
    if prediction_count:
        pairs |= {"block_count": pairs["block_count"] + prediction_count, PREDICTING: prediction_count}
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
        if name in COUNTS and isinstance(value, float):
            value = config.size(expression)
        is_real = isinstance(family.defaults.get(expression), float) or name.endswith(_REAL_ENDS)
        pairs[name] = float(value) if is_real and not isinstance(value, bool) else value
    return pairs


def stored_prediction_count(family: Family, metadata: Mapping[str, Any]) -> int:
    """Return how many of the layers of a GGUF file predict further tokens."""
    values = Config(metadata, where="the GGUF file", error_class=FormatError)
    key = f"{gguf_of(family).name}.{PREDICTING}"
    return values.count(key, at_least=0) if values.get(key) is not None else 0


def norm_of(family: Family) -> Norm:
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
        pairs[SECTIONS] = [*given, 0, 0, 0][:4]
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
        return {WINDOW: config.get("sliding_window") or 0}
    if gguf.full_attention_period is None:
        return {}
    period = _full_attention_period(gguf.full_attention_period, config)
    if period == 1:
        return {}
    pairs = {WINDOW: config.count("sliding_window")}
    return pairs if period == gguf.full_attention_period else {**pairs, PERIOD: period}


def _listed_windows(family: Family, config: Config) -> dict[str, Any]:
    if config.get("sliding_window") is None:
        return {}
    layers = config.count("num_hidden_layers")
    rule = next(rule.value for rule in family.layer_rules if rule.key == "layer_types")
    given = config.per_layer("layer_types", layers, (SLIDING_ATTENTION, FULL_ATTENTION))
    types = given or [config.evaluate(rule, layer=layer) for layer in range(layers)]
    return {WINDOW: config.count("sliding_window"), PERIOD: [each == SLIDING_ATTENTION for each in types]}


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
