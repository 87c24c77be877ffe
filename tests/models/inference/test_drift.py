"""Gram matrices of inputs that drift away in a copy whose layers are quantized."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import lbrx
from lbrx.demo.models import demo_models
from lbrx.models.inference import open_model
from lbrx.models.inference.drift import DriftRun
from lbrx.models.inference.grams import LayerGrams
from lbrx.models.inference.weights import LayerWeights, Matrix, normalized

TEXTS = ([1, 5, 9, 30, 7], [2, 2, 40])
QUERY, OUTPUT = (f"model.layers.1.self_attn.{part}_proj.weight" for part in "qo")


def halved(weights: LayerWeights) -> LayerWeights:
    """A layer whose attention has half of the output."""
    old = weights.mixer.output
    return replace(
        weights, mixer=replace(weights.mixer, output=Matrix(lbrx.tensor(old.weight.numpy() * 0.5), old.bias))
    )


def test_drift_is_that_of_a_model_with_another_layer() -> None:
    model = open_model(demo_models().base)
    run = DriftRun(model, TEXTS)
    first, second = model.layer_weights(0), model.layer_weights(1)
    assert run.next_layer(first, lambda matrix: matrix.weight.name, []) == []
    run.finish_layer(halved(first))
    query, output = run.next_layer(second, lambda matrix: matrix.weight.name, [QUERY, OUTPUT])
    assert (query.names, output.names, query.count) == ([QUERY], [OUTPUT], 8)

    copy = open_model(demo_models().base)
    layers = [halved(copy.layer_weights(0)), *copy.weights.layers[1:]]
    object.__setattr__(copy, "_weights", replace(copy.weights, layers=layers))
    norm = second.norms[0]
    assert norm is not None
    exact, drifted = (
        np.concatenate([normalized(list(each.layer_inputs(ids))[1], norm) for ids in TEXTS]).astype(np.float64)
        for each in (model, copy)
    )
    assert np.abs(exact - drifted).max() > 0.01
    np.testing.assert_allclose(query.total, drifted.T @ drifted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(query.drift, (exact - drifted).T @ drifted, rtol=1e-3, atol=1e-4)


def test_without_quantized_layers_there_is_no_drift() -> None:
    model = open_model(demo_models().base)
    run, grams = DriftRun(model, TEXTS), LayerGrams(model, TEXTS, lambda matrix: matrix.weight.name)
    for number in range(2):
        weights = model.layer_weights(number)
        found = run.next_layer(weights, lambda matrix: matrix.weight.name, [QUERY, OUTPUT])
        expected = grams.next_layer([QUERY, OUTPUT])
        assert [each.names for each in found] == [each.names for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one.total, other.total)
            assert not one.drift.any()
        run.finish_layer(weights)
