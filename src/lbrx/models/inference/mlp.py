"""Gated and plain MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.activations import activation_of
from lbrx.models.architectures.records import Activation, GatedMlp, PlainMlp
from lbrx.models.inference.parts import LayerRun, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, Reader, times
from lbrx.ops import gelu, gelu_mul, relu, relu_squared, silu, silu_mul

_FUNCTIONS: dict[Activation, Callable[[Any], Floats]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, form="tanh"),
    "relu": relu,
    "relu2": relu_squared,
}
_GATED: dict[Activation, Callable[[Any, Any], Floats]] = {
    "silu": silu_mul,
    "gelu": partial(gelu_mul, form="erf"),
    "gelu_tanh": gelu_mul,
}


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """``inner`` are the gate and up matrices, one matrix that joins both, or the up matrix of a plain MLP."""

    inner: tuple[Matrix, ...]
    down: Matrix
    activation: Activation = "silu"
    is_gated: bool = True
    gate_scale: float | None = None
    scale: float | None = None


def read_mlp(reader: Reader, part: GatedMlp | PlainMlp, layer: LayerSpec) -> MlpWeights:
    """Find the matrices ``ffn_gate``, ``ffn_up`` and ``ffn_down``; the first of a joined matrix is in ``ffn_up``."""
    is_gated = isinstance(part, GatedMlp)
    names = ("ffn_gate", "ffn_up") if isinstance(part, GatedMlp) and not part.is_joined else ("ffn_up",)
    matrices = tuple(reader.matrix(name, layer.number) for name in names)
    down = reader.matrix("ffn_down", layer.number)
    scales = (part.gate_scale, part.scale) if isinstance(part, GatedMlp) else (None, None)
    factors = (None if each is None else reader.spec.config.real(each) for each in scales)
    return MlpWeights(matrices, down, activation_of(part, reader.spec.config), is_gated, *factors)


def run_mlp(values: Floats, weights: MlpWeights, _run: LayerRun | None = None) -> Floats:
    """``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))``."""
    inner = [times(values, matrix) for matrix in weights.inner]
    if not weights.is_gated:
        return times(_FUNCTIONS[weights.activation](inner[0]), weights.down)
    if len(inner) == 1:
        half = inner[0].shape[1] // 2
        inner = [inner[0][:, :half], inner[0][:, half:]]
    gate = inner[0] if weights.gate_scale is None else inner[0] * np.float32(weights.gate_scale)
    result = times(gated(gate, inner[1], weights.activation), weights.down)
    return result if weights.scale is None else result * np.float32(weights.scale)


def gated(gate: Floats, up: Floats, activation: Activation) -> Floats:
    """``activation(gate) * up``"""
    function = _GATED.get(activation)
    return _FUNCTIONS[activation](gate) * up if function is None else function(gate, up)


MLP = PartCode(read_mlp, run_mlp)
