"""The sizes and options of a model for inference, read from its config before any weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, UsageError
from lbrx.models.architectures.config import Config, Values
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Activation, Decoder
from lbrx.models.architectures.rope import FULL_ATTENTION, SLIDING_ATTENTION, rope_section
from lbrx.models.architectures.table import all_families, family_of_model_type
from lbrx.tensors.rope import RopeConfig, RopeStyle

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_tanh": "gelu",
}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs between layers: the attention window (None: no limit), and the positions."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model for inference: its family, its config, and the values read from both."""

    family: Family
    decoder: Decoder
    config: Config = field(repr=False)  # the relevant values are in other fields
    is_gguf: bool  # whether weights have GGUF names and values
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_length: int
    norm_epsilon: float
    attention_scale: float
    layers: tuple[LayerSpec, ...]
    rope_style: RopeStyle
    norm_adds_one: bool
    is_tied: bool
    attention_softcap: float | None
    final_softcap: float | None
    experts_used: int  # per token; 0 without experts

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim


def family_to_run(config: Values, where: str) -> Family:
    """Return the family that a config.json names, if it can be run.

    >>> family_to_run({"model_type": "gemma3_text"}, "config.json").name
    'gemma3'
    """
    family = family_of_model_type(config)
    if family is not None and family.decoder is not None:
        return family
    known = sorted(name for family in all_families() if family.decoder is not None for name in family.model_types)
    raise UsageError(
        f"{where}: models of type {config.get('model_type')!r} cannot be run; expected one of {', '.join(known)}"
    )


def spec_of_config(
    values: Values, where: str = "config.json", names: Collection[str] = (), *, is_gguf: bool = False
) -> ModelSpec:
    """Return the spec that a config.json describes; ``where`` is the file for errors, ``names`` are its tensors.

    >>> sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    >>> spec = spec_of_config({"model_type": "llama", "vocab_size": 128, **sizes})
    >>> spec.head_dim, len(spec.layers)
    (16, 2)
    """
    family = family_to_run(values, where)
    assert family.decoder is not None
    decoder, config = family.decoder, family.whole_config(values, names, where, FormatError)
    heads, kv_heads, head_dim = (
        config.count(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if heads % kv_heads:
        raise FormatError(f"{where}: {heads} heads cannot share {kv_heads} heads of keys; expected a divisor")
    _check_activation(config, decoder.mlp.activation)
    config.flag("tie_word_embeddings", default=False)
    query = family.by_gguf_name.get("attn_q.weight")
    is_paired = is_gguf and query is not None and query.paired_by is not None
    return ModelSpec(
        family=family,
        decoder=decoder,
        config=config,
        is_gguf=is_gguf,
        hidden=config.count("hidden_size"),
        intermediate=config.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=config.count("vocab_size"),
        context_length=config.count("max_position_embeddings"),
        norm_epsilon=config.number("rms_norm_eps"),
        attention_scale=config.number("query_pre_attn_scalar", default=head_dim) ** -0.5,
        layers=_layers(config, family, head_dim),
        rope_style="interleaved" if is_paired else decoder.rope,
        norm_adds_one=decoder.norm.adds_one and not is_gguf,  # GGUF weights include the one
        is_tied=family.is_tied(values),
        attention_softcap=_optional_number(config, "attn_logit_softcapping"),
        final_softcap=_optional_number(config, "final_logit_softcapping"),
        experts_used=0 if family.expert_count is None else _experts_used(config, family.expert_count),
    )


def _optional_number(config: Config, key: str) -> float | None:
    return None if config.get(key) is None else config.number(key)


def _check_activation(config: Config, activation: Activation) -> None:
    """Return the activation. Older configs of Gemma have an unused ``hidden_act`` next to ``hidden_activation``."""
    key = "hidden_act" if config.get("hidden_activation") is None else "hidden_activation"
    known = sorted(name for name, meaning in _ACTIVATIONS.items() if meaning == activation)
    name = config.text(key, known[0])
    if name not in known:
        raise UsageError(f"{config.where}: {key!r} is {name!r}; expected one of {', '.join(known)}")


def _experts_used(config: Config, count_key: str) -> int:
    count, used = config.count(count_key), config.count("num_experts_per_tok")
    if used > count:
        raise FormatError(f"{config.where}: {used} experts of {count} are used for a token; expected at most {count}")
    return used


# -- layers: windows and positions -------------------------------------------------------------------------------------


def _layers(config: Config, family: Family, head_dim: int) -> tuple[LayerSpec, ...]:
    count = config.count("num_hidden_layers", at_least=0)
    rule = next((rule.value for rule in family.layer_rules if rule.key == "layer_types"), None)
    width = None
    if rule is not None and config.flag("use_sliding_window", default=True) and config.get("sliding_window"):
        width = config.count("sliding_window")
    types: Sequence[str] = [FULL_ATTENTION] * count
    if rule is not None and width is not None:
        listed = config.per_layer("layer_types", count, (SLIDING_ATTENTION, FULL_ATTENTION))
        types = listed or [config.evaluate(rule, layer=layer) for layer in range(count)]
    ropes = {each: _rope(config, head_dim, each) for each in (FULL_ATTENTION, SLIDING_ATTENTION)}
    return tuple(LayerSpec(None if each == FULL_ATTENTION else width, ropes[each]) for each in types)


def _rope(config: Config, head_dim: int, layer_type: str) -> RopeConfig:
    """Return the rotary embedding of layers of one type."""
    rope = rope_section(config, layer_type)
    theta, dims = rope.number("rope_theta"), int(head_dim * rope.number("partial_rotary_factor", default=1.0))
    rope_type = rope.get("rope_type")
    if rope_type not in _ROPE_TYPES:
        known = ", ".join(_ROPE_TYPES)
        raise UsageError(f"{rope.where}: positions of type {rope_type!r} are not known; expected one of {known}")
    if rope_type == "default":
        return RopeConfig(theta, dims)
    context = config.count("max_position_embeddings")
    return RopeConfig(
        theta,
        dims,
        rope_type,
        factor=rope.number("factor"),
        original_context=int(rope.number("original_max_position_embeddings", default=context)),
        low_frequency_factor=rope.number("low_freq_factor", default=1.0),
        high_frequency_factor=rope.number("high_freq_factor", default=4.0),
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        attention_factor=_optional_number(rope, "attention_factor"),
    )
