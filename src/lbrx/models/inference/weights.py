"""The weights of a decoder, found by their GGUF names; only small vectors are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, TensorNotFound
from lbrx.models.architectures.parts import ALWAYS
from lbrx.models.architectures.records import LearnedPositions, Weight
from lbrx.models.architectures.rope import ROPE_FREQUENCIES
from lbrx.models.inference.parts import code_of
from lbrx.models.inference.spec import LayerSpec, ModelSpec
from lbrx.ops import layer_norm, linear, rms_norm
from lbrx.tensors.tensor import Tensor

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear map ``x @ weight.T + bias``, with the weight as models store it."""

    weight: Tensor
    bias: Floats | None = None


_watcher: ContextVar[Callable[[Matrix, Floats], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Callable[[Matrix, Floats], None]) -> Iterator[None]:
    """Call a function with each matrix and the rows that are multiplied by it, while a ``with`` block computes."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


_rows: ContextVar[npt.NDArray[np.int64] | None] = ContextVar("rows", default=None)


@contextmanager
def only_rows(rows: npt.NDArray[np.int64]) -> Iterator[None]:
    """Tell watchers which rows of a text are multiplied in a ``with`` block, such as those that an expert gets."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def watched_rows() -> npt.NDArray[np.int64] | None:
    """Return the rows of the text that a watcher sees, or None for all of them."""
    return _rows.get()


def times(values: Floats, matrix: Matrix) -> Floats:
    """Multiply rows by a matrix and add its bias."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(matrix, values)
    return linear(values, matrix.weight, matrix.bias)


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm of rows of ``size`` elements; a weight of two axes has a row for every head."""

    function: Literal["rms", "layer"]
    epsilon: float
    weight: Floats | None = None
    bias: Floats | None = None
    adds_one: bool = False

    def is_of_rows(self, size: int) -> bool:
        """Whether rows are longer than so many elements."""
        return self.weight is not None and self.weight.ndim == 1 and self.weight.size != size

    def without_weight(self) -> NormWeights:
        return replace(self, weight=None)


def normalized(values: Floats, norm: NormWeights) -> Floats:
    """Normalize rows, then multiply by the weight and add the bias."""
    weight = np.ones(values.shape[-1], np.float32) if norm.weight is None else norm.weight
    if norm.function == "layer":
        return layer_norm(values, weight, norm.bias, norm.epsilon)
    return rms_norm(values, weight, norm.epsilon, add_one=norm.adds_one and norm.weight is not None)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A block: what its parts need, and the norms before and after the mixer, and before and after the MLP."""

    norms: tuple[NormWeights | None, ...]
    mixer: Any
    mlp: Any
    after: Any = None


@dataclass(frozen=True, slots=True)
class InputWeights:
    """The table of inputs for all layers, and the projection and norm of those from the embedding."""

    table: Tensor
    projection: Matrix
    norm: NormWeights
    size: int  # of the input of a layer


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights. ``rope_factors`` divide the frequencies of positions, if a GGUF file has them."""

    embedding: Tensor
    embedding_norm: NormWeights | None
    positions: Tensor | None
    layers: Sequence[LayerWeights]
    final_norm: NormWeights
    output: Matrix
    rope_factors: Floats | None
    names: frozenset[str] = frozenset()  # of all tensors in the file or directory
    layer_inputs: InputWeights | None = None


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
        return weight if weight.name == name else Tensor(weight.expr, replace(weight.metadata, name=name))


def read_weights(source: TensorSource, spec: ModelSpec) -> ModelWeights:
    """Return all tensors that the decoder of the family needs, with checked shapes."""
    reader = Reader(source, spec)
    return read_weights_outside_layers(reader, tuple(read_layer(reader, layer) for layer in spec.layers))


def read_weights_outside_layers(reader: Reader, layers: Sequence[LayerWeights]) -> ModelWeights:
    """Return all weights, given those of the layers."""
    spec, norm = reader.spec, reader.spec.norm
    embedding = reader.tensor("token_embd.weight")
    has_positions = isinstance(spec.decoder.positions, LearnedPositions)
    return ModelWeights(
        embedding=embedding,
        embedding_norm=reader.norm("token_embd_norm", None, norm.function) if spec.decoder.embedding_norm else None,
        positions=reader.tensor("position_embd.weight") if has_positions else None,
        layers=layers,
        final_norm=reader.norm(spec.decoder.final_norm, None, norm.function),
        output=Matrix(embedding, reader.bias("output")) if spec.is_tied else reader.matrix("output"),
        rope_factors=reader.rope_factors(),
        names=reader.source.names,
        layer_inputs=_read_layer_inputs(reader),
    )


def _read_layer_inputs(reader: Reader) -> InputWeights | None:
    if not reader.has("per_layer_token_embd.weight"):
        return None
    norm = reader.norm("per_layer_proj_norm", None, "rms")
    size = reader.spec.config.count("hidden_size_per_layer_input")
    projection = reader.matrix("per_layer_model_proj")
    return InputWeights(reader.tensor("per_layer_token_embd.weight"), projection, norm, size)


def read_layer(reader: Reader, layer: LayerSpec) -> LayerWeights:
    """Return the weights of one layer, with checked shapes."""
    spec, number = reader.spec, layer.number
    is_shared = spec.is_parallel and spec.shares_norm
    names = list(spec.norm.used)
    if layer.mixer is None:
        names[2:], names[:2] = names[:2], [None, None]  # the only norms of the layer are those of its MLP
    elif layer.mlp is None or is_shared:
        names[2] = None
    if layer.mlp is None:
        names[3] = None
    norms = tuple(None if name is None else reader.norm(name, number, spec.norm.function) for name in names)
    parts = (layer.mixer, layer.mlp, spec.decoder.after)
    mixer, mlp, after = (None if part is None else code_of(part).read(reader, part, layer) for part in parts)
    return LayerWeights(norms, mixer, mlp, after)


class Reader:
    """Finds tensors by their GGUF names; the family maps these to the names and shapes in this file."""

    def __init__(self, source: TensorSource, spec: ModelSpec) -> None:
        self.source, self.spec = source, spec
        self.naming = spec.family.naming(source.names)

    def weight(self, gguf_name: str) -> Weight:
        """Return the record of a tensor; ``gguf_name`` has no prefix of a layer. The config selects one of several."""
        config, found = self.spec.config, self.spec.family.all_by_gguf_name[gguf_name]
        return next((each for each in found[:-1] if config.evaluate(each.needed_when or ALWAYS, layer=0)), found[-1])

    def name(self, weight: Weight, layer: int | None, item: int | None = None) -> str:
        """Return the name of a tensor in this file."""
        template = str(weight.gguf) if self.spec.is_gguf else weight.name
        return self.naming.expand(template, layer, item)

    def shape(self, weight: Weight, layer: int | None = None) -> tuple[int, ...]:
        """Return the shape of a tensor in this file."""
        assert weight.shape is not None
        return self.spec.config.shape(weight.shape, **self._local(layer))

    def _local(self, layer: int | None) -> dict[str, Any]:
        return {} if layer is None else self.spec.layers[layer].local

    def tensor(self, gguf_name: str, layer: int | None = None) -> Tensor:
        """Return a tensor; a matrix has one row per output."""
        weight = self.weight(gguf_name)
        is_transposed = weight.is_transposed and not self.spec.is_gguf
        shape = self.shape(weight, layer)
        if weight.is_transposed and self.spec.is_gguf:
            shape = shape[::-1]
        if weight.gguf_shape is not None and self.spec.is_gguf:
            shape = self.spec.config.shape(weight.gguf_shape, **self._local(layer))
        tensor = self.source.tensor(self.name(weight, layer), shape)
        return Tensor(tensor.T.expr, tensor.metadata) if is_transposed else tensor

    def vector(self, gguf_name: str, layer: int | None = None) -> Floats:
        """Return the numbers of a small tensor."""
        weight = self.weight(gguf_name)
        if weight.items is None:
            return np.ascontiguousarray(self.tensor(gguf_name, layer).numpy(), dtype=np.float32)
        count, shape = self.spec.config.size(weight.items), self.shape(weight, layer)
        if self.spec.is_gguf:
            parts = [self.source.tensor(self.name(weight, layer), (count, *shape))]
        else:
            parts = [self.source.tensor(self.name(weight, layer, item), shape) for item in range(count)]
        return np.concatenate([part.numpy().astype(np.float32).reshape(-1, *shape) for part in parts])

    def has(self, gguf_name: str, layer: int | None = None) -> bool:
        """Return whether the model has a tensor. GGUF files may omit the key of the config but contain the tensor."""
        if gguf_name not in self.spec.family.by_gguf_name:
            return False
        weight = self.weight(gguf_name)
        if (self.spec.is_gguf and weight.needed_when not in (None, ALWAYS)) or weight.optional:
            return self.source.has(self.name(weight, layer))
        return bool(self.spec.config.evaluate(weight.needed_when or ALWAYS, **self._local(layer)))

    def matrix(self, gguf_name: str, layer: int | None = None) -> Matrix:
        """Return a matrix, and its bias if the model has one."""
        return Matrix(self.tensor(f"{gguf_name}.weight", layer), self.bias(gguf_name, layer))

    def bias(self, gguf_name: str, layer: int | None = None) -> Floats | None:
        """Return a bias if the model has it."""
        name = f"{gguf_name}.bias"
        return self.vector(name, layer) if self.has(name, layer) else None

    def norm(self, gguf_name: str, layer: int | None, function: Literal["rms", "layer"]) -> NormWeights:
        """Return a norm; a weight that the family does not have is 1 everywhere."""
        known = self.spec.family.by_gguf_name
        name = next((each for each in (f"{gguf_name}.weight", gguf_name) if each in known), None)
        weight = None if name is None else self.vector(name, layer)
        bias, adds_one = self.bias(gguf_name, layer), self.spec.norm_adds_one
        if weight is not None and function == "layer" and adds_one:
            weight, adds_one = weight + np.float32(1.0), False
        return NormWeights(function, self.spec.norm_epsilon, weight, bias, adds_one)

    def rope_factors(self) -> Floats | None:
        """Return the divisors of the frequencies of all layers that a GGUF file has."""
        if not self.spec.is_gguf or not self.source.has(ROPE_FREQUENCIES):
            return None
        ropes = [layer.rope for layer in self.spec.layers if layer.rope is not None]
        if any(rope.rope_type == "proportional" for rope in ropes):
            return None  # the config says the same, for the layers to which it applies
        dims = ropes[0].dims
        factors = self.source.tensor(ROPE_FREQUENCIES, (dims // 2,))
        return np.ascontiguousarray(factors.numpy(), dtype=np.float32)
