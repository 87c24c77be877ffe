"""Scores: windows, losses, errors of the mean, divergences."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.demo.models import demo_models
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.jobs.quantize import quantize
from lbrx.jobs.score.score import score
from lbrx.jobs.score.tally import log_softmax, rounded_log_softmax
from lbrx.jobs.score.windows import overlapping_windows, separate_windows
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.text import open_tokenizer

SHIPPED = demo_models()
TEXT = SHIPPED.prose_text.read_text(encoding="utf-8")[:900]


@given(st.integers(0, 200), st.integers(2, 40), st.data())
def test_windows_predict_every_token_but_the_first_once(tokens: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context - 1))
    scored: list[int] = []
    for start, stop, first in overlapping_windows(tokens, context, stride):
        assert stop - start <= context
        assert start < first  # there is a token to predict from
        assert first == 1 or first - start >= min(context - stride, first)
        scored += range(first, stop)
    assert scored == list(range(1, tokens))


@given(st.integers(0, 300), st.integers(3, 40))
def test_windows_of_llama_cpp_score_second_halves(tokens: int, context: int) -> None:
    scored: list[int] = []
    for start, stop, first in separate_windows(tokens, context):
        assert (start % context, stop - start, first - start) == (0, context, context // 2 + 1)
        scored += range(first, stop)
    assert len(scored) == tokens // context * (context - 1 - context // 2)
    assert max(scored, default=-1) < tokens


def test_scores_in_windows_of_llama_cpp_begin_each_window_with_the_first_token(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(SHIPPED.base, base)
    settings = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}), encoding="utf-8")
    model, tokenizer = open_model(base), open_tokenizer(base)
    assert tokenizer.special.add_bos
    ids, ends = tokenizer.encode_with_ends(TEXT)
    expected, scored_bytes = [], 0
    for start in range(0, len(ids) - 63, 64):
        logits = model.logits([ids[0], *ids[start + 1 : start + 64]]).astype(np.float64)
        shares = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        expected += [-shares[place - 1, ids[start + place]] for place in range(33, 64)]
        scored_bytes += len(tokenizer.decode(ids[start + 33 : start + 64]).encode())
    (found,) = score(base, TEXT, context=64, windows="llama.cpp")
    assert found.tokens == len(expected) == len(ids) // 64 * 31
    assert found.loss == pytest.approx(np.mean(expected), rel=1e-5)
    assert found.scored_bytes == scored_bytes < ends[-1]
    assert found.bits_per_byte == pytest.approx(sum(expected) / math.log(2) / scored_bytes, rel=1e-5)
    for wrong, message in [
        ({"stride": 3}, "do not overlap; expected no stride"),
        ({"context": 2}, "score nothing; expected at least 3"),
        ({"context": 512, "max_tokens": 20}, "the text has 20 tokens, but windows like those of llama.cpp have 512"),
        ({"windows": "other"}, "unknown windows 'other'; expected overlapping or llama.cpp"),
    ]:
        with pytest.raises(UsageError, match=message):
            score(SHIPPED.base, TEXT, **{"windows": "llama.cpp", **wrong})  # type: ignore[arg-type]


@given(st.integers(1, 5), st.integers(2, 20), st.floats(0, 12), st.integers(0, 2**32 - 1))
def test_rounded_log_softmax_has_16_bits_over_16_nats(rows: int, columns: int, spread: float, seed: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal((rows, columns)) * spread).astype(np.float32)
    exact, found = log_softmax(logits), rounded_log_softmax(logits)
    largest = exact.max(axis=1, keepdims=True)
    floor = np.maximum(exact, largest - 16)
    np.testing.assert_allclose(found, floor, rtol=0, atol=16 / 65535 / 2 + 1e-5)
    extent = np.maximum(largest - floor.min(axis=1, keepdims=True), 1e-3)
    steps = (found - found.min(axis=1, keepdims=True)).astype(np.float64) / extent * 65535
    assert (np.abs(steps - np.rint(steps)) <= 1e-5 / extent * 65535).all()


def test_windows_beyond_the_context_of_the_model_are_warned_about() -> None:
    text = SHIPPED.prose_text.read_text(encoding="utf-8")[:4000]
    with pytest.warns(UserWarning, match=r"was made for 512 tokens; windows of 600 score it beyond that"):
        score(SHIPPED.base, text, context=600, max_tokens=520)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(SHIPPED.base, text, context=600, max_tokens=100)  # which are few


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_log_softmax_is_that_of_f64(rows: int, columns: int, seed: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal((rows, columns)) * 30).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(log_softmax(logits), expected, rtol=1e-6, atol=2e-5)


def token_losses(path: Path, ids: list[int], context: int, stride: int) -> npt.NDArray[np.float64]:
    model = open_model(path)
    losses = []
    for start, stop, first in overlapping_windows(len(ids), context, stride):
        logits = model.logits(ids[start:stop]).astype(np.float64)
        shares = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        losses += [-shares[place - 1 - start, ids[place]] for place in range(first, stop)]
    return np.array(losses)


@pytest.mark.parametrize(("context", "stride"), [(64, 32), (64, 63), (50, 7), (1000, 10)])
def test_loss_and_its_error_are_those_of_the_tokens(context: int, stride: int) -> None:
    ids = open_tokenizer(SHIPPED.base).encode(TEXT)
    losses = token_losses(SHIPPED.base, ids, context, stride)
    (found,) = score(SHIPPED.base, TEXT, context=context, stride=stride)
    assert found.tokens == len(ids) - 1 == losses.size
    assert found.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert found.loss_error == pytest.approx(losses.std(ddof=1) / math.sqrt(losses.size), rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(losses.mean()), rel=1e-4)
    assert found.perplexity_error == pytest.approx(found.perplexity * found.loss_error)
    text_bytes = len(open_tokenizer(SHIPPED.base).decode(ids[1:]).encode())
    assert found.bits_per_byte == pytest.approx(losses.sum() / math.log(2) / text_bytes, rel=1e-5)
    assert found.tokens_per_second > 0
    assert found.divergence is None


def test_several_models_come_in_their_order_and_the_prose_model_knows_prose() -> None:
    scores = score([SHIPPED.code, SHIPPED.prose], TEXT, context=64)
    assert [one.model for one in scores] == [SHIPPED.code, SHIPPED.prose]
    assert scores[1].loss < scores[0].loss


def test_divergence_from_a_reference_is_that_of_the_logits() -> None:
    ids = open_tokenizer(SHIPPED.base).encode(TEXT)[:60]
    reference, model = score(SHIPPED.prose, TEXT, reference=SHIPPED.base, context=64, max_tokens=60)
    shares = []
    for path in (SHIPPED.base, SHIPPED.prose):
        logits = open_model(path).logits(ids[:-1]).astype(np.float64)
        shares.append(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    expected = (np.exp(shares[0]) * (shares[0] - shares[1])).sum(axis=1)
    assert (reference.model, reference.divergence) == (SHIPPED.base, None)
    assert model.divergence is not None
    assert model.divergence.mean == pytest.approx(expected.mean(), rel=1e-4)
    assert model.divergence.percentile_99 == pytest.approx(np.percentile(expected, 99), rel=1e-4)
    assert model.divergence.same_top == np.mean(shares[0].argmax(1) == shares[1].argmax(1))


def test_finer_quantizations_are_closer_to_the_model(tmp_path: Path) -> None:
    files = [tmp_path / f"{codec}.gguf" for codec in ("q8_0", "q4_0", "q2_k")]
    for path in files:
        quantize(SHIPPED.base, path, to=path.stem)
    _, fine, coarse, coarsest = score(files, TEXT, reference=SHIPPED.base, context=128)
    assert fine.divergence is not None
    assert coarse.divergence is not None
    assert coarsest.divergence is not None
    assert 0 < fine.divergence.mean < 1e-3 < coarse.divergence.mean < coarsest.divergence.mean
    assert fine.divergence.same_top > coarsest.divergence.same_top


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = score(SHIPPED.prose, TEXT, reference=SHIPPED.base, context=64)
    monkeypatch.setattr("lbrx.models.inference.language_model._BLOCK_LOGIT_BYTES", 4 * 1024 * 5)
    monkeypatch.setattr("lbrx.jobs.score.tally._PIECE_ELEMENTS", 3 * 1024)
    cut = score(SHIPPED.prose, TEXT, reference=SHIPPED.base, context=64)
    for one, other in zip(whole, cut, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert whole[1].divergence is not None
    assert cut[1].divergence is not None
    assert cut[1].divergence.mean == pytest.approx(whole[1].divergence.mean, rel=1e-5)


def test_progress_goes_up_to_all_windows() -> None:
    steps: list[tuple[int, int]] = []
    score([SHIPPED.base, SHIPPED.code], TEXT, context=64, progress=lambda done, total, _: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == list(range(1, len(steps) + 1))


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_wrong_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model to score"):
        score([], TEXT)
    with pytest.raises(UsageError, match="the text is empty"):
        score(SHIPPED.base, "")
    with pytest.raises(UsageError, match="the text has 1 token; expected at least 2"):
        score(SHIPPED.base, "a")
    with pytest.raises(UsageError, match="windows of 16 tokens, one every 16: expected a stride of 1 to 15"):
        score(SHIPPED.base, TEXT, context=16, stride=16)
    with pytest.raises(FileError, match=r"none\.txt: cannot be read"):
        score(SHIPPED.base, tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 and more")
    with pytest.raises(FormatError, match=r"latin\.txt: byte 3 is not UTF-8"):
        score(SHIPPED.base, tmp_path / "latin.txt")


def test_the_name_of_a_file_is_not_scored_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prose.txt").write_text("And the king said unto him, Go in peace.")
    with pytest.raises(UsageError, match=r"'prose.txt' is the name of a file; .* give pathlib.Path\('prose.txt'\)"):
        score(demo_models().prose, "prose.txt")
    assert score(demo_models().prose, Path("prose.txt"))[0].tokens > 8


def test_a_reference_with_another_tokenizer_is_told(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((SHIPPED.base / name).read_bytes())
    document = (SHIPPED.base / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(document.replace('"Ġthe":', '"Ġthx":'), encoding="utf-8")
    with pytest.raises((UsageError, FormatError)):
        score(SHIPPED.prose, TEXT, reference=tmp_path, context=64)
