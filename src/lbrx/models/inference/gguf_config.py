"""The spec of a model from the metadata of its GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.models.inference.spec import (
    FAMILIES,
    GGUF_ARCHITECTURES,
    DecoderFamily,
    ExpertSpec,
    LayerSpec,
    ModelSpec,
    windowed_layers,
)
from lbrx.models.inference.values import CheckedValues
from lbrx.tensors.rope import RopeConfig

_LOCAL_THETA = 10_000.0  # of Gemma 3's windowed layers
_SCALING_TYPES = ("linear", "yarn")


def spec_of_metadata(metadata: Mapping[str, Any], where: str, vocabulary: int | None = None) -> ModelSpec:
    """The spec that the key-values of a GGUF file describe; ``vocabulary`` is the number of rows of the embedding.

    >>> keys = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 96, "context_length": 512}
    >>> metadata = {f"llama.{key}": value for key, value in keys.items()}
    >>> metadata |= {"general.architecture": "llama", "llama.attention.head_count": 4}
    >>> spec = spec_of_metadata(metadata, "a.gguf", vocabulary=128)
    >>> spec.head_dim, spec.rope_style
    (16, 'interleaved')
    """
    architecture = metadata.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise UsageError(f"{where}: models of architecture {architecture!r} cannot be run; expected one of {known}")
    family = FAMILIES[architecture]
    prefix = f"{architecture}."
    values = CheckedValues(
        where, {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    )
    hidden, heads = values.count("embedding_length"), values.count("attention.head_count")
    head_dim = values.count("attention.key_length", max(hidden // heads, 1))
    if values.count("attention.value_length", head_dim) != head_dim:
        raise UsageError(f"{where}: keys and values have heads of different sizes; expected {head_dim} for both")
    kv_heads = values.count("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(f"{where}: {heads} heads cannot share {kv_heads} heads of keys; expected a divisor")
    layers = values.count("block_count")
    scaled_by = hidden // heads if layers == family.wide_scale_layers else head_dim
    return ModelSpec(
        family=family,
        hidden=hidden,
        intermediate=values.count("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary or values.count("vocab_size"),
        context_length=values.count("context_length", 1 << 17),
        norm_epsilon=values.number("attention.layer_norm_rms_epsilon", 1e-6),
        attention_scale=float(scaled_by) ** -0.5,
        layers=_layers(values, family, head_dim, layers),
        rope_style="interleaved" if family.permuted_in_gguf else "neox",
        norm_adds_one=False,  # the files have the one added already
        has_qkv_bias=family.query_key_value_bias,
        has_output_bias=False,
        has_mlp_bias=False,
        is_tied=None,
        attention_softcap=values.optional_number("attn_logit_softcapping"),
        final_softcap=values.optional_number("final_logit_softcapping"),
        experts=_experts(values),
    )


def _experts(values: CheckedValues) -> ExpertSpec | None:
    if not values.entries.get("expert_count"):
        return None
    count, used = values.count("expert_count"), values.count("expert_used_count")
    if used > count:
        raise FormatError(f"{values.where}: {used} experts of {count} are used for a token; expected at most {count}")
    return ExpertSpec(count, used)


def _layers(values: CheckedValues, family: DecoderFamily, head_dim: int, count: int) -> tuple[LayerSpec, ...]:
    plain = RopeConfig(values.number("rope.freq_base", 10_000.0), values.count("rope.dimension_count", head_dim))
    full = _scaled(plain, values)
    local = full
    if family.name == "gemma3":
        local = replace(plain, theta=values.number("rope.freq_base_swa", _LOCAL_THETA))
    width = values.entries.get("attention.sliding_window") or None
    if width is None:
        return (LayerSpec(None, full),) * count
    window = values.count("attention.sliding_window")
    windowed = _windowed(values, family, count)
    return tuple(LayerSpec(window, local) if is_local else LayerSpec(None, full) for is_local in windowed)


def _windowed(values: CheckedValues, family: DecoderFamily, count: int) -> tuple[bool, ...]:
    listed = values.entries.get("attention.sliding_window_pattern")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        if len(listed) != count:
            raise FormatError(
                f"{values.where}: 'attention.sliding_window_pattern' has {len(listed)} values; "
                f"expected one for each of {count} layers"
            )
        return tuple(bool(value) for value in listed)
    if listed is not None:
        pattern = values.count("attention.sliding_window_pattern")
        return tuple(bool((layer + 1) % pattern) for layer in range(count))
    return windowed_layers("every" if family.windows == "none" else family.windows, count, count)


def _scaled(plain: RopeConfig, values: CheckedValues) -> RopeConfig:
    scaling_type = values.text("rope.scaling.type", "none")
    if scaling_type == "none":
        return plain
    if scaling_type not in _SCALING_TYPES:
        known = ", ".join(("none", *_SCALING_TYPES))
        raise UsageError(f"{values.where}: positions of type {scaling_type!r} are not known; expected one of {known}")
    return replace(
        plain,
        rope_type=scaling_type,
        factor=values.number("rope.scaling.factor"),
        original_context=values.count("rope.scaling.original_context_length", values.count("context_length", 8192)),
        beta_fast=values.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=values.number("rope.scaling.yarn_beta_slow", 1.0),
    )
