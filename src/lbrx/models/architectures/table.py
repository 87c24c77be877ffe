"""Which architecture a config.json names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lbrx.errors import UsageError, nearest
from lbrx.models.architectures.architecture import Architecture, Naming, Weight
from lbrx.models.architectures.decoders import (
    GEMMA,
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    PHI3,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    STABLELM,
)
from lbrx.models.architectures.early import FALCON, GPT2, GPT_NEOX
from lbrx.models.architectures.scope import Config, text_section
from lbrx.models.architectures.stacks import (
    Part,
    Stack,
    find_stacks,
    is_vocabulary_name,
    layer_number,
    main_stack,
    part_by_name,
)

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        LLAMA,
        MISTRAL,
        MIXTRAL,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        GEMMA,
        GEMMA2,
        GEMMA3,
        PHI3,
        GPT2,
        GPT_NEOX,
        STABLELM,
        FALCON,
    )
}

_BY_CLASS = {name: architecture for architecture in ARCHITECTURES.values() for name in architecture.class_names}
_BY_MODEL_TYPE = {name: architecture for architecture in ARCHITECTURES.values() for name in architecture.model_types}


def known_architecture(config: Config) -> Architecture | None:
    """The architecture that a config names, or None if it is not in the table.

    The class counts first, then the model type, then those of the language model in a multi-modal config.

    >>> known_architecture({"architectures": ["MistralForCausalLM"]}).name
    'mistral'
    >>> known_architecture({"model_type": "unheard-of"}) is None
    True
    """
    for section in (config, text_section(config)):
        classes = section.get("architectures") or [""]
        architecture = _BY_CLASS.get(classes[0]) or _BY_MODEL_TYPE.get(section.get("model_type", ""))
        if architecture is not None:
            return architecture
    return None


def find_architecture(config: Config) -> Architecture:
    """The architecture that a config.json names.

    >>> find_architecture({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}).name
    'qwen2'
    """
    architecture = known_architecture(config)
    if architecture is not None:
        return architecture
    classes, model_type = config.get("architectures"), config.get("model_type")
    hint = nearest(str(model_type), ARCHITECTURES)
    raise UsageError(
        f"config.json: unknown architecture (architectures: {classes!r}, model_type: {model_type!r}); "
        f"expected one of {', '.join(ARCHITECTURES)}{hint}; "
        "the automatic mode merges any models whose tensors have equal names"
    )


AUTOMATIC = "automatic"


def automatic(names: Iterable[str]) -> Architecture:
    """An architecture whose tensors are exactly those named.

    The layers are those of the language model: a numbered stack without gaps, outside of vision and audio
    towers. The towers' layers are not renumbered; their tensors stand in modules of their own. Tensors that
    not every layer has are optional. Shapes are not known.

    >>> model = automatic(["tok.weight", "blocks.0.w", "blocks.1.w", "head.weight"])
    >>> [(role.name, role.part, role.layer) for role in model.tensors({})]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('tok.weight', 'pre', None), ('blocks.0.w', 'layer', 0), ('blocks.1.w', 'layer', 1),
     ('head.weight', 'post', None)]
    """
    unique = sorted(set(names))
    stack = main_stack(find_stacks(unique)) or Stack("", 0, 0)
    outside: dict[Part, list[Weight]] = {"pre": [], "post": []}
    layer_templates: Counter[str] = Counter()
    for name in unique:
        number = layer_number(name, stack.prefix)
        if number is not None:
            layer_templates[f"{stack.prefix}{{layer}}{name[len(stack.prefix) + len(str(number)) :]}"] += 1
        else:
            weight = Weight(name, is_vocabulary=is_vocabulary_name(name, stack.container))
            outside[part_by_name(name, stack.container)].append(weight)
    return Architecture(
        name=AUTOMATIC,
        model_types=(),
        class_names=(),
        pre=tuple(outside["pre"]),
        layer=tuple(
            Weight(template, optional=count < stack.layer_count) for template, count in layer_templates.items()
        ),
        post=tuple(outside["post"]),
        layer_prefix=f"{stack.prefix}{{layer}}." if stack.prefix else "",
        namings=(Naming(f"{stack.container}." if stack.container else ""),),
        inferred_layer_count=stack.layer_count,
    )
