"""Experts of a mixture: separate tensors in Hugging Face directories, stacked into one tensor in MLX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from lbrx.errors import FormatError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.table import load_family
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


def stack_experts(tensors: Sequence[PlannedTensor]) -> tuple[PlannedTensor, ...]:
    """Stack the tensors of experts; each stack takes the position of its first expert.

    >>> import lbrx
    >>> names = [f"model.layers.0.mlp.experts.{number}.up_proj.weight" for number in (1, 0)]
    >>> made = stack_experts([PlannedTensor.of(name, lbrx.full((2, 3), 1.0, "bf16")) for name in names])
    >>> [(tensor.name, tensor.shape) for tensor in made]
    [('model.layers.0.mlp.switch_mlp.up_proj.weight', (2, 2, 3))]
    """
    groups: dict[str, dict[int, PlannedTensor]] = {}
    for tensor in tensors:
        match = _EXPERT.fullmatch(tensor.name)
        if match is None:
            groups[tensor.name] = {-1: tensor}
        else:
            groups.setdefault(_stack_name(match), {})[int(match["number"])] = tensor
    return tuple(next(iter(group.values())) if -1 in group else _stack(name, group) for name, group in groups.items())


def _projections(block: str) -> Mapping[str, str]:
    """Return the MLX names of expert projections that differ, as in blocks like those of Mixtral."""
    if not block.endswith(_MIXTRAL_BLOCK):
        return {}
    stacks = {weight.name: weight.mlx for weight in load_family("mixtral").layer if weight.mlx is not None}
    return {hf.split(".")[-2]: mlx.split(".")[-2] for hf, mlx in stacks.items()}


def _stack_name(match: re.Match[str]) -> str:
    projection = _projections(match["block"]).get(match["projection"], match["projection"])
    return f"{match['block']}.switch_mlp.{projection}.{match['part']}"


def _stack(name: str, experts: dict[int, PlannedTensor]) -> PlannedTensor:
    if sorted(experts) != list(range(len(experts))):
        absent = next(number for number in range(len(experts)) if number not in experts)
        raise FormatError(f"{name!r} consists of {len(experts)} experts, but number {absent} is missing")
    parts = [experts[number] for number in range(len(experts))]
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
        (len(parts), *first.shape),
        lambda: stacked([part.make() for part in parts]),
        codes=_stacked_codes([part.codes for part in parts]),
    )


def _stacked_codes(parts: Sequence[StoredCodes | None]) -> StoredCodes | None:
    """The codes of all experts, if they have the same coding."""
    codes = [part for part in parts if part is not None]
    if len(codes) < len(parts) or len({each.mode for each in codes}) > 1:
        return None

    def make() -> MlxWeight:
        weights = [each.make() for each in codes]
        words = [each.weight.expr for each in weights]
        joined = JoinedStorage([each.storage for each in words if isinstance(each, Blocks)])
        stack = Blocks(joined, "u32", (len(words), *words[0].shape))
        return MlxWeight(Tensor(stack), stacked([each.scales for each in weights]), None)

    return StoredCodes(codes[0].mode, make)


def separate_experts(tensors: Sequence[PlannedTensor]) -> tuple[PlannedTensor, ...]:
    """Split stacks into experts; the inverse of ``stack_experts``.

    >>> import lbrx
    >>> name = "model.layers.0.block_sparse_moe.switch_mlp.gate_proj.weight"
    >>> [each.name for each in separate_experts([PlannedTensor.of(name, lbrx.full((1, 2, 3), 1.0, "bf16"))])]
    ['model.layers.0.block_sparse_moe.experts.0.w1.weight']
    """
    return tuple(part for tensor in tensors for part in _separated(tensor))


def _separated(tensor: PlannedTensor) -> Iterator[PlannedTensor]:
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
