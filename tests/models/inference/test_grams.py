"""Gram matrices of the inputs of the matrices of a layer."""

from __future__ import annotations

import numpy as np

from lbrx.demo.models import demo_models
from lbrx.models.inference import open_model
from lbrx.models.inference.grams import LayerGrams
from lbrx.models.inference.weights import normalized

TEXTS = ([1, 5, 9, 30, 7], [2, 2, 40])
ATTENTION = [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkvo"]


def test_matrices_that_read_the_same_array_share_a_gram_matrix() -> None:
    model = open_model(demo_models().base)
    grams = LayerGrams(model, TEXTS, lambda matrix: matrix.weight.name)
    assert grams.next_layer([]) == []
    attention, output = grams.next_layer(ATTENTION)
    assert attention.names == ATTENTION[:3]
    assert output.names == ATTENTION[3:]
    inputs = [list(model.layer_inputs(ids))[1] for ids in TEXTS]
    norm = model.layer_weights(1).norms[0]
    assert norm is not None
    rows = np.concatenate([normalized(each, norm) for each in inputs]).astype(np.float64)
    np.testing.assert_allclose(attention.total, rows.T @ rows, rtol=1e-4, atol=1e-4)
    assert attention.count == output.count == 8
