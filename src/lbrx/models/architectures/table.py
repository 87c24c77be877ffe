"""Find the family of a config.json or a GGUF file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from lbrx.errors import UsageError, nearest
from lbrx.models.architectures.config import Config, Values, first_class, text_section
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Naming, Weight
from lbrx.models.architectures.stacks import (
    Part,
    Stack,
    find_stacks,
    is_vocabulary_name,
    layer_number,
    main_stack,
    part_by_name,
)
from lbrx.registry import FAMILIES, load


@cache
def load_family(name: str) -> Family:
    """Return the family with this name in the registry.

    >>> load_family("gemma3").model_types
    ('gemma3_text', 'gemma3')
    """
    family: Family = load(FAMILIES[name])
    return family


def all_families() -> Iterator[Family]:
    """Return every family, in the order of the registry."""
    return map(load_family, FAMILIES)


def _candidates(name: object) -> Iterator[Family]:
    """Yield the family with this name, then all others: those are imported only if it does not match."""
    if isinstance(name, str) and name in FAMILIES:
        yield load_family(name)
    yield from all_families()


def family_of_type(model_type: object) -> Family | None:
    """Return the family of a ``model_type``, or None."""
    return next((family for family in _candidates(model_type) if model_type in family.model_types), None)


def known_family(config: Values) -> Family | None:
    """Return the family that a config names, or None if it is unknown.

    The class takes precedence, then the model type, then those of the language model in a multi-modal config.

    >>> known_family({"architectures": ["MistralForCausalLM"]}).name
    'mistral'
    >>> known_family({"model_type": "unheard-of"}) is None
    True
    """
    for section in (config, text_section(config)):
        model_type = section.get("model_type", "")
        class_name = first_class(section)
        named = (family for family in _candidates(model_type) if class_name in family.class_names)
        family = next(named, None) or family_of_type(model_type)
        if family is not None:
            return _variant(family, config)
    return None


def find_family(config: Values) -> Family:
    """Return the family that a config.json names.

    >>> find_family({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}).name
    'qwen2'
    """
    family = known_family(config)
    if family is not None:
        return family
    classes, model_type = config.get("architectures"), config.get("model_type")
    hint = nearest(str(model_type), FAMILIES)
    raise UsageError(
        f"config.json: unknown architecture (architectures: {classes!r}, model_type: {model_type!r}); "
        f"expected one of {', '.join(FAMILIES)}{hint}; "
        "the automatic mode merges any models whose tensors have equal names"
    )


def family_of_model_type(config: Values) -> Family | None:
    """Return the family of the language model that a config describes, by ``model_type`` alone."""
    family = family_of_type(config.get("model_type")) or family_of_type(text_section(config).get("model_type"))
    return None if family is None else _variant(family, config)


def _variant(family: Family, config: Values) -> Family:
    """Return the family of the same type that a config describes."""
    values = family.config(config) if family.variants else None
    names = (name for name, when in family.variants.items() if values is not None and values.evaluate(when))
    name = next(names, None)
    return family if name is None else load_family(name)


_ABSENT = dict.fromkeys(
    (
        "expert_count",
        "expert_gating_func",
        "expert_shared_feed_forward_length",
        "attention_sliding_window",
        "attention_temperature_scale",
    ),
    0,
)


def family_of_gguf(metadata: Values) -> Family | None:
    """Return the family of a GGUF file. Mistral and Llama share an architecture there; the result is Llama for both.

    >>> family_of_gguf({"general.architecture": "llama", "llama.expert_count": 8}).model_type
    'mixtral'
    """
    name = metadata.get("general.architecture")
    is_mixture = bool(metadata.get(f"{name}.expert_count", 0))
    pairs = {key.removeprefix(f"{name}.").replace(".", "_"): metadata[key] for key in metadata if "." in key}
    for family in _candidates(name):
        if family.gguf is None or family.gguf.name != name or (family.expert_count is not None) != is_mixture:
            continue
        if Config(pairs, {**_ABSENT, **family.gguf.stored_defaults}).evaluate(family.gguf.when):
            return family
    return None


def gguf_names() -> tuple[str, ...]:
    """Return the GGUF names of the families that can be converted."""
    return tuple(dict.fromkeys(family.gguf.name for family in all_families() if family.gguf is not None))


AUTOMATIC = "automatic"


def automatic(names: Iterable[str], config: Values | None = None) -> Family:
    """A family whose tensors are exactly those named.

    The layers are those of the language model: a numbered stack without gaps, outside of vision and audio
    towers. The towers' layers are not renumbered; their tensors are in separate modules. Tensors that
    not every layer has are optional. Shapes are not known. Layers at the end that predict further tokens (MTP), of
    which ``config`` gives the number, do not count as layers.

    >>> model = automatic(["tok.weight", "blocks.0.w", "blocks.1.w", "head.weight"])
    >>> [(role.name, role.part, role.layer) for role in model.tensors({})]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('tok.weight', 'pre', None), ('blocks.0.w', 'layer', 0), ('blocks.1.w', 'layer', 1),
     ('head.weight', 'post', None)]
    """
    unique = sorted(set(names))
    stack = main_stack(find_stacks(unique)) or Stack("", 0, 0)
    prediction_layers = _prediction_layers(config or {}, stack.layer_count)
    layer_count = stack.layer_count - prediction_layers
    outside: dict[Part, list[Weight]] = {"pre": [], "post": []}
    layer_templates: Counter[str] = Counter()
    for name in unique:
        number = layer_number(name, stack.prefix)
        if number is not None and number >= layer_count:
            continue
        if number is not None:
            layer_templates[f"{stack.prefix}{{layer}}{name[len(stack.prefix) + len(str(number)) :]}"] += 1
        else:
            weight = Weight(name, is_vocabulary=is_vocabulary_name(name, stack.container))
            outside[part_by_name(name, stack.container)].append(weight)
    return Family(
        name=AUTOMATIC,
        model_types=(),
        class_names=(),
        pre=tuple(outside["pre"]),
        layer=tuple(Weight(template, optional=count < layer_count) for template, count in layer_templates.items()),
        post=tuple(outside["post"]),
        layer_prefix=f"{stack.prefix}{{layer}}." if stack.prefix else "",
        namings=(Naming(f"{stack.container}." if stack.container else ""),),
        inferred_layer_count=layer_count,
        prediction_layers=prediction_layers,
    )


def flat(names: Iterable[str]) -> Family:
    """A family whose tensors are exactly those named, without layers and modules.

    >>> [role.part for role in flat(["blocks.0.w", "blocks.1.w"]).tensors({})]
    ['pre', 'pre']
    """
    return Family(
        name=AUTOMATIC,
        model_types=(),
        class_names=(),
        pre=tuple(Weight(name) for name in names),
        layer=(),
        post=(),
        layer_prefix="",
        namings=(Naming(""),),
        inferred_layer_count=0,
    )


def _prediction_layers(config: Values, stack_size: int) -> int:
    """How many layers at the end of a stack are those that ``num_nextn_predict_layers`` counts."""
    section = text_section(config)
    layers, predicting = section.get("num_hidden_layers"), section.get("num_nextn_predict_layers")
    if not isinstance(layers, int) or not isinstance(predicting, int) or layers < 1:
        return 0
    extra = stack_size - layers
    return extra if 0 < extra <= predicting else 0
