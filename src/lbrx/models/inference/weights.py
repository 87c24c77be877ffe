"""The weights of a decoder, taken from a file by their roles: nothing is read but the small vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, TensorNotFound
from lbrx.models.inference.names import Names, norm_roles
from lbrx.models.inference.spec import ModelSpec
from lbrx.ops import matrix
from lbrx.tensors.tensor import Tensor

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear map: ``x @ weight.T + bias``, the weight as models store it."""

    weight: Tensor
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """``projections`` are the matrices of queries, keys and values, or the one that holds all three."""

    projections: tuple[Matrix, ...]
    output: Matrix
    query_norm: Floats | None = None
    key_norm: Floats | None = None


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """``gate_up`` are the gate and the map that it gates, or the one matrix that holds both."""

    gate_up: tuple[Matrix, ...]
    down: Matrix


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A router over experts, each of them an MLP."""

    router: Matrix
    experts: tuple[MlpWeights, ...]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A block: attention and MLP, with the norms before them, and after them where the family has such."""

    norms: dict[str, Floats]
    attention: AttentionWeights
    mlp: MlpWeights | ExpertWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of it. ``rope_factors`` divide the frequencies of positions, where a GGUF file has them."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Floats
    output: Tensor
    rope_factors: Floats | None


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Tensors by name, of one file or directory, which is named in errors."""

    where: str
    names: frozenset[str]
    take: Callable[[str], Tensor]

    def has(self, name: str) -> bool:
        return name in self.names

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor that has to be there, and to have this shape."""
        if name not in self.names:
            raise TensorNotFound(f"{self.where}: has no tensor {name!r}; expected one of shape {tuple(shape)}")
        weight = self.take(name)
        if weight.shape != tuple(shape):
            raise ShapeError(f"{self.where}: tensor {name!r} has shape {weight.shape}; expected {tuple(shape)}")
        return weight

    def vector(self, name: str, size: int) -> Floats:
        """The values of a small tensor."""
        return np.ascontiguousarray(self.tensor(name, (size,)).numpy(), dtype=np.float32)


def read_weights(source: TensorSource, names: Names, spec: ModelSpec) -> ModelWeights:
    """Every tensor that the spec asks for, with its shape checked."""
    embedding = source.tensor(names.embedding, (spec.vocabulary, spec.hidden))
    is_tied = not source.has(names.output) if spec.is_tied is None else spec.is_tied
    output = embedding if is_tied else source.tensor(names.output, (spec.vocabulary, spec.hidden))
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_layer(source, names, spec, number) for number in range(len(spec.layers))),
        final_norm=_norm(source, names.final_norm, spec.hidden),
        output=output,
        rope_factors=_rope_factors(source, names, spec),
    )


def _norm(source: TensorSource, name: str, size: int) -> Floats:
    return source.vector(name, size)


def _rope_factors(source: TensorSource, names: Names, spec: ModelSpec) -> Floats | None:
    if names.rope_factors is None or not source.has(names.rope_factors):
        return None
    return source.vector(names.rope_factors, spec.layers[0].rope.dims // 2)


def _layer(source: TensorSource, names: Names, spec: ModelSpec, number: int) -> LayerWeights:
    norms = {role: _norm(source, names.of(number, role), spec.hidden) for role in norm_roles(spec)}
    mlp: MlpWeights | ExpertWeights
    if spec.experts is None:
        mlp = _mlp(source, names, spec, number)
    else:
        mlp = _experts(source, names, spec, number)
    return LayerWeights(norms, _attention(source, names, spec, number), mlp)


def _attention(source: TensorSource, names: Names, spec: ModelSpec, layer: int) -> AttentionWeights:
    wide, narrow = spec.query_width, spec.key_width

    def matrix(role: str, rows: int, columns: int, has_bias: bool) -> Matrix:
        weight = source.tensor(names.of(layer, role), (rows, columns))
        return Matrix(weight, source.vector(names.of(layer, role, "bias"), rows) if has_bias else None)

    def norm(role: str) -> Floats | None:
        return _norm(source, names.of(layer, role), spec.head_dim) if spec.family.query_key_norms else None

    if spec.family.fused_projections:
        projections: tuple[Matrix, ...] = (
            matrix("queries_keys_values", wide + 2 * narrow, spec.hidden, spec.has_qkv_bias),
        )
    else:
        sizes = {"queries": wide, "keys": narrow, "values": narrow}
        projections = tuple(matrix(role, rows, spec.hidden, spec.has_qkv_bias) for role, rows in sizes.items())
    output = matrix("output", spec.hidden, wide, spec.has_output_bias)
    return AttentionWeights(projections, output, norm("query_norm"), norm("key_norm"))


def _mlp(source: TensorSource, names: Names, spec: ModelSpec, layer: int) -> MlpWeights:
    def matrix(role: str, rows: int, columns: int) -> Matrix:
        weight = source.tensor(names.of(layer, role), (rows, columns))
        return Matrix(weight, source.vector(names.of(layer, role, "bias"), rows) if spec.has_mlp_bias else None)

    inner, outer = spec.intermediate, spec.hidden
    if spec.family.fused_projections:
        gate_up: tuple[Matrix, ...] = (matrix("gate_up", 2 * inner, outer),)
    else:
        gate_up = (matrix("gate", inner, outer), matrix("up", inner, outer))
    return MlpWeights(gate_up, matrix("down", outer, inner))


# -- experts -----------------------------------------------------------------------------------------------------------


def _experts(source: TensorSource, names: Names, spec: ModelSpec, layer: int) -> ExpertWeights:
    assert spec.experts is not None
    count = spec.experts.count
    router = Matrix(source.tensor(names.of(layer, "router"), (count, spec.hidden)))
    shapes = {
        "gate": (spec.intermediate, spec.hidden),
        "up": (spec.intermediate, spec.hidden),
        "down": (spec.hidden, spec.intermediate),
    }
    matrices = {role: _expert_matrices(source, names, layer, role, count, shape) for role, shape in shapes.items()}
    experts = tuple(
        MlpWeights((Matrix(gate), Matrix(up)), Matrix(down))
        for gate, up, down in zip(matrices["gate"], matrices["up"], matrices["down"], strict=True)
    )
    return ExpertWeights(router, experts)


def _expert_matrices(
    source: TensorSource, names: Names, layer: int, role: str, count: int, shape: tuple[int, int]
) -> tuple[Tensor, ...]:
    stacked = names.of_stacked_experts(layer, role)
    if names.single_experts is None or source.has(stacked):
        stack = source.tensor(stacked, (count, *shape))
        return tuple(matrix(stack, number) for number in range(count))
    return tuple(source.tensor(names.of_expert(layer, expert, role), shape) for expert in range(count))
