"""Tokens drawn one after the other, and their text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import UsageError
from lbrx.models.inference import LanguageModel, Sampling, open_model
from lbrx.models.inference.sampling import Sampler
from lbrx.models.inference.streaming import text_pieces
from support.tiny_decoders import tiny_arrays, tiny_config, write_tiny

PROMPT = [3, 1, 4]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    config = tiny_config("llama")
    return open_model(write_tiny(tmp_path_factory.mktemp("llama"), config, tiny_arrays(config)))


def test_greedy_tokens_are_the_likeliest_after_all_before_them(model: LanguageModel) -> None:
    tokens = list(model.generate(PROMPT, 12))
    assert len(tokens) == 12
    whole = [*PROMPT, *tokens]
    likeliest = model.logits(whole).argmax(axis=1)
    assert tokens == likeliest[len(PROMPT) - 1 : -1].tolist()


def test_a_stop_token_ends_the_text(model: LanguageModel) -> None:
    tokens = list(model.generate(PROMPT, 12))
    stopped = list(model.generate(PROMPT, 12, stop_ids=[tokens[5]]))
    assert stopped == tokens[: tokens.index(tokens[5])]


def test_a_seed_draws_the_same_tokens_and_another_others(model: LanguageModel) -> None:
    texts = [tuple(model.generate(PROMPT, 20, Sampling(temperature=1.0, seed=seed))) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_long_prompt_goes_through_in_blocks(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [token % 90 for token in range(30)]
    expected = list(model.generate(prompt, 6))
    monkeypatch.setattr("lbrx.models.inference.language_model._BLOCK_TOKENS", 7)
    assert list(model.generate(prompt, 6)) == expected


@pytest.mark.parametrize(("ids", "count", "message"), [([], 5, "at least one token"), ([1], -1, "max_tokens is -1")])
def test_wrong_arguments_are_told_before_the_first_token(
    model: LanguageModel, ids: list[int], count: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        model.generate(ids, count)


# -- drawing -----------------------------------------------------------------------------------------------------------

LOGITS = np.log(np.array([0.05, 0.5, 0.3, 0.15], np.float32))


def drawn(sampling: Sampling, count: int = 4000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.draw(LOGITS) for _ in range(count))


def test_tokens_are_drawn_by_their_shares() -> None:
    counts = drawn(Sampling(temperature=1.0))
    for token, share in enumerate((0.05, 0.5, 0.3, 0.15)):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)  # 4 standard errors are 0.032


def test_temperature_sharpens() -> None:
    expected = np.array([0.05, 0.5, 0.3, 0.15]) ** 2
    counts = drawn(Sampling(temperature=0.5))
    assert counts[1] / 4000 == pytest.approx(expected[1] / expected.sum(), abs=0.03)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=2), {1, 2}),
        (Sampling(temperature=1.0, top_k=1), {1}),
        (Sampling(temperature=1.0, top_k=99), {0, 1, 2, 3}),
        (Sampling(temperature=1.0, top_p=0.4), {1}),
        (Sampling(temperature=1.0, top_p=0.7), {1, 2}),
        (Sampling(temperature=1.0, top_k=3, top_p=0.99), {1, 2, 3}),
    ],
)
def test_only_the_likeliest_tokens_are_drawn_from(sampling: Sampling, kept: set[int]) -> None:
    assert set(drawn(sampling)) == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1; expected 0"),
        ({"top_p": 0.0}, "top_p is 0.0; expected more than 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_senseless_settings_are_told(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**arguments)  # type: ignore[arg-type]


# -- text --------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=40), st.text(max_size=10))
def test_pieces_join_to_the_whole_text(text: str, before: str) -> None:
    """The worst tokenizer for this: a token is a byte."""
    clean = [part.replace("\N{REPLACEMENT CHARACTER}", "?") for part in (text, before)]

    def decode(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    tokens = list(clean[0].encode(errors="ignore"))
    pieces = list(text_pieces(decode, tokens, before=list(clean[1].encode(errors="ignore"))))  # type: ignore[arg-type]
    assert "".join(pieces).encode() == bytes(tokens)
    assert "" not in pieces


def test_half_a_character_at_the_end_is_given_out_too(tmp_path: Path) -> None:
    del tmp_path
    assert list(text_pieces(lambda ids: bytes(ids).decode(errors="replace"), [104, 0xC3])) == ["h", "\ufffd"]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_no_token_is_drawn_from_logits_that_are_not_finite(sampling: Sampling) -> None:
    with pytest.raises(UsageError, match="the logits are not finite, so no token can be chosen"):
        Sampler(sampling).draw(np.array([1.0, np.nan, 2.0], np.float32))
    assert Sampler(sampling).draw(np.array([-np.inf, 1.0], np.float32)) == 1
