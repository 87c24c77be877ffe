"""Mixtures of experts: a router chooses some MLPs for each token and weights their results."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.recording import run_in_step
from lbrx.errors import FormatError
from lbrx.models.architectures.activations import activation_of
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import Experts
from lbrx.models.inference.mlp import MlpWeights, run_mlp
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, Reader
from lbrx.ops import linear, matrix, softmax


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A router and its experts, each of them an MLP. ``used`` experts compute each token."""

    router: Matrix
    experts: tuple[MlpWeights, ...]
    used: int


def check_experts(_part: Experts, config: Config, _local: dict[str, Any]) -> Memory:
    """Raise if more experts are used than there are."""
    count, used = config.count(_count_key(config)), config.count("num_experts_per_tok")
    if used > count:
        raise FormatError(f"{config.where}: {used} experts of {count} are used for a token; expected at most {count}")
    return Memory()


def _count_key(config: Config) -> str:
    return "num_experts" if config.get("num_local_experts") is None else "num_local_experts"


def read_experts(reader: Reader, part: Experts, layer: LayerSpec) -> ExpertWeights:
    activation = activation_of(part, reader.spec.config)
    roles = (_matrices(reader, f"ffn_{role}_exps.weight", layer.number) for role in ("gate", "up", "down"))
    experts = tuple(MlpWeights((gate, up), down, activation) for gate, up, down in zip(*roles, strict=True))
    router = Matrix(reader.tensor("ffn_gate_inp.weight", layer.number))
    return ExpertWeights(router, experts, reader.spec.config.count("num_experts_per_tok"))


def _matrices(reader: Reader, gguf_name: str, layer: int) -> tuple[Matrix, ...]:
    """Return the matrix of every expert, from single tensors or from a stack."""
    weight = reader.weight(gguf_name)
    assert weight.items is not None
    assert weight.mlx is not None
    count, shape = reader.spec.config.size(weight.items), reader.shape(weight, layer)
    stacked = reader.name(weight, layer) if reader.spec.is_gguf else reader.naming.expand(weight.mlx, layer)
    if reader.spec.is_gguf or reader.source.has(stacked):
        stack = reader.source.tensor(stacked, (count, *shape))
        return tuple(Matrix(matrix(stack, number)) for number in range(count))
    names = (reader.name(weight, layer, number) for number in range(count))
    return tuple(Matrix(reader.source.tensor(name, shape)) for name in names)


def run_experts(values: Floats, weights: ExpertWeights, _run: LayerRun) -> Floats:
    """Return the weighted sum of the best experts of every row; each expert computes all its rows at once.

    The weights are the softmax over the chosen experts. Results are added in the order of the expert numbers.
    """
    scores = linear(values, weights.router.weight)
    mixed: Floats = run_in_step(lambda rows, ranked: _mixed(rows, ranked, weights), values, scores)
    return mixed


def _mixed(values: Floats, scores: Floats, weights: ExpertWeights) -> Floats:
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, : weights.used]
    shares = softmax(np.take_along_axis(scores, chosen, axis=1))
    total = np.zeros_like(values)
    for number, expert in enumerate(weights.experts):
        rows, ranks = np.nonzero(chosen == number)
        if rows.size:
            total[rows] += shares[rows, ranks, None] * run_mlp(np.ascontiguousarray(values[rows]), expert)
    return total


EXPERTS = PartCode(read_experts, run_experts, check_experts)
