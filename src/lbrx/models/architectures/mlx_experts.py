"""Names and stacks of weights in MLX, such as the experts of a mixture, which are separate tensors in Hugging Face.

The record of the family names the stacks, and other weights that have another name in MLX. Without a record, experts
are recognized by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.layouts import joined, separated
from lbrx.models.architectures.records import Joined, Weight
from lbrx.models.architectures.table import known_family, load_family
from lbrx.models.architectures.value_changes import stack_part, stacked
from lbrx.tensors.codecs.mlx import MlxWeight, StoredCodes
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage_views import JoinedStorage
from lbrx.tensors.tensor import Tensor

_MIXTRAL_BLOCK = "block_sparse_moe"
_EXPERT = re.compile(
    r"(?P<block>.*\.(?:block_sparse_moe|mlp))\.experts\.(?P<number>\d+)\.(?P<projection>\w+)\.(?P<part>weight|bias)"
)
_STACK = re.compile(r"(?P<block>.*)\.switch_mlp\.(?P<projection>\w+)\.(?P<part>weight|bias)")

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MlxWeights:
    """Weights that are one tensor in MLX: the items of a stack, or one weight with another name."""

    names: tuple[str, ...]
    is_stack: bool


def mlx_weights(config: Values | None, names: Iterable[str]) -> dict[str, MlxWeights]:
    """Return the weights that a family names otherwise in MLX, by these names.

    The result has the prefixes of ``names``, the tensors of the model.

    >>> config = {"model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": 2}
    >>> mlx_weights(config, ["model.norm.weight"])["model.layers.0.mlp.switch_mlp.up_proj.weight"].names[1]
    'model.layers.0.mlp.experts.1.up_proj.weight'
    """
    family = _family(config)
    weights = () if family is None else [weight for weight in family.layer if weight.mlx is not None]
    if family is None or config is None or not weights:
        return {}
    present = frozenset(names)
    naming, values = family.naming(present), family.config(config)
    found: dict[str, MlxWeights] = {}
    for weight in weights:
        items: Sequence[int | None] = (None,) if weight.items is None else range(values.size(weight.items))
        for layer in range(family.layer_count(config, present)):
            own = tuple(naming.expand(weight.name, layer, item) for item in items)
            found[naming.expand(str(weight.mlx), layer)] = MlxWeights(own, weight.items is not None)
    return found


def _family(config: Values | None) -> Family | None:
    return None if config is None else known_family(config)


def with_separate_weights(tensors: Sequence[PlannedTensor], config: Values | None) -> tuple[PlannedTensor, ...]:
    """Cut up the joined tensors of a model whose family is known, except those that MLX has, too."""
    family = _family(config)
    if family is None or config is None or not family.joined:
        return tuple(tensors)
    weights = {weight.name: weight for weight in family.layer}
    same = [each for each in family.joined if all(_is_joined(weights[part], each) for part in each.parts)]
    return separated(tensors, family, family.config(config), keep=same)


def _is_joined(weight: Weight, record: Joined) -> bool:
    return weight.joined_in == record.name and weight.mlx is None


def with_usual_tensors(tensors: Sequence[PlannedTensor], config: Values | None) -> tuple[PlannedTensor, ...]:
    """Join the weights of a model whose family is known, as its checkpoints have them."""
    family = _family(config)
    if family is None or config is None or not family.joined:
        return tuple(tensors)
    return joined(tensors, family, family.config(config))


def stack_experts(tensors: Sequence[PlannedTensor], config: Values | None = None) -> tuple[PlannedTensor, ...]:
    """Give weights the names of MLX, and stack the tensors of experts; a stack takes the position of its first expert.

    >>> import lbrx
    >>> names = [f"model.layers.0.mlp.experts.{number}.up_proj.weight" for number in (1, 0)]
    >>> made = stack_experts([PlannedTensor.of(name, lbrx.full((2, 3), 1.0, "bf16")) for name in names])
    >>> [(tensor.name, tensor.shape) for tensor in made]
    [('model.layers.0.mlp.switch_mlp.up_proj.weight', (2, 2, 3))]
    """
    known = mlx_weights(config, [tensor.name for tensor in tensors])
    places = {
        name: (mlx_name, number if weights.is_stack else -1)
        for mlx_name, weights in known.items()
        for number, name in enumerate(weights.names)
    }
    groups: dict[str, dict[int, PlannedTensor]] = {}
    for tensor in tensors:
        name, number = places.get(tensor.name) or _place_by_name(tensor.name)
        groups.setdefault(name, {})[number] = tensor.renamed(name) if number < 0 else tensor
    return tuple(
        next(iter(group.values())) if -1 in group else _stack(name, group, known.get(name))
        for name, group in groups.items()
    )


def _place_by_name(name: str) -> tuple[str, int]:
    match = _EXPERT.fullmatch(name)
    return (name, -1) if match is None else (_stack_name(match), int(match["number"]))


def _projections(block: str) -> Mapping[str, str]:
    """Return the MLX names of expert projections that differ, as in blocks like those of Mixtral."""
    if not block.endswith(_MIXTRAL_BLOCK):
        return {}
    stacks = {weight.name: weight.mlx for weight in load_family("mixtral").layer if weight.mlx is not None}
    return {hf.split(".")[-2]: mlx.split(".")[-2] for hf, mlx in stacks.items()}


def _stack_name(match: re.Match[str]) -> str:
    projection = _projections(match["block"]).get(match["projection"], match["projection"])
    return f"{match['block']}.switch_mlp.{projection}.{match['part']}"


def _stack(name: str, experts: dict[int, PlannedTensor], weights: MlxWeights | None) -> PlannedTensor:
    count = len(experts) if weights is None else len(weights.names)
    if sorted(experts) != list(range(count)):
        absent = next(number for number in range(count) if number not in experts)
        raise FormatError(f"{name!r} consists of {count} experts, but number {absent} is missing")
    parts = [experts[number] for number in range(count)]
    first = parts[0]
    for part in parts:
        if (part.shape, part.type_name) != (first.shape, first.type_name):
            raise FormatError(
                f"tensor {part.name!r} is {part.type_name} {part.shape}, expected {first.type_name} {first.shape} "
                f"like {first.name!r}, with which it is stacked"
            )
    return PlannedTensor(
        name,
        first.type_name,
        (count, *first.shape),
        lambda: stacked([part.make() for part in parts]),
        codes=_stacked_codes([part.codes for part in parts]),
    )


def _stacked_codes(parts: Sequence[StoredCodes | None]) -> StoredCodes | None:
    """The codes of all experts, if they have the same coding."""
    codes = [part for part in parts if part is not None and not part.is_swapped]
    if len(codes) < len(parts) or len({each.mode for each in codes}) > 1:
        return None

    def make() -> MlxWeight:
        weights = [each.make() for each in codes]
        words = [each.weight.expr for each in weights]
        joined_words = JoinedStorage([each.storage for each in words if isinstance(each, Blocks)])
        stack = Blocks(joined_words, "u32", (len(words), *words[0].shape))
        return MlxWeight(Tensor(stack), stacked([each.scales for each in weights]), None)

    return StoredCodes(codes[0].mode, make)


def separate_experts(tensors: Sequence[PlannedTensor], config: Values | None = None) -> tuple[PlannedTensor, ...]:
    """Give weights their names in Hugging Face models, and split stacks into experts; the inverse of ``stack_experts``.

    >>> import lbrx
    >>> name = "model.layers.0.block_sparse_moe.switch_mlp.gate_proj.weight"
    >>> [each.name for each in separate_experts([PlannedTensor.of(name, lbrx.full((1, 2, 3), 1.0, "bf16"))])]
    ['model.layers.0.block_sparse_moe.experts.0.w1.weight']
    """
    known = mlx_weights(config, [tensor.name for tensor in tensors])
    return tuple(part for tensor in tensors for part in _separated(tensor, known.get(tensor.name)))


def _separated(tensor: PlannedTensor, weights: MlxWeights | None) -> Iterator[PlannedTensor]:
    if weights is not None and not weights.is_stack:
        yield tensor.renamed(weights.names[0])
        return
    if weights is not None and len(weights.names) == tensor.shape[0]:
        for number, name in enumerate(weights.names):
            yield tensor.renamed(name).mapped(partial(_one_of, number), shape=tensor.shape[1:])
        return
    match = _STACK.fullmatch(tensor.name)
    if match is None or len(tensor.shape) < 2:
        yield tensor
        return
    names = {mlx: hf for hf, mlx in _projections(match["block"]).items()}
    projection = names.get(match["projection"], match["projection"])
    for number in range(tensor.shape[0]):
        name = f"{match['block']}.experts.{number}.{projection}.{match['part']}"
        yield tensor.renamed(name).mapped(partial(_one_of, number), shape=tensor.shape[1:])


def _one_of(number: int, tensor: Tensor) -> Tensor:
    return stack_part(tensor, number)
