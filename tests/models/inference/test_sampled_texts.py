"""Texts that a model writes, side by side: each as if it was written alone."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.inference.sampled_texts import runs_side_by_side, sampled_texts
from support.references import THREADS

PROMPTS = np.array([[5, 6, 7], [8, 9, 10], [300, 301, 302]])


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return open_model(demo_models().prose)


def test_tokens_are_drawn_with_the_probabilities_that_follow_the_text_so_far(model: LanguageModel) -> None:
    """Each token is the one at a random point of the cumulated probabilities, computed here from the text alone."""
    texts = sampled_texts(model, PROMPTS, 12, seed=3, forbidden=[0])
    for number, text in enumerate(texts):
        random = np.random.Generator(np.random.Philox(key=[3, number]))
        logits = model.logits(text[:-1])[2:].astype(np.float64)
        logits[:, 0] = -np.inf
        shares = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
        for row, token in zip(shares, text[3:], strict=True):
            point = random.random() * row[-1]
            assert (row[token - 1] if token else 0.0) - 1e-3 * row[-1] <= point <= row[token] + 1e-3 * row[-1]


def test_texts_do_not_depend_on_threads_or_each_other(model: LanguageModel) -> None:
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(sampled_texts(model, PROMPTS, 20, seed=1))
    assert all(np.array_equal(found[0], each) for each in found)
    assert np.array_equal(sampled_texts(model, PROMPTS[:2], 20, seed=1), found[0][:2])
    assert not np.array_equal(sampled_texts(model, PROMPTS, 20, seed=2), found[0])


def test_models_with_states_write_texts_one_after_the_other(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lbrx.models.inference.sampled_texts as module

    assert runs_side_by_side(model)
    monkeypatch.setattr(module, "runs_side_by_side", lambda _: False)
    alone = sampled_texts(model, PROMPTS, 12, seed=1, forbidden=[0])
    assert alone.shape == (3, 12)
    assert np.array_equal(alone[:, :3], PROMPTS)
    assert not (alone == 0).any()


def test_a_text_that_ends_early_is_continued_another_way(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    import lbrx.models.inference.sampled_texts as module

    monkeypatch.setattr(module, "runs_side_by_side", lambda _: False)
    (text,) = sampled_texts(model, PROMPTS[:1], 60, forbidden=range(0, model.spec.vocabulary, 8))
    assert not (text[3:] % 8 == 0).any()
    periods = [period for period in range(1, 30) if np.array_equal(text[3:-period], text[3 + period :])]
    assert periods == []
    (repeated,) = sampled_texts(model, PROMPTS[:1], 9, forbidden=range(model.spec.vocabulary))
    assert repeated.tolist() == [*PROMPTS[0]] * 3


def test_prompts_are_needed(model: LanguageModel) -> None:
    with pytest.raises(UsageError, match="at least one token"):
        sampled_texts(model, np.empty((2, 0), np.int64), 5)
