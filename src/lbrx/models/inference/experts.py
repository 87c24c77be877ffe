"""Mixtures of experts: a router chooses some MLPs for each token and weights their results."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.device import CPU, device
from lbrx.engine.recording import CannotRecord, CompiledStep, Recorder, run_in_step
from lbrx.errors import FormatError
from lbrx.models.architectures.activations import activation_of
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import Experts
from lbrx.models.inference.functions import sigmoid
from lbrx.models.inference.mlp import MlpWeights, run_mlp
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, Reader, only_rows, times
from lbrx.ops import matrix, silu, softmax
from lbrx.settings import settings

Numbers = npt.NDArray[np.int64]

_MOST_STEPS = 128  # of a layer; each needs some ten vectors of the hidden size


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen and weighted: the options of the record `Experts`, as numbers."""

    part: Experts
    used: int
    is_normalized: bool
    smallest_sum: float
    scale: float
    groups: int
    used_groups: int
    clamp: tuple[float, float] | None
    jitter: float  # of SparseMixer: scores that are smaller than the largest by twice this share do not count


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A router and its experts, each of them an MLP; an MLP for every token, and the matrix of its gate.

    The experts are chosen by their weights plus ``correction``.
    """

    routing: Routing
    router: Matrix
    experts: tuple[MlpWeights, ...]
    correction: Floats | None
    shared: MlpWeights | None
    shared_gate: Matrix | None
    steps: ExpertSteps


def check_experts(part: Experts, config: Config, _local: dict[str, Any]) -> Memory:
    """Raise if more experts are used than there are, or groups are not equally large."""
    routing, count = _routing(part, config), config.count(part.count)
    if routing.used > count:
        raise FormatError(
            f"{config.where}: {routing.used} experts of {count} are used for a token; expected at most {count}"
        )
    if count % routing.groups or routing.used_groups > routing.groups:
        raise FormatError(
            f"{config.where}: {routing.used_groups} of {routing.groups} groups of {count} experts are used; "
            "expected a divisor, and at most all of them"
        )
    least = 2 if part.group_score == "two_best" and routing.groups > 1 else 1
    if count // routing.groups * routing.used_groups < routing.used or count // routing.groups < least:
        raise FormatError(f"{config.where}: the groups of experts are too small for {routing.used} experts per token")
    if part.scoring == "sparsemixer" and routing.used != 2:
        raise FormatError(f"{config.where}: {routing.used} experts are used for a token; expected 2")
    return Memory()


def _routing(part: Experts, config: Config) -> Routing:
    groups = None if part.groups is None or not config.evaluate(part.groups) else config.size(part.groups)
    limits = None if part.clamp is None else (config.real(part.clamp[0]), config.real(part.clamp[1]))
    return Routing(
        part=part,
        used=config.count(part.used),
        is_normalized=bool(config.evaluate(part.normalized)),
        smallest_sum=config.real(part.smallest_sum),
        scale=config.real(part.scale),
        groups=groups or 1,
        used_groups=config.size(part.used_groups) if groups else 1,
        clamp=limits,
        jitter=config.number("router_jitter_noise") if part.scoring == "sparsemixer" else 0.0,
    )


def read_experts(reader: Reader, part: Experts, layer: LayerSpec) -> ExpertWeights:
    number, activation = layer.number, activation_of(part, reader.spec.config)
    roles = ("gate", "up", "down") if part.is_gated else ("up", "down")
    matrices = (_matrices(reader, f"ffn_{role}_exps", number) for role in roles)
    experts = tuple(
        MlpWeights(tuple(inner), down, activation, part.is_gated) for *inner, down in zip(*matrices, strict=True)
    )
    correction = reader.bias("exp_probs_b", number)
    shared, shared_gate = None, None
    if reader.has("ffn_up_shexp.weight", number):
        *inner, down = (reader.matrix(f"ffn_{role}_shexp", number) for role in roles)
        shared = MlpWeights(tuple(inner), down, activation, part.is_gated)
    if reader.has("ffn_gate_inp_shexp.weight", number):
        row = reader.tensor("ffn_gate_inp_shexp.weight", number)
        shared_gate = Matrix(row.reshape(1, -1) if row.ndim == 1 else row)
    routing = _routing(part, reader.spec.config)
    return ExpertWeights(
        routing=routing,
        router=reader.matrix("ffn_gate_inp", number),
        experts=experts,
        steps=ExpertSteps(experts, routing, reader.spec.hidden),
        correction=None if correction is None else correction.reshape(-1),
        shared=shared,
        shared_gate=shared_gate,
    )


def _matrices(reader: Reader, gguf_name: str, layer: int) -> tuple[Matrix, ...]:
    """Return the matrix and the bias of every expert, from single tensors or from a stack."""
    weight = reader.weight(f"{gguf_name}.weight")
    assert weight.items is not None
    assert weight.mlx is not None
    count, shape = reader.spec.config.size(weight.items), reader.shape(weight, layer)
    biases = _biases(reader, f"{gguf_name}.bias", layer, count)
    stacked = reader.name(weight, layer) if reader.spec.is_gguf else reader.naming.expand(weight.mlx, layer)
    if reader.spec.is_gguf or reader.source.has(stacked):
        stack = reader.source.tensor(stacked, (count, *shape))
        return tuple(Matrix(matrix(stack, number), bias) for number, bias in enumerate(biases))
    names = (reader.name(weight, layer, number) for number in range(count))
    return tuple(Matrix(reader.source.tensor(name, shape), bias) for name, bias in zip(names, biases, strict=True))


def _biases(reader: Reader, gguf_name: str, layer: int, count: int) -> list[Floats] | list[None]:
    """Return the bias of every expert."""
    if gguf_name not in reader.spec.family.by_gguf_name:
        return [None] * count
    weight = reader.weight(gguf_name)
    shape, source = reader.shape(weight, layer), reader.source
    if reader.spec.is_gguf:
        return list(source.tensor(reader.name(weight, layer), (count, *shape)).numpy().astype(np.float32))
    names = (reader.name(weight, layer, number) for number in range(count))
    return [np.ascontiguousarray(source.tensor(name, shape).numpy(), np.float32) for name in names]


def run_experts(values: Floats, weights: ExpertWeights, _run: LayerRun) -> Floats:
    """Return the weighted sum of the best experts of every row; each expert computes all its rows at once.

    Results are added in the order of the expert numbers; that of an MLP for all tokens comes last.
    """
    scores = times(values, weights.router)
    mixed: Floats = run_in_step(lambda rows, ranked: _mixed(rows, ranked, weights), values, scores)
    if weights.shared is None:
        return mixed
    shared = run_mlp(values, weights.shared)
    if weights.shared_gate is None:
        return mixed + shared
    gate = times(values, weights.shared_gate)
    gated: Floats = run_in_step(lambda rows, gates: rows * sigmoid(gates), shared, gate)
    return mixed + gated


def _mixed(values: Floats, scores: Floats, weights: ExpertWeights) -> Floats:
    routing = weights.routing
    chosen, shares = choose(scores, weights.correction, routing)
    total = np.zeros_like(values)
    results = weights.steps.run(values, chosen[0], shares[0]) if len(values) == 1 else {}
    for number in np.unique(chosen).tolist():
        rows, ranks = np.nonzero(chosen == number)
        factors = shares[rows, ranks, None]
        result = results.get(number)
        if result is None:
            own = np.ascontiguousarray(values[rows])
            own = own * factors if routing.part.scales_inputs else own
            with only_rows(rows):
                result = _computed(own, weights.experts[number], routing)
        total[rows] += result if routing.part.scales_inputs else factors * result
    return total


class ExpertSteps:
    """Experts of a layer as compiled steps for one token, which run at the same time.

    They are made when an expert is first used, for so many experts that they need little memory.
    """

    def __init__(self, experts: tuple[MlpWeights, ...], routing: Routing, hidden: int) -> None:
        self._experts, self._routing, self._hidden = experts, routing, hidden
        self._lock = threading.Lock()
        self._steps: dict[tuple[int, int], CompiledStep | None] = {}

    def run(self, values: Floats, numbers: Numbers, factors: Floats) -> dict[int, Floats]:
        """Return the results of those of these experts that have steps.

        There are none if the device has no steps, or another thread uses them.
        """
        if settings.device != CPU or not self._lock.acquire(blocking=False):
            return {}
        try:
            found: dict[int, CompiledStep] = {}
            for number, factor in zip(numbers.tolist(), factors, strict=True):
                step = self._step(number)
                if step is not None:
                    step.inputs[0][...] = values * factor if self._routing.part.scales_inputs else values
                    found[number] = step
            steps = list(found.values())
            results = steps[0].run_beside(steps[1:]) if steps else None
            if results is None:
                return {}
            return {number: result.copy() for number, result in zip(found, results, strict=True)}
        finally:
            self._lock.release()

    def _step(self, number: int) -> CompiledStep | None:
        key = number, settings.activation_bits
        if key not in self._steps and len(self._steps) < _MOST_STEPS:
            self._steps[key] = self._compiled(self._experts[number])
        return self._steps.get(key)

    def _compiled(self, expert: MlpWeights) -> CompiledStep | None:
        recorder = Recorder(1)
        try:
            result: Any = _computed(recorder.input((1, self._hidden)), expert, self._routing)  # type: ignore[arg-type]
        except CannotRecord:
            return None
        return device(settings.device).compile_step(recorder.finish(result))


def _computed(values: Floats, expert: MlpWeights, routing: Routing) -> Floats:
    if routing.clamp is None:
        return run_mlp(values, expert)
    limit, factor = (np.float32(number) for number in routing.clamp)
    gate, up = (times(values, matrix) for matrix in expert.inner)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return times(silu(gate * factor) / factor * (up + np.float32(1)), expert.down)


def choose(scores: Floats, correction: Floats | None, routing: Routing) -> tuple[Numbers, Floats]:
    """Return the numbers and the weights of the experts of every row, the best first.

    >>> routing = Routing(Experts(), 1, False, 1e-20, 1.0, 1, 1, None, 0.0)
    >>> choose(np.array([[0.0, 2.0, 1.0]], np.float32), None, routing)
    (array([[1]]), array([[1.]], dtype=float32))
    """
    scoring = routing.part.scoring
    if scoring == "softmax_of_chosen":
        chosen = _best(scores, routing.used)
        return chosen, softmax(np.take_along_axis(scores, chosen, axis=1)) * np.float32(routing.scale)
    if scoring == "sparsemixer":
        return _sparse_mixer(scores, routing.jitter)
    weights = sigmoid(scores) if scoring == "sigmoid" else softmax(scores)
    ranked = weights if correction is None else weights + correction
    chosen = _best(ranked if routing.groups == 1 else _in_best_groups(ranked, routing), routing.used)
    shares = np.take_along_axis(weights, chosen, axis=1)
    if routing.is_normalized:
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.float32(routing.smallest_sum))
    return chosen, shares * np.float32(routing.scale)


def _best(values: Floats, count: int) -> Numbers:
    return np.argsort(-values, axis=1, kind="stable")[:, :count].astype(np.int64)


def _in_best_groups(values: Floats, routing: Routing) -> Floats:
    """Return the values with minus infinity for experts of groups that are not among the best."""
    grouped = values.reshape(len(values), routing.groups, -1)
    if routing.part.group_score == "best":
        group_scores = grouped.max(axis=2)
    else:
        group_scores = np.partition(grouped, -2, axis=2)[:, :, -2:].sum(axis=2)
    is_used = np.zeros(group_scores.shape, bool)
    np.put_along_axis(is_used, _best(group_scores, routing.used_groups), True, axis=1)
    return np.where(is_used[:, :, None], grouped, np.float32(-np.inf)).reshape(values.shape)


def _sparse_mixer(scores: Floats, jitter: float) -> tuple[Numbers, Floats]:
    """Return the two best experts. The weight of each is a softmax over the scores that are close to its own."""
    rows = np.arange(len(scores))
    left, chosen, shares = scores.copy(), [], []
    for _ in range(2):
        best = left.argmax(axis=1)
        largest = left[rows, best][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            is_far = (largest - scores) / np.maximum(np.abs(scores), largest) > 2 * jitter
        close = np.where(is_far, np.float32(-np.inf), left)
        chosen.append(best)
        shares.append(softmax(close)[rows, best])
        left[rows, best] = -np.inf
    return np.stack(chosen, axis=1), np.stack(shares, axis=1)


EXPERTS = PartCode(read_experts, run_experts, check_experts)
