"""Inputs for every layer besides the hidden states, made from the tokens, and a factor for the result of a layer."""

from __future__ import annotations

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.records import Activation, LayerInputs
from lbrx.models.inference.mlp import gated
from lbrx.models.inference.parts import LayerRun, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, InputWeights, Matrix, NormWeights, Reader, normalized, times

_SHARED = "layer inputs"


@dataclass(frozen=True, slots=True)
class LayerInputWeights:
    """The gate, the projection and its norm, if the model has inputs for layers, and a factor if it has one."""

    gate: Matrix | None
    projection: Matrix | None
    norm: NormWeights | None
    scale: np.float32 | None
    activation: Activation


def read_layer_inputs(reader: Reader, part: LayerInputs, layer: LayerSpec) -> LayerInputWeights:
    number = layer.number
    has_inputs = reader.has("inp_gate.weight", number)
    has_scale = reader.has("layer_output_scale.weight", number)
    return LayerInputWeights(
        reader.matrix("inp_gate", number) if has_inputs else None,
        reader.matrix("proj", number) if has_inputs else None,
        reader.norm("post_norm", number, "rms") if has_inputs else None,
        np.float32(reader.vector("layer_output_scale.weight", number)[0]) if has_scale else None,
        part.activation,
    )


def run_layer_inputs(hidden: Floats, weights: LayerInputWeights, run: LayerRun) -> Floats:
    """Return the hidden states after a layer."""
    if weights.gate is not None and weights.projection is not None and weights.norm is not None:
        inputs = run.positions.shared[_SHARED][:, run.layer.number]
        inner = gated(times(hidden, weights.gate), inputs, weights.activation)
        hidden = hidden + normalized(times(inner, weights.projection), weights.norm)
    return hidden if weights.scale is None else hidden * weights.scale


def share_inputs(hidden: Floats, looked_up: Floats, weights: InputWeights, shared: dict[str, Floats]) -> None:
    """Compute the inputs ``[n, layers, size]`` of all layers from the embeddings of the tokens.

    ``looked_up`` are the rows of the tokens in the table of inputs.
    """
    tokens, size = len(hidden), weights.size
    own = times(hidden, weights.projection) * np.float32(hidden.shape[1] ** -0.5)
    own = normalized(own.reshape(tokens, -1, size), weights.norm)
    inputs = own + (looked_up * np.float32(size**0.5)).reshape(tokens, -1, size)
    shared[_SHARED] = inputs * np.float32(2**-0.5)


LAYER_INPUTS = PartCode(read_layer_inputs, run_layer_inputs)
