"""Checks of headers and configs before any weight is read.

Every function returns a list of messages, empty if there are no problems, so that a caller can report all of them at
once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.config import Values
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.table import AUTOMATIC, known_family

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelHeader:
    """What is known about a model before its weights are read.

    >>> ModelHeader("a", {"model_type": "llama"}, {"model.norm.weight": (8,)}).label
    'a'
    """

    label: str  # how messages name the model
    config: Values
    shapes: Shapes


def check_names(architecture: Family, config: Values, names: Collection[str]) -> list[str]:
    """Return missing tensors, and tensors in layers beyond the layer count of the config.

    >>> from lbrx.models.architectures import find_family
    >>> config = {"model_type": "llama", "num_hidden_layers": 0, "tie_word_embeddings": True}
    >>> check_names(find_family(config), config, {"model.embed_tokens.weight"})
    ["tensor 'model.norm.weight' is missing; the architecture 'llama' needs it"]
    """
    problems = [
        f"tensor {name!r} is missing; the architecture {architecture.name!r} needs it"
        for name in architecture.missing(config, names)
    ]
    layer_count = architecture.layer_count(config)
    end = layer_count + architecture.prediction_count(config, names)
    for name in sorted(names):
        layer = architecture.layer_of(name)
        if layer is not None and layer >= end:
            problems.append(
                f"tensor {name!r} is in layer {layer}, but config.json says that there are {layer_count} layers"
            )
    return problems


def check_shapes(architecture: Family, config: Values, shapes: Shapes) -> list[str]:
    """Return tensors whose shapes differ from those that the architecture and the config require.

    >>> from lbrx.models.architectures import find_family
    >>> config = {"model_type": "llama", "num_hidden_layers": 0, "hidden_size": 8}
    >>> check_shapes(find_family(config), config, {"model.norm.weight": (9,)})
    ["tensor 'model.norm.weight' has shape (9,), expected (8,) from config.json's (hidden_size)"]
    """
    problems = []
    for role in architecture.tensors(config, shapes.keys()):
        shape = shapes.get(role.name)
        if shape is None or role.shape is None or role.dimensions is None or tuple(shape) == role.shape:
            continue
        formula = ", ".join(str(dimension) for dimension in role.dimensions)
        problems.append(
            f"tensor {role.name!r} has shape {tuple(shape)}, expected {role.shape} from config.json's ({formula})"
        )
    return problems


def check_models(architecture: Family, models: Sequence[ModelHeader]) -> list[str]:
    """Return the reasons why models cannot be merged tensor by tensor: architectures, names, shapes, vocabularies.

    The other models are compared with the first one.

    >>> from lbrx.models.architectures import automatic
    >>> a, b = ModelHeader("a", {}, {"w": (2,)}), ModelHeader("b", {}, {"w": (3,)})
    >>> check_models(automatic(["w"]), [a, b])
    ["tensor 'w' has shape (3,) in b, but (2,) in a"]
    """
    first, *others = models
    problems = []
    for other in others:
        problems += _architecture_problems(architecture, first, other)
        problems += _presence_problems(architecture, first, other)
        problems += _shape_problems(architecture, first, other)
    return problems


def _architecture_problems(architecture: Family, first: ModelHeader, other: ModelHeader) -> list[str]:
    if architecture.name == AUTOMATIC:
        return []
    other_architecture = known_family(other.config)
    if other_architecture is architecture:
        return []
    name = (
        repr(other_architecture.name)
        if other_architecture
        else f"unknown (model_type: {other.config.get('model_type')!r})"
    )
    return [f"the architecture of {other.label} is {name}, but that of {first.label} is {architecture.name!r}"]


def _presence_problems(architecture: Family, first: ModelHeader, other: ModelHeader) -> list[str]:
    problems = []
    for here, there in ((first, other), (other, first)):
        names = there.shapes.keys()
        for role in architecture.tensors(here.config, here.shapes.keys()):
            if role.is_buffer or role.name not in here.shapes:
                continue
            if architecture.source_name(role.name, there.config, names) is None:
                problems.append(f"tensor {role.name!r} is in {here.label}, but not in {there.label}")
    return problems


def _shape_problems(architecture: Family, first: ModelHeader, other: ModelHeader) -> list[str]:
    problems = []
    names = other.shapes.keys()
    vocabulary = set(architecture.vocabulary_rows(first.config, first.shapes.keys()))
    for name, shape in sorted(first.shapes.items()):
        source = architecture.source_name(name, other.config, names)
        if source is None or tuple(other.shapes[source]) == tuple(shape):
            continue
        other_shape = tuple(other.shapes[source])
        if name in vocabulary and other_shape[1:] == tuple(shape[1:]):
            problems.append(
                f"the vocabularies differ: {name!r} has {other_shape[0]} rows in {other.label}, "
                f"but {shape[0]} in {first.label}; name a tokenizer source to merge them by token"
            )
        else:
            problems.append(
                f"tensor {source!r} has shape {other_shape} in {other.label}, but {tuple(shape)} in {first.label}"
            )
    return problems
