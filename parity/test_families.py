"""Merged and stacked models of every family load in transformers and compute there what they compute here.

``parity/make_family_goldens.py`` compares the families themselves with transformers, llama.cpp and mlx_lm.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_cases import Case, all_cases
from peer_transformers import DECODERS, compute, load_model, make_model

import lbrx
from lbrx.models.architectures import find_family
from lbrx.models.inference import open_model
from support.seeded_weights import write_seeded

IDS = [3, 14, 15, 9, 26, 53, 58, 9, 7, 9, 32, 38]
RELATIVE = 1e-4
CASES = {name: case for name, case in all_cases().items() if case.auto is not None}


def made(name: str, folder: Path) -> tuple[Case, dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    config, _ = make_model(CASES[name], folder)
    return CASES[name], config


@pytest.mark.parametrize("name", CASES)
def test_a_merged_model_loads(name: str, tmp_path: Path) -> None:
    case, _ = made(name, tmp_path / "a")
    shapes = {name: tensor.shape for name, tensor in lbrx.open(tmp_path / "a").items()}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write_seeded(tmp_path / "b" / "model.safetensors", shapes, copy=1)
    models = ", ".join(f"{{model: {tmp_path / each}, parameters: {{weight: 1}}}}" for each in "ab")
    lbrx.merge(f"{{merge_method: linear, models: [{models}]}}", tmp_path / "out")
    a, b, merged = (dict(load_model(case.auto, tmp_path / each).named_parameters()) for each in ("a", "b", "out"))
    for each, values in merged.items():
        torch.testing.assert_close(values, (a[each] + b[each]) / 2)


# Stacks that transformers loads with other settings than those of the source, or not at all.
DIFFERENT_STACKS = {
    "gpt2-scales": "attention is scaled by the number of the layer",
    "falcon-rw": "eager attention of transformers 5 adds the slopes of ALiBi twice",
    "gemma4": "transformers expects each type of layer to have one set of sizes",
    "gemma4-inputs": "transformers expects each type of layer to have one set of sizes",
    "minimax": "every layer remembers how many layers there are",
    "jamba": "the config describes attention and experts by periods only; the merge warns",
}


def stack_case(name: str) -> Any:
    reason = DIFFERENT_STACKS.get(name)
    marks = () if reason is None else (pytest.mark.xfail(reason=reason, strict=True),)
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [stack_case(name) for name in CASES if CASES[name].auto in DECODERS])
def test_a_stacked_model_loads_and_its_layers_are_those_of_the_source(name: str, tmp_path: Path) -> None:
    case, config = made(name, tmp_path / "a")
    family = find_family(config)
    count = family.layer_count(config)
    sources = [0, *range(count), count - 1]
    slices = ", ".join(
        f"{{sources: [{{model: {tmp_path / 'a'}, layer_range: [{start}, {stop}]}}]}}"
        for start, stop in ((0, 1), (0, count), (count - 1, count))
    )
    lbrx.merge(f"{{merge_method: passthrough, slices: [{slices}]}}", tmp_path / "out")
    original, stacked = (load_model(case.auto, tmp_path / each) for each in ("a", "out"))
    before, after = layers(original), layers(stacked)
    assert len(after) == len(sources)
    for number, source in enumerate(sources):
        assert settings(after[number]) == settings(before[source]), (number, source)
    if family.decoder is not None:
        expected = compute(stacked, IDS)
        found = open_model(tmp_path / "out").logits(IDS)
        assert np.abs(found - expected).max() <= RELATIVE * np.abs(expected).max()


def layers(model: Any) -> Any:
    """Return the first list of modules that is not part of a tower."""
    lists = [
        each for name, each in model.named_modules() if isinstance(each, torch.nn.ModuleList) and "vis" not in name
    ]
    return lists[0]


def settings(layer: Any) -> dict[str, Any]:
    """Return what a layer and its modules keep of the config, but for their position."""
    plain = (bool, int, float, str, type(None))
    return {
        f"{name}.{key}": value
        for name, module in layer.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, plain) and not key.startswith("_") and "layer_idx" not in key and key != "layer_number"
    }
