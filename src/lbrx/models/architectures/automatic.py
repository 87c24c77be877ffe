"""An architecture inferred from tensor names alone, for models that are not in the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lbrx.models.architectures.architecture import Architecture
from lbrx.models.architectures.stacks import (
    Part,
    Stack,
    find_stacks,
    is_vocabulary_name,
    layer_number,
    main_stack,
    part_by_name,
)
from lbrx.models.architectures.weights import Naming, Weight

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
