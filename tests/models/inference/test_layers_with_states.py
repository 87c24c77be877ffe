"""Layers that remember a state instead of keys: pieces of a text, recorded passes, and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lbrx.devices.cpu.device import CpuDevice
from lbrx.models.inference import LanguageModel, open_model
from lbrx.settings import using
from support.family_goldens import golden

MODELS = ("falcon_h1", "granitemoehybrid", "jamba", "lfm2", "mamba", "mamba2", "nemotron_h-moe", "qwen3_next")
IDS = np.random.default_rng(1).integers(0, 64, 33)
PIECES = (9, 1, 1, 1, 3, 3, 1, 14)  # the cache begins with room for 4 tokens


@pytest.fixture(params=MODELS)
def model(request: Any, tmp_path: Path) -> LanguageModel:
    return open_model(golden(request.param).write(tmp_path / "model"))


def in_pieces(model: LanguageModel) -> Any:
    cache, start, logits = model.new_cache(capacity=4), 0, []
    for tokens in PIECES:
        logits.append(model.logits(IDS[start : start + tokens], cache))
        start += tokens
    return np.concatenate(logits)


def test_pieces_give_the_logits_of_the_whole_text(model: LanguageModel) -> None:
    whole = model.logits(IDS)
    assert np.abs(in_pieces(model) - whole).max() <= 1e-4 * np.abs(whole).max()


def test_recorded_passes_give_the_bits_of_single_operations(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = in_pieces(model)
    monkeypatch.setattr(CpuDevice, "compile_step", lambda *_: None)
    assert in_pieces(open_model(model.path)).tobytes() == recorded.tobytes()


def test_threads_do_not_change_the_bits(model: LanguageModel) -> None:
    with using(threads=1):
        expected = in_pieces(model)
    with using(threads=3):
        assert in_pieces(open_model(model.path)).tobytes() == expected.tobytes()


def test_texts_do_not_share_states(model: LanguageModel) -> None:
    first = in_pieces(model)
    assert in_pieces(model).tobytes() == first.tobytes()


def test_a_state_cannot_go_back(model: LanguageModel) -> None:
    cache = model.new_cache()
    model.logits(IDS[:5], cache)
    assert not cache.shorten(3)
    assert cache.length == 5
