"""The spec of a model from its Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.models.architectures.rope import FULL_ATTENTION, SLIDING_ATTENTION, rope_section
from lbrx.models.architectures.scope import text_section
from lbrx.models.inference.spec import (
    FAMILIES,
    HF_MODEL_TYPES,
    Activation,
    DecoderFamily,
    ExpertSpec,
    LayerSpec,
    ModelSpec,
    windowed_layers,
)
from lbrx.models.inference.values import CheckedValues
from lbrx.tensors.rope import RopeConfig

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_tanh": "gelu",
}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_LOCAL_THETA = 10_000.0  # of Gemma 3's windowed layers


def spec_of_config(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """The spec that a config.json describes; ``where`` is the file for errors.

    >>> sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    >>> spec = spec_of_config({"model_type": "llama", "vocab_size": 128, **sizes})
    >>> spec.head_dim, len(spec.layers)
    (16, 2)
    """
    family = _family(config, where)
    values = CheckedValues(where, text_section(config))
    hidden, heads = values.count("hidden_size"), values.count("num_attention_heads")
    head_dim = values.count("head_dim", max(hidden // heads, 1))
    _check_activation(values, family)
    kv_heads = values.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise FormatError(f"{where}: {heads} heads cannot share {kv_heads} heads of keys; expected a divisor")
    has_bias = values.flag("attention_bias", family.query_key_value_bias)
    return ModelSpec(
        family=family,
        hidden=hidden,
        intermediate=values.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=values.count("vocab_size"),
        context_length=values.count("max_position_embeddings", 1 << 17),
        norm_epsilon=values.number("rms_norm_eps", 1e-6),
        attention_scale=values.number("query_pre_attn_scalar", head_dim) ** -0.5,
        layers=_layers(values, family, head_dim),
        rope_style="neox",
        norm_adds_one=family.norms_add_one,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias and not family.query_key_value_bias,
        has_mlp_bias=values.flag("mlp_bias", False),
        is_tied=_is_tied(config, values, family),
        attention_softcap=values.optional_number("attn_logit_softcapping"),
        final_softcap=values.optional_number("final_logit_softcapping"),
        experts=_experts(values, family),
    )


def _family(config: Mapping[str, Any], where: str) -> DecoderFamily:
    model_type = config.get("model_type")
    if model_type not in HF_MODEL_TYPES:
        known = ", ".join(sorted(HF_MODEL_TYPES))
        raise UsageError(f"{where}: models of type {model_type!r} cannot be run; expected one of {known}")
    return FAMILIES[HF_MODEL_TYPES[model_type]]


def _check_activation(values: CheckedValues, family: DecoderFamily) -> None:
    """Gemma's older configs have ``hidden_act``, which is not used, next to ``hidden_activation``."""
    key = "hidden_activation" if "hidden_activation" in values else "hidden_act"
    name = values.text(key, family.activation if family.activation == "silu" else "gelu_pytorch_tanh")
    if _ACTIVATIONS.get(name) != family.activation:
        expected = sorted(known for known, activation in _ACTIVATIONS.items() if activation == family.activation)
        raise UsageError(f"{values.where}: {key!r} is {name!r}; expected one of {', '.join(expected)}")


def _is_tied(config: Mapping[str, Any], values: CheckedValues, family: DecoderFamily) -> bool:
    outer = config.get("tie_word_embeddings")
    return values.flag("tie_word_embeddings", outer if isinstance(outer, bool) else family.tied_by_default)


def _experts(values: CheckedValues, family: DecoderFamily) -> ExpertSpec | None:
    if family.name != "mixtral":
        return None
    count, used = values.count("num_local_experts", 8), values.count("num_experts_per_tok", 2)
    if used > count:
        raise FormatError(f"{values.where}: {used} experts of {count} are used for a token; expected at most {count}")
    return ExpertSpec(count, used)


# -- layers: windows and positions -------------------------------------------------------------------------------------


def _layers(values: CheckedValues, family: DecoderFamily, head_dim: int) -> tuple[LayerSpec, ...]:
    count = values.count("num_hidden_layers")
    width = _window(values, family)
    windowed = _windowed(values, family, count) if width is not None else (False,) * count
    full, sliding = _rope(values, family, head_dim, FULL_ATTENTION), _rope(values, family, head_dim, SLIDING_ATTENTION)
    return tuple(LayerSpec(width, sliding) if local else LayerSpec(None, full) for local in windowed)


def _window(values: CheckedValues, family: DecoderFamily) -> int | None:
    if family.windows == "none" or not values.flag("use_sliding_window", family.windows != "upper"):
        return None
    if "sliding_window" in values.entries:  # null switches it off
        return values.optional_count("sliding_window")
    return family.default_window


def _windowed(values: CheckedValues, family: DecoderFamily, count: int) -> tuple[bool, ...]:
    listed = values.entries.get("layer_types")
    if listed is None:
        pattern = values.optional_count("sliding_window_pattern")
        if pattern is not None and family.windows == "five_of_six":
            return tuple(bool((layer + 1) % pattern) for layer in range(count))
        return windowed_layers(family.windows, count, values.count("max_window_layers", count))
    if (
        not isinstance(listed, Sequence)
        or len(listed) != count
        or not set(listed) <= {SLIDING_ATTENTION, FULL_ATTENTION}
    ):
        raise FormatError(
            f"{values.where}: 'layer_types' is {listed!r}; "
            f"expected {SLIDING_ATTENTION!r} or {FULL_ATTENTION!r} for each of {count} layers"
        )
    return tuple(layer_type == SLIDING_ATTENTION for layer_type in listed)


def _rope(values: CheckedValues, family: DecoderFamily, head_dim: int, layer_type: str) -> RopeConfig:
    """The rotation in layers of one type."""
    defaults = {"rope_theta": family.default_rope_theta}
    if family.name == "gemma3":
        defaults["rope_local_base_freq"] = _LOCAL_THETA
    config = defaults | {key: value for key, value in values.entries.items() if value is not None}
    where, section = rope_section(config, values.where, layer_type)
    rope, scaling = CheckedValues(values.where, section), CheckedValues(where, section)
    theta, dims = rope.number("rope_theta"), int(head_dim * rope.number("partial_rotary_factor", 1.0))
    rope_type = scaling.text("rope_type")
    if rope_type not in _ROPE_TYPES:
        known = ", ".join(_ROPE_TYPES)
        raise UsageError(f"{where}: positions of type {rope_type!r} are not known; expected one of {known}")
    if rope_type == "default":
        return RopeConfig(theta, dims)
    context = values.count("max_position_embeddings", 8192)
    return RopeConfig(
        theta,
        dims,
        rope_type,
        factor=scaling.number("factor"),
        original_context=scaling.count("original_max_position_embeddings", context),
        low_frequency_factor=scaling.number("low_freq_factor", 1.0),
        high_frequency_factor=scaling.number("high_freq_factor", 4.0),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        attention_factor=scaling.optional_number("attention_factor"),
    )
