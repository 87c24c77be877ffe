"""Layers that count, that are counted under the right key, and that a config can describe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lbrx import RecipeError, UsageError
from lbrx.jobs.merge.merge import merge, read_and_plan
from support.tiny import random_tensors, read_json, read_model, write_model

GRADIENT = "{merge_method: slerp, base_model: a, parameters: {t: [0, 1]}, models: [{model: a}, {model: b}]}"
OVERLAP = [(0, 3), (1, 4)]
TWICE = [(0, 4), (0, 4)]


def stack(ranges: list[tuple[int, int]]) -> str:
    slices = ", ".join(f"{{sources: [{{model: a, layer_range: [{first}, {end}]}}]}}" for first, end in ranges)
    return f"{{merge_method: passthrough, slices: [{slices}]}}"


def write_layers(folder: Path, layers: list[dict[str, tuple[int, ...]]], prefix: str, **config: Any) -> None:
    shapes = {f"{prefix}{number}.{name}": size for number, layer in enumerate(layers) for name, size in layer.items()}
    for seed, name in enumerate("ab"):
        tensors = random_tensors({"model.embed_tokens.weight": (8, 4), **shapes}, seed)
        write_model(folder / name, tensors, {"model_type": "unheard-of", **config})


@pytest.mark.parametrize("predicting", [0, 1, 2])
def test_a_gradient_ends_at_the_last_layer_and_not_at_those_that_predict(folder: Path, predicting: int) -> None:
    layers = [{"w": (4,)}] * 4 + [{"w": (4,), "eh_proj": (3,)}] * predicting
    write_layers(folder, layers, "model.layers.", num_hidden_layers=4, num_nextn_predict_layers=predicting)
    merge(GRADIENT, "out")
    a, b, out = (read_model(folder / name) for name in ("a", "b", "out"))
    assert out.keys() == a.keys()
    np.testing.assert_allclose(out["model.layers.0.w"], a["model.layers.0.w"], rtol=1e-6)
    for layer in range(3, 4 + predicting):
        np.testing.assert_allclose(out[f"model.layers.{layer}.w"], b[f"model.layers.{layer}.w"], rtol=1e-6)
    assert read_json(folder / "out/config.json")["num_nextn_predict_layers"] == predicting


def test_a_stack_has_no_layers_that_predict(folder: Path) -> None:
    layers = [{"w": (4,)}] * 4 + [{"w": (4,), "eh_proj": (3,)}]
    write_layers(folder, layers, "model.layers.", num_hidden_layers=4, num_nextn_predict_layers=1)
    assert read_and_plan(stack(OVERLAP), "out").warnings == (
        "2 tensors of a are in no slice and not in the output, such as 'model.layers.4.eh_proj'",
    )
    merge(stack(OVERLAP), "out")
    config = read_json(folder / "out/config.json")
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (6, 0)
    expected = read_model(folder / "a")["model.layers.2.w"]
    np.testing.assert_array_equal(read_model(folder / "out")["model.layers.4.w"], expected)
    with pytest.raises(RecipeError, match="ends beyond the 4 layers"):
        read_and_plan(stack([(0, 5)]), "out")


@pytest.mark.parametrize(
    ("prefix", "config", "expected"),
    [
        ("decoder.block.", {"num_layers": 2, "num_decoder_layers": 4}, {"num_layers": 2, "num_decoder_layers": 6}),
        ("decoder.block.", {"num_layers": 4}, {"num_layers": 4, "num_decoder_layers": 6}),
        (
            "model.decoder.layers.",
            {"num_hidden_layers": 2, "encoder_layers": 2, "decoder_layers": 4},
            {"num_hidden_layers": 2, "encoder_layers": 2, "decoder_layers": 6},
        ),
        ("model.decoder.layers.", {"num_hidden_layers": 4}, {"num_hidden_layers": 6}),  # no encoder, such as OPT
    ],
)
def test_a_stacked_decoder_is_counted_under_its_own_key(
    folder: Path, prefix: str, config: dict[str, int], expected: dict[str, int]
) -> None:
    has_encoder = "num_layers" in config or "encoder_layers" in config
    write_layers(folder, [{"w": (4,)}] * 4, prefix, is_encoder_decoder=has_encoder, **config)
    merge(stack(OVERLAP), "out")
    written = read_json(folder / "out/config.json")
    assert {key: value for key, value in written.items() if key.endswith("layers")} == expected


DENSE, MIXTURE = {"mlp.w": (4,)}, {"experts.w": (2, 4)}


@pytest.mark.parametrize(
    ("layers", "ranges", "config", "expected"),
    [
        ([DENSE, MIXTURE, MIXTURE, MIXTURE], OVERLAP, {}, None),
        ([DENSE, MIXTURE, MIXTURE, MIXTURE], TWICE, {}, "1 layers .* such as layer 4, which was layer 0 of a"),
        ([DENSE, DENSE, MIXTURE, DENSE], OVERLAP, {}, "1 layers .* such as layer 4, which was layer 2 of a"),
        ([DENSE, DENSE, MIXTURE, DENSE], OVERLAP, {"attn_layer_indices": [2]}, None),
        ([DENSE, DENSE, MIXTURE, DENSE], OVERLAP, {"layer_types": ["d", "d", "m", "d"]}, None),
        ([DENSE] * 4, OVERLAP, {"moe_layer_end_index": 3}, "config.json has 'moe_layer_end_index'"),
        ([DENSE] * 4, [(0, 4)], {"moe_layer_end_index": 3}, None),
        ([{"w": (4,)}, {"w": (5,)}] * 2, [(0, 2), (3, 4)], {}, "1 layers .* such as layer 2, which was layer 3 of a"),
        ([{"w": (4,)}, {"w": (5,)}] * 2, [(0, 2), (3, 4)], {"intermediate_size": [4, 5, 4, 5]}, None),
    ],
)
def test_stacks_that_the_config_cannot_describe_are_a_warning(
    folder: Path, layers: list[dict[str, tuple[int, ...]]], ranges: list[tuple[int, int]], config: Any, expected: str
) -> None:
    write_layers(folder, layers, "model.layers.", num_hidden_layers=4, **config)
    warnings = read_and_plan(stack(ranges), "out").warnings
    if expected is None:
        assert warnings == ()
    else:
        (warning,) = warnings
        assert re.match(expected, warning)


def test_inputs_for_each_layer_cannot_be_stacked_in_a_family_that_is_not_known(folder: Path) -> None:
    shapes = {"model.language_model.embed_tokens_per_layer.weight": (8, 12), "model.embed_tokens.weight": (8, 4)}
    layers = {f"model.layers.{number}.w": (4,) for number in range(4)}
    config = {"model_type": "gemma3n", "text_config": {"num_hidden_layers": 4, "hidden_size_per_layer_input": 3}}
    write_model(folder / "a", random_tensors({**shapes, **layers}, 0), config)
    with pytest.raises(UsageError, match=r"embed_tokens_per_layer.weight' of a has a part for each of 4 layers"):
        read_and_plan(stack(OVERLAP), "out")
    read_and_plan(stack([(0, 2), (2, 4)]), "out")
