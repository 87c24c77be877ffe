"""The sizes and options of a model for inference, read from its config before any weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, UsageError
from lbrx.models.architectures.config import Config, Values
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Alibi, Decoder, Norm, PerLayer, Rope
from lbrx.models.architectures.rope import FULL_ATTENTION, SLIDING_ATTENTION
from lbrx.models.architectures.table import all_families, family_of_model_type
from lbrx.models.inference.parts import Memory, code_of
from lbrx.models.inference.rotations import rope_of_layer
from lbrx.tensors.rope import RopeConfig, RopeStyle
from lbrx.tensors.shape import Shape

_WINDOW_TYPES = {SLIDING_ATTENTION, FULL_ATTENTION}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A layer: its parts, its attention window (None: no limit), its positions, and what it remembers."""

    number: int
    layer_type: str
    mixer: Any | None
    mlp: Any | None
    window: int | None
    rope: RopeConfig | None
    rope_style: RopeStyle
    alibi: Alibi | None
    memory: Memory

    @property
    def local(self) -> dict[str, Any]:
        """The names that expressions may use besides those of the config."""
        return {"layer": self.number, "layer_type": self.layer_type}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model for inference: its family, its config, and the values read from both."""

    family: Family
    decoder: Decoder
    config: Config = field(repr=False)  # the relevant values are in other fields
    is_gguf: bool  # whether weights have GGUF names and values
    hidden: int
    vocabulary: int
    context_length: int
    norm: Norm
    norm_epsilon: float
    norm_adds_one: bool
    layers: tuple[LayerSpec, ...]
    is_tied: bool
    is_parallel: bool
    shares_norm: bool
    embedding_scale: float | None
    residual_scale: float | None
    logit_scale: float | None
    final_softcap: float | None


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
    >>> spec.layers[1].memory.keys
    (4, 16, 16)
    """
    family = family_to_run(values, where)
    assert family.decoder is not None
    decoder, config = family.decoder, family.whole_config(values, names, where, FormatError)
    for condition in decoder.requires:
        if not config.evaluate(condition):
            raise UsageError(f"{where}: the model cannot be run; expected a config with {condition!r}")
    norm: Norm = chosen(decoder.norm, config, {})
    config.flag("tie_word_embeddings", default=False)

    def optional(expression: str | None) -> float | None:
        return None if expression is None else config.real(expression)

    return ModelSpec(
        family=family,
        decoder=decoder,
        config=config,
        is_gguf=is_gguf,
        hidden=config.count("hidden_size"),
        vocabulary=config.count("vocab_size"),
        context_length=config.count("max_position_embeddings"),
        norm=norm,
        norm_epsilon=config.real(norm.epsilon),
        norm_adds_one=norm.adds_one and not is_gguf,  # GGUF weights include the one
        layers=_layers(config, family, decoder, is_gguf),
        is_tied=family.is_tied(values),
        is_parallel=bool(config.evaluate(decoder.is_parallel)),
        shares_norm=bool(config.evaluate(decoder.shares_norm)),
        embedding_scale=optional(decoder.embedding_scale),
        residual_scale=optional(decoder.residual_scale),
        logit_scale=optional(decoder.logit_scale),
        final_softcap=optional(None if config.get("final_logit_softcapping") is None else "final_logit_softcapping"),
    )


# -- layers: parts, windows and positions ------------------------------------------------------------------------------


def _layers(config: Config, family: Family, decoder: Decoder, is_gguf: bool) -> tuple[LayerSpec, ...]:
    query = family.by_gguf_name.get("attn_q.weight")
    is_paired = is_gguf and query is not None and query.paired_by is not None
    types, width = _layer_types(config, family, decoder)
    layers = []
    for number, layer_type in enumerate(types):
        local = {"layer": number, "layer_type": layer_type}
        positions = chosen(decoder.positions, config, local)
        rope = positions if isinstance(positions, Rope) and config.evaluate(positions.when, **local) else None
        mixer, mlp = (chosen(part, config, local) for part in (decoder.mixer, decoder.mlp))
        alibi = positions if isinstance(positions, Alibi) else None
        layers.append(
            LayerSpec(
                number=number,
                layer_type=layer_type,
                mixer=mixer,
                mlp=mlp,
                window=width if layer_type == SLIDING_ATTENTION else None,
                rope=None if rope is None else rope_of_layer(config, rope, local),
                rope_style="interleaved" if is_paired or rope is None else rope.style,
                alibi=alibi,
                memory=_memory(config, mixer, mlp, {**local, "has_alibi": alibi is not None}),
            )
        )
    return tuple(layers)


def chosen(part: Any, config: Config, local: dict[str, Any]) -> Any:
    """Return the part of a layer, which `PerLayer` may select."""
    if not isinstance(part, PerLayer):
        return part
    value = config.evaluate(part.select, **local)
    if not isinstance(value, str | int) or value not in part.parts:
        known = ", ".join(map(repr, part.parts))
        raise config.wrong(f"{part.select!r} is {value!r:.60}; expected one of {known}")
    return part.parts[value]


def _memory(config: Config, mixer: Any, mlp: Any, local: dict[str, Any]) -> Memory:
    keys: tuple[int, int, int] | None = None
    states: list[tuple[str, Shape]] = []
    for part in (mixer, mlp):
        if part is not None:
            memory = code_of(part).memory(part, config, local)
            keys = memory.keys or keys
            states += memory.states
    return Memory(keys, tuple(states))


def _layer_types(config: Config, family: Family, decoder: Decoder) -> tuple[Sequence[str], int | None]:
    """Return the type of every layer, and the width of windows."""
    count = config.count(family.layers_key, at_least=0)
    rule = next((rule.value for rule in family.layer_rules if rule.key == "layer_types"), None)
    width = None
    if rule is not None and config.flag("use_sliding_window", default=True) and config.get("sliding_window"):
        width = config.count("sliding_window")
    has_types = rule is not None and (width is not None or set(decoder.layer_types) - _WINDOW_TYPES)
    if not has_types:
        return [FULL_ATTENTION] * count, width
    listed = config.per_layer("layer_types", count, decoder.layer_types)
    return listed or [config.evaluate(str(rule), layer=layer) for layer in range(count)], width
