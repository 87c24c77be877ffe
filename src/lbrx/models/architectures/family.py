"""The record of a model family, and the code that matches the tensors of a checkpoint with it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import LbrxError, UsageError
from lbrx.models.architectures.config import MOST, Config, Values, first_class, text_section
from lbrx.models.architectures.layer_settings import LAYER_SETTINGS, shared_settings, with_shared_settings
from lbrx.models.architectures.records import Decoder, Gguf, Joined, LayerRule, Naming, TensorRole, Weight
from lbrx.models.architectures.stacks import (
    Part,
    find_stacks,
    layer_number,
    module_of,
    part_by_name,
    projector_modules,
    side_modules,
)

_PART_ORDER = {"pre": 0, "layer": 1, "post": 2}
_NUMBER = re.compile(r"\.(\d+)\.")
_FEW = 1000  # layers or experts
_CLASSES_WITH_HEAD = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel", "ForConditionalGeneration")


SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Text-only, then the language model inside of multi-modal checkpoints (old and new), then without a head.
NAMINGS = (
    Naming("model."),
    Naming("language_model.model.", "language_model."),
    Naming("model.language_model."),
    Naming("model.text_model."),
    Naming(""),
)


@dataclass(frozen=True, eq=False)
class Family:
    """Everything known about a family of models, as data.

    >>> from lbrx.models.architectures import find_family
    >>> config = {"model_type": "gpt2", "n_layer": 8}
    >>> gpt2 = find_family(config)
    >>> gpt2.rename_layer("h.3.attn.c_attn.weight", 3, 7)
    'h.7.attn.c_attn.weight'
    >>> [role.name for role in gpt2.tensors(config)][:2]
    ['transformer.wte.weight', 'transformer.wpe.weight']
    """

    name: str
    model_types: tuple[str, ...]  # the first one is the text-only model
    class_names: tuple[str, ...]  # the first one is the text-only model
    pre: tuple[Weight, ...]  # before the layers
    layer: tuple[Weight, ...]
    post: tuple[Weight, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # for keys that a config omits
    omitted_sizes: tuple[str, ...] = ()  # the keys of SIZES that configs omit
    keys: Mapping[str, str] = field(default_factory=dict)  # what configs call a usual key
    tied_by_default: bool = False  # the default of tie_word_embeddings
    layer_prefix: str = "{base}layers.{layer}."  # empty: there are no layers
    layers_key: str = "num_hidden_layers"
    namings: tuple[Naming, ...] = NAMINGS
    layer_rules: tuple[LayerRule, ...] = ()
    gguf: Gguf | None = None  # None: cannot be converted
    decoder: Decoder | None = None  # None: cannot be run
    joined: tuple[Joined, ...] = ()  # tensors of layers that contain several weights
    prediction: tuple[Weight, ...] = ()  # more weights of the layers after the others, which predict further tokens
    prediction_key: str = ""  # the config key for their number
    prediction_names: Mapping[str, str] = field(default_factory=dict)  # modules of ``mtp`` and their names in layers
    has_mlx_forms: bool = False  # MLX has other values; see ``mlx_forms``
    needed_in_mlx: tuple[str, ...] = ()  # config keys without which mlx_lm does not load a model
    careful_in_mlx: tuple[str, ...] = ()  # ends of the names of layers that mlx_lm codes with 8 bits
    text_only: tuple[str, str] | None = None  # model type and class of its language model alone, if others
    variants: Mapping[str, str] = field(default_factory=dict)  # other families of the same type: conditions on configs
    layer_settings: Mapping[str, str] = field(default_factory=dict)  # usual keys of those in ``per_layer_config``
    layer_lists: tuple[str, ...] = ()  # keys with one entry per layer, which tell their number if layers_key is absent
    inferred_layer_count: int | None = None  # set when the layers were counted by their names
    prediction_layers: int = 0  # set when the layers after those were counted, too

    @property
    def model_type(self) -> str:
        """The model type of the text-only model."""
        return self.model_types[0] if self.text_only is None else self.text_only[0]

    @property
    def class_name(self) -> str:
        """The class of the text-only model."""
        return self.class_names[0] if self.text_only is None else self.text_only[1]

    @property
    def weights(self) -> tuple[Weight, ...]:
        return (*self.pre, *self.layer, *self.prediction, *self.post)

    @cached_property
    def by_gguf_name(self) -> dict[str, Weight]:
        """The weights by GGUF name; names in layers have no prefix."""
        return {name: weights[0] for name, weights in self.all_by_gguf_name.items()}

    @cached_property
    def all_by_gguf_name(self) -> dict[str, list[Weight]]:
        """All weights by GGUF name. The config needs at most one of several with the same name."""
        found: dict[str, list[Weight]] = {}
        for each in self.weights:
            if each.gguf is not None:
                found.setdefault(each.gguf.removeprefix("blk.{layer}."), []).append(each)
        return found

    @property
    def expert_count(self) -> str | None:
        """The config key for the number of experts per layer, or None."""
        stack = self.by_gguf_name.get("ffn_down_exps.weight")
        return None if stack is None else str(stack.items)

    def needs_by_default(self, weight: Weight) -> bool:
        """Return whether models of the family need a tensor by default."""
        is_needed = weight.needed_when is None or bool(self.config({}).evaluate(weight.needed_when, layer=0))
        return is_needed and not weight.optional

    def config(self, values: Values, where: str = "config.json", error_class: type[LbrxError] = UsageError) -> Config:
        """Return the values of a config.json with the defaults of the family."""
        class_name = first_class(values)
        has_head = not class_name or class_name.endswith(_CLASSES_WITH_HEAD)
        defaults = {**{own: usual for usual, own in self.keys.items()}, **self.defaults, "has_language_head": has_head}
        lists = (text_section(values).get(key) for key in self.layer_lists)
        listed = next((each for each in lists if isinstance(each, str | list | tuple)), None)
        if listed is not None:
            defaults[self.layers_key] = len(listed)
        return Config(with_shared_settings(values, self.layer_settings), defaults, where, error_class, self.keys)

    def whole_config(
        self, values: Values, names: Collection[str], where: str, error_class: type[LbrxError] = UsageError
    ) -> Config:
        """Return the config of a model that will be converted or run: all sizes must be present."""
        config = self.config(values, where, error_class)
        if shared_settings(values, self.layer_settings) is None:
            raise config.wrong(f"{LAYER_SETTINGS!r} has settings of single layers that are not known")
        config.demand(*(self.keys.get(key, key) for key in SIZES if key not in self.omitted_sizes))
        for key in (*SIZES, *([] if self.expert_count is None else [self.expert_count])):
            is_few = self.keys.get(key, key) in (self.layers_key, self.expert_count)
            config.count(key, at_most=most_items(names) if is_few else MOST)
        return config

    def layer_count(self, config: Values, names: Collection[str] = ()) -> int:
        """Return the number of layers of a model; more layers than tensors are an error.

        >>> from lbrx.models.architectures import find_family
        >>> find_family({"model_type": "gpt2"}).layer_count({"n_layer": 2})
        2
        """
        if self.inferred_layer_count is not None:
            return self.inferred_layer_count
        return self.config(config).count(self.layers_key, at_least=0, at_most=most_items(names))

    def prediction_count(self, config: Values, names: Collection[str]) -> int:
        """Return the number of layers that predict further tokens, after the others; 0 if a model has none of them.

        >>> from lbrx.models.architectures import find_family
        >>> config = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "num_nextn_predict_layers": 1}
        >>> find_family(config).prediction_count(config, ["model.layers.2.enorm.weight"])
        1
        """
        if not self.prediction_key or self.inferred_layer_count is not None:
            return self.prediction_layers
        if self.prediction_names:  # some configs do not tell
            layers = self.layer_count(config, names)
            return max((layer - layers + 1 for layer in map(self.layer_of, names) if layer is not None), default=0)
        values = self.config(config)
        if not values.get(self.prediction_key):
            return 0
        layers = self.layer_count(config, names)
        count = values.count(self.prediction_key, at_most=most_items(names))
        return count if any(layers <= (self.layer_of(name) or 0) < layers + count for name in names) else 0

    def is_tied(self, config: Values) -> bool:
        """Return whether the language head of a model is its embedding.

        >>> from lbrx.models.architectures import find_family
        >>> find_family({"model_type": "gemma2"}).is_tied({})
        True
        """
        # Transformers 4 asks the section of the language model, version 5 the whole config; neither updates the other.
        given = [section.get("tie_word_embeddings") for section in (config, text_section(config))]
        values = [bool(tied) for tied in given if tied is not None]
        return any(values) if values else self.tied_by_default

    def naming(self, names: Collection[str]) -> Naming:
        """Return the prefixes that a checkpoint uses: those of most tensors in layers.

        >>> from lbrx.models.architectures import find_family
        >>> find_family({"model_type": "gpt2"}).naming({"h.0.ln_1.weight", "wte.weight"})
        Naming(base='', head='')
        """

        def matches(naming: Naming) -> int:
            prefix = self._stack_prefix(naming)
            return sum(name.startswith(prefix) for name in names)

        return max(self.namings, key=matches)

    def layer_of(self, name: str) -> int | None:
        """Return the layer number in the name of a tensor; None outside the layers.

        >>> from lbrx.models.architectures import find_family
        >>> find_family({"model_type": "llama"}).layer_of("model.layers.3.mlp.up_proj.weight")
        3
        """
        numbers = (layer_number(name, self._stack_prefix(naming)) for naming in self.namings)
        return next((number for number in numbers if number is not None), None)

    def rename_layer(self, name: str, source_layer: int, target_layer: int) -> str:
        """Return the name of a tensor after its layer was moved."""
        for naming in self.namings:
            prefix = self._stack_prefix(naming)
            if layer_number(name, prefix) == source_layer:
                return f"{prefix}{target_layer}{name[len(prefix) + len(str(source_layer)) :]}"
        expected = self.namings[0].expand(self.layer_prefix, source_layer)
        raise UsageError(
            f"tensor {name!r} is not in layer {source_layer} of the architecture {self.name!r}; "
            f"expected a name that begins with {expected!r}"
        )

    def translate(self, name: str, naming: Naming) -> str:
        """Return the name of a tensor in a checkpoint with other prefixes; unknown names do not change.

        >>> from lbrx.models.architectures import find_family
        >>> find_family({"model_type": "gpt2"}).translate("h.0.ln_1.bias", Naming("transformer."))
        'transformer.h.0.ln_1.bias'
        """
        for own, templates in self._outside_templates.items():
            if layer_number(name, self._stack_prefix(own)) is not None:
                return naming.base + name[len(own.base) :]
            number = _NUMBER.search(name)
            item = None if number is None else int(number[1])
            template = templates.get(name) or templates.get(_NUMBER.sub(".{item}.", name, count=1))
            if template is not None:
                return naming.expand(template, None, item)
        return name

    @cached_property
    def _outside_templates(self) -> dict[Naming, dict[str, str]]:
        """For every naming, the templates of the tensors outside the layers, by name."""
        templates = [weight.name for weight in (*self.pre, *self.post)]
        return {naming: {naming.expand(template): template for template in templates} for naming in self.namings}

    def source_name(self, name: str, config: Values, names: Collection[str]) -> str | None:
        """Return the name of a tensor in a checkpoint, or None if it has no such tensor.

        That is the name itself, the name with other prefixes, or the other one of a tied embedding and head.

        >>> from lbrx.models.architectures import find_family
        >>> gemma = find_family({"model_type": "gemma"})
        >>> gemma.source_name("lm_head.weight", {}, {"model.embed_tokens.weight"})
        'model.embed_tokens.weight'
        """
        if name in names:
            return name
        candidates = [self.translate(name, naming) for naming in self.namings]
        if self.is_tied(config):
            candidates += self._tied_names(name)
        return next((candidate for candidate in candidates if candidate in names), None)

    def _tied_names(self, name: str) -> list[str]:
        """Return the names of the tensors that a tied head or embedding shares its values with, in every naming."""
        templates = {(weight.name, weight.tied_to) for weight in (*self.pre, *self.post) if weight.tied_to}
        pairs = templates | {(tied_to, head) for head, tied_to in templates}
        own = {naming.expand(template): twin for template, twin in pairs for naming in self.namings}
        return [naming.expand(own[name]) for naming in self.namings] if name in own else []

    def tensors(self, config: Values, names: Collection[str] = ()) -> list[TensorRole]:
        """Return the tensors of a checkpoint: before the layers, layer by layer, after the layers.

        The result contains all ``names``, known to the definition or not, and all tensors that the definition
        requires. Unknown tensors follow the known ones of their part or layer.
        """
        return list(_roles(self, json.dumps(config, sort_keys=True, default=dict), frozenset(names)))

    def _tensors(self, config: Values, present: frozenset[str]) -> list[TensorRole]:
        naming = self.naming(present)
        known = list(self._known_roles(config, present, naming))
        unknown = present - {role.name for role in known}
        roles = [role for role in known if role.name in present or not role.optional]
        roles += self._unknown_roles(config, unknown, present, naming)
        modules = (*projector_modules(present), *self._side_modules(present, naming))
        if modules:
            roles = [replace(role, module=module_of(role.name, modules)) for role in roles]
        return sorted(roles, key=lambda role: (_PART_ORDER[role.part], role.layer or 0))

    def unclaimed(self, config: Values, names: Collection[str]) -> list[TensorRole]:
        """Return the tensors of a checkpoint that the definition does not know, so that they can be copied.

        Tensors with the prefix of a layer belong to that layer. Others are placed before the layers, or after them if
        they are named like a norm or a head next to the layers.

        >>> from lbrx.models.architectures import find_family
        >>> config = {"model_type": "llama", "num_hidden_layers": 1}
        >>> [role.part for role in find_family(config).unclaimed(config, {"model.layers.0.adapter.a"})]
        ['layer']
        """
        return [role for role in self.tensors(config, names) if not role.is_known]

    def missing(self, config: Values, names: Collection[str]) -> list[str]:
        """Return the names of required tensors that the checkpoint does not have."""
        present = frozenset(names)
        needed = [role.name for role in self.tensors(config, present) if not role.optional]
        return [name for name in needed if self.source_name(name, config, present) is None]

    def expected_shapes(self, config: Values, names: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
        """Return the shapes that the definition and a config require, by name.

        >>> from lbrx.models.architectures import find_family
        >>> config = {"model_type": "gpt2", "n_embd": 8, "vocab_size": 64}
        >>> find_family(config).expected_shapes(config)["transformer.wte.weight"]
        (64, 8)
        """
        return {role.name: role.shape for role in self.tensors(config, names) if role.shape is not None}

    def vocabulary_rows(self, config: Values, names: Collection[str] = ()) -> tuple[str, ...]:
        """Return the tensors with one row per token: the embedding and the language head.

        >>> from lbrx.models.architectures import find_family
        >>> config = {"model_type": "llama"}
        >>> find_family(config).vocabulary_rows(config)
        ('model.embed_tokens.weight', 'lm_head.weight')
        """
        return tuple(role.name for role in self.tensors(config, names) if role.is_vocabulary)

    def _stack_prefix(self, naming: Naming) -> str:
        return naming.expand(self.layer_prefix.partition("{layer}")[0])

    def _side_modules(self, present: frozenset[str], naming: Naming) -> tuple[str, ...]:
        prefix = self._stack_prefix(naming)
        outside = [name for name in present if layer_number(name, prefix) is None]
        return side_modules(find_stacks(outside), naming.base.rstrip("."))

    def _known_roles(self, config: Values, present: frozenset[str], naming: Naming) -> Iterator[TensorRole]:
        """Yield a role for every tensor that the definition knows, present or not."""
        values = self.config(config)
        layers = self.layer_count(config, present)
        predicting = range(layers, layers + self.prediction_count(config, present) if self.prediction_key else layers)
        parts: tuple[tuple[Part, tuple[Weight, ...], Iterable[int | None]], ...] = (
            ("pre", self.pre, (None,)),
            ("layer", self.layer, range(layers)),
            ("layer", (*self.layer, *self.prediction) if predicting else (), predicting),
            ("post", self.post, (None,)),
        )
        for part, weights, numbers in parts:
            for weight in weights:
                differs = any("layer" in str(dimension) for dimension in weight.shape or ())
                shape = None if weight.shape is None or differs else values.shape(weight.shape)
                tied_to = naming.expand(weight.tied_to) if weight.tied_to and self.is_tied(config) else None
                items = _items(weight, values, most_items(present))
                for layer in numbers:
                    if differs and weight.shape is not None:
                        shape = values.shape(weight.shape, layer=layer)
                    is_needed = tied_to is None and layer not in predicting
                    is_needed = is_needed and _is_needed(weight, values, naming, present, layer)
                    for item in items:
                        yield TensorRole(
                            naming.expand(weight.name, layer, item),
                            part,
                            layer,
                            shape,
                            weight.shape,
                            optional=not is_needed,
                            is_buffer=weight.is_buffer,
                            tied_to=tied_to,
                            is_vocabulary=weight.is_vocabulary,
                        )

    def _unknown_roles(
        self, config: Values, unknown: Iterable[str], present: frozenset[str], naming: Naming
    ) -> Iterator[TensorRole]:
        prefix, container = self._stack_prefix(naming), naming.base.rstrip(".")
        layer_count = self.layer_count(config) + self.prediction_count(config, present)
        for name in sorted(unknown):
            layer = layer_number(name, prefix)
            part: Part = "layer"
            if layer is None or layer >= layer_count:
                part, layer = part_by_name(name, container), None
            yield TensorRole(name, part, layer, None, None, optional=True, is_known=False)


@lru_cache(maxsize=64)
def _roles(family: Family, config_text: str, present: frozenset[str]) -> tuple[TensorRole, ...]:
    """Cached, because every check of a model needs the roles of the same tensors."""
    return tuple(family._tensors(json.loads(config_text), present))


def most_items(names: Collection[str]) -> int:
    """Return the largest plausible number of layers or experts for a checkpoint."""
    return max(len(names), _FEW)


def _items(weight: Weight, config: Config, most: int) -> Sequence[int | None]:
    return (None,) if weight.items is None else range(config.size(weight.items, at_most=most))


def _is_needed(weight: Weight, config: Config, naming: Naming, present: frozenset[str], layer: int | None) -> bool:
    if weight.optional or weight.joined_in is not None:
        return False
    if any(naming.expand(other, layer, 0) in present for other in weight.replaced_by):
        return False
    return weight.needed_when is None or bool(config.evaluate(weight.needed_when, layer=layer))
