"""One decoder block: a mixer, such as attention, then an MLP, each with norms and a residual connection.

The functions run on arrays, or on values that are being recorded (`lbrx.engine.recording`). They must therefore not
depend on the numbers in an array; `run_in_step` wraps code that does, `run_on_state` code that keeps a state.
"""

from __future__ import annotations

import numpy as np

from lbrx.engine.key_values import KeyValueCache
from lbrx.models.inference.parts import LayerRun, code_of
from lbrx.models.inference.positions import Positions
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import Floats, LayerWeights, NormWeights, normalized


def run_block(
    hidden: Floats,
    spec: ModelSpec,
    number: int,
    weights: LayerWeights,
    positions: Positions,
    cache: KeyValueCache,
) -> Floats:
    """Return the hidden states ``[n, hidden]`` of new tokens after a layer; store what it remembers in the cache."""
    run = LayerRun(spec, spec.layers[number], positions, cache)
    hidden = _run_layer(hidden, weights, run)
    after = spec.decoder.after
    return hidden if after is None else code_of(after).run(hidden, weights.after, run)


def _run_layer(hidden: Floats, weights: LayerWeights, run: LayerRun) -> Floats:
    spec = run.spec
    before_mixer, after_mixer, before_mlp, after_mlp = weights.norms
    mixer, mlp = run.layer.mixer, run.layer.mlp
    inputs, normed = hidden, None
    if mixer is not None:
        normed = _normed(hidden, before_mixer)
        mixed = _normed(code_of(mixer).run(normed, weights.mixer, run), after_mixer)
        hidden = hidden + _scaled(mixed, spec.residual_scale)
    if mlp is None:
        return hidden
    if normed is None or not (spec.is_parallel and spec.shares_norm):
        normed = _normed(inputs if spec.is_parallel else hidden, before_mlp)
    updated = _normed(code_of(mlp).run(normed, weights.mlp, run), after_mlp)
    return hidden + _scaled(updated, spec.residual_scale)


def _normed(values: Floats, norm: NormWeights | None) -> Floats:
    return values if norm is None else normalized(values, norm)


def _scaled(values: Floats, factor: float | None) -> Floats:
    return values if factor is None else values * np.float32(factor)
