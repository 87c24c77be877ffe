"""The weights of a decoder, found by their GGUF names; only small vectors are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, TensorNotFound
from lbrx.models.architectures.parts import ALWAYS
from lbrx.models.architectures.records import Experts, Weight
from lbrx.models.architectures.rope import ROPE_FREQUENCIES
from lbrx.models.inference.spec import ModelSpec
from lbrx.ops import matrix
from lbrx.tensors.tensor import Tensor

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear map ``x @ weight.T + bias``, with the weight as models store it."""

    weight: Tensor
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """``projections`` are the query, key and value matrices, or one joined matrix."""

    projections: tuple[Matrix, ...]
    output: Matrix
    query_norm: Floats | None = None
    key_norm: Floats | None = None


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """``gate_up`` are the gate and up matrices, or one joined matrix."""

    gate_up: tuple[Matrix, ...]
    down: Matrix


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A router and its experts, each of them an MLP."""

    router: Matrix
    experts: tuple[MlpWeights, ...]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A block: attention, MLP, and the norms before or after them, by their GGUF names."""

    norms: dict[str, Floats]
    attention: AttentionWeights
    mlp: MlpWeights | ExpertWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights. ``rope_factors`` divide the frequencies of positions, if a GGUF file has them."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Floats
    output: Tensor
    rope_factors: Floats | None


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Tensors by name from one file or directory; errors name it."""

    where: str
    names: frozenset[str]
    take: Callable[[str], Tensor]

    def has(self, name: str) -> bool:
        return name in self.names

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor; raise if it is missing or has another shape."""
        if name not in self.names:
            raise TensorNotFound(f"{self.where}: has no tensor {name!r}; expected one of shape {tuple(shape)}")
        weight = self.take(name)
        if weight.shape != tuple(shape):
            raise ShapeError(f"{self.where}: tensor {name!r} has shape {weight.shape}; expected {tuple(shape)}")
        return weight


def read_weights(source: TensorSource, spec: ModelSpec) -> ModelWeights:
    """Return all tensors that the decoder of the family needs, with checked shapes."""
    reader = _Reader(source, spec)
    embedding = reader.tensor("token_embd.weight")
    return ModelWeights(
        embedding=embedding,
        layers=tuple(reader.layer(number) for number in range(len(spec.layers))),
        final_norm=reader.vector("output_norm.weight"),
        output=embedding if spec.is_tied else reader.tensor("output.weight"),
        rope_factors=reader.rope_factors(),
    )


class _Reader:
    """Finds tensors by their GGUF names; the family maps these to the names and shapes in this file."""

    def __init__(self, source: TensorSource, spec: ModelSpec) -> None:
        self._source, self._spec = source, spec
        self._naming = spec.family.naming(source.names)

    def _name(self, weight: Weight, layer: int | None, item: int | None = None) -> str:
        template = str(weight.gguf) if self._spec.is_gguf else weight.name
        return self._naming.expand(template, layer, item)

    def _shape(self, weight: Weight) -> tuple[int, ...]:
        assert weight.shape is not None
        return self._spec.config.shape(weight.shape)

    def tensor(self, gguf_name: str, layer: int | None = None) -> Tensor:
        weight = self._spec.family.by_gguf_name[gguf_name]
        return self._source.tensor(self._name(weight, layer), self._shape(weight))

    def vector(self, gguf_name: str, layer: int | None = None) -> Floats:
        return np.ascontiguousarray(self.tensor(gguf_name, layer).numpy(), dtype=np.float32)

    def rope_factors(self) -> Floats | None:
        if not self._spec.is_gguf or not self._source.has(ROPE_FREQUENCIES):
            return None
        factors = self._source.tensor(ROPE_FREQUENCIES, (self._spec.layers[0].rope.dims // 2,))
        return np.ascontiguousarray(factors.numpy(), dtype=np.float32)

    def matrix(self, gguf_name: str, layer: int) -> Matrix:
        """Return a matrix, and its bias if the model has one."""
        bias = self._spec.family.by_gguf_name.get(f"{gguf_name}.bias")
        has_bias = bias is not None and self._has_bias(bias, layer)
        return Matrix(
            self.tensor(f"{gguf_name}.weight", layer), self.vector(f"{gguf_name}.bias", layer) if has_bias else None
        )

    def _has_bias(self, bias: Weight, layer: int) -> bool:
        """Return what the config says; GGUF files may omit the key but contain the tensor."""
        if self._spec.is_gguf and bias.needed_when != ALWAYS:
            return self._source.has(self._name(bias, layer))
        return bool(self._spec.config.evaluate(bias.needed_when or ALWAYS, layer=layer))

    def layer(self, layer: int) -> LayerWeights:
        decoder = self._spec.decoder
        norms = {name: self.vector(f"{name}.weight", layer) for name in decoder.norm.names}
        mlp = self._experts(layer) if isinstance(decoder.mlp, Experts) else self._mlp(layer, decoder.mlp.is_joined)
        return LayerWeights(norms, self._attention(layer), mlp)

    def _attention(self, layer: int) -> AttentionWeights:
        attention = self._spec.decoder.attention
        names = ("attn_qkv",) if attention.is_joined else ("attn_q", "attn_k", "attn_v")
        norms = () if attention.qk_norm == "none" else ("attn_q_norm.weight", "attn_k_norm.weight")
        return AttentionWeights(
            tuple(self.matrix(name, layer) for name in names),
            self.matrix("attn_output", layer),
            *(self.vector(name, layer) for name in norms),
        )

    def _mlp(self, layer: int, is_joined: bool) -> MlpWeights:
        names = ("ffn_up",) if is_joined else ("ffn_gate", "ffn_up")
        return MlpWeights(tuple(self.matrix(name, layer) for name in names), self.matrix("ffn_down", layer))

    def _experts(self, layer: int) -> ExpertWeights:
        gates, ups, downs = (self._expert_matrices(f"ffn_{role}_exps.weight", layer) for role in ("gate", "up", "down"))
        experts = (MlpWeights((gate, up), down) for gate, up, down in zip(gates, ups, downs, strict=True))
        return ExpertWeights(Matrix(self.tensor("ffn_gate_inp.weight", layer)), tuple(experts))

    def _expert_matrices(self, gguf_name: str, layer: int) -> tuple[Matrix, ...]:
        weight = self._spec.family.by_gguf_name[gguf_name]
        assert weight.items is not None
        assert weight.mlx is not None
        count, shape = self._spec.config.size(weight.items), self._shape(weight)
        stacked = self._name(weight, layer) if self._spec.is_gguf else self._naming.expand(weight.mlx, layer)
        if self._spec.is_gguf or self._source.has(stacked):
            stack = self._source.tensor(stacked, (count, *shape))
            return tuple(Matrix(matrix(stack, number)) for number in range(count))
        names = (self._name(weight, layer, number) for number in range(count))
        return tuple(Matrix(self._source.tensor(name, shape)) for name in names)
