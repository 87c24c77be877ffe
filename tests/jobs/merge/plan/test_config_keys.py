"""The config.json of an output has the keys of its donor."""

from __future__ import annotations

import json
from pathlib import Path

import lbrx
from support.small_models import config, tensors, write_model


def test_a_merge_adds_no_key_to_a_config(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        write_model(tmp_path / name, tensors(seed), config("llama"))
    models = ", ".join(f"{{model: {tmp_path / name}, parameters: {{weight: 0.5}}}}" for name in "ab")
    lbrx.merge(f"{{merge_method: linear, dtype: float32, models: [{models}]}}", tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written == config("llama")  # without tie_word_embeddings, as the heads are of their own
