"""`lbrx score`: tables, JSON and pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lbrx
from lbrx.cli.status import ProgressLines
from lbrx.demo.models import demo_models
from lbrx.jobs.score.score import score
from support.cli_running import lbrx_command

SHIPPED = demo_models()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text(SHIPPED.prose_text.read_text(encoding="utf-8")[:600], encoding="utf-8")
    return path


def test_the_table_has_a_row_for_each_model(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = lbrx_command(capsys, "score", SHIPPED.base, SHIPPED.prose, "--text", text, "--context", 64)
    assert (done.code, done.err) == (0, "")
    heading, *rows, comparison = done.out.splitlines()
    assert comparison.startswith(f"{SHIPPED.prose} is better than {SHIPPED.base} by ")
    assert heading.split() == ["model", "perplexity", "+-", "loss", "bits/byte", "tokens", "tokens/s"]
    scores = score([SHIPPED.base, SHIPPED.prose], text, context=64)
    assert [row.split()[:2] for row in rows] == [[str(one.model), f"{one.perplexity:.4f}"] for one in scores]


def test_json_has_every_number(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", SHIPPED.prose, "--reference", SHIPPED.base, "--text", text, "--max-tokens", 50, "--json")
    done = lbrx_command(capsys, *arguments)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    reference, model = found["scores"]
    assert found["text"] == str(text)
    assert (reference["model"], model["model"]) == (str(SHIPPED.base), str(SHIPPED.prose))
    assert reference["tokens"] == model["tokens"] == 49
    assert "kl_mean" not in reference
    _, expected = score(SHIPPED.prose, text, reference=SHIPPED.base, max_tokens=50)
    assert expected.divergence is not None
    assert model["kl_mean"] == pytest.approx(expected.divergence.mean)
    assert model["kl_99_percent"] == pytest.approx(expected.divergence.percentile_99)
    assert model["same_top"] == expected.divergence.same_top
    assert model["perplexity"] == pytest.approx(expected.perplexity)


def test_activations_of_8_bits(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lbrx.quantize(SHIPPED.prose, tmp_path / "m.gguf", to="q4_0", allow_requantize=True)
    arguments = ("score", tmp_path / "m.gguf", "--text", text, "--max-tokens", 50, "--json")
    losses = []
    for bits in ("16", "8"):
        done = lbrx_command(capsys, *arguments, "--activation-bits", bits)
        assert (done.code, done.err) == (0, "")
        losses.append(json.loads(done.out)["scores"][0]["loss"])
    assert losses[0] == score(tmp_path / "m.gguf", text, max_tokens=50)[0].loss
    with lbrx.using(activation_bits=8):
        assert losses[1] == score(tmp_path / "m.gguf", text, max_tokens=50)[0].loss
    assert losses[0] != losses[1]
    assert abs(losses[0] - losses[1]) < 0.05
    assert lbrx_command(capsys, *arguments, "--activation-bits", "4").code == 2


def test_a_reference_adds_columns(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", SHIPPED.prose, "--reference", SHIPPED.base, "--text", text, "--max-tokens", 50)
    heading, first, second = lbrx_command(capsys, *arguments).out.splitlines()
    assert heading.split()[-5:] == ["KL", "KL", "99%", "same", "top"]
    assert first.split()[-1] == "reference"
    assert second.split()[-1].endswith("%")


def test_details_have_the_figures_of_json(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", SHIPPED.prose, "--reference", SHIPPED.base, "--text", text, "--max-tokens", 50)
    _, found = json.loads(lbrx_command(capsys, *arguments, "--json").out)["scores"]
    lines = lbrx_command(capsys, *arguments, "--details").out.splitlines()
    rows = {line[:40].strip(): line[40:].split() for line in lines}
    median = next(words for name, words in rows.items() if name.startswith("KL divergence, median"))
    assert f"{found['kl_median']:.5g}" in median
    change = next(words for name, words in rows.items() if name.startswith("change of probability, root"))
    assert f"{found['probability_change_rms']:.5g}" in change
    assert next(iter(found["kl_quantiles"])) == "0%"
    assert found["loss_interval"][0] < found["loss"] < found["loss_interval"][1]


def test_a_picture_is_drawn(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "scores.png"
    arguments = ("score", SHIPPED.prose, "--reference", SHIPPED.base, "--text", text, "--max-tokens", 50)
    assert lbrx_command(capsys, *arguments, "--plot", picture).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["scores.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context", 8, "--stride", 8], "windows of 8 tokens, one every 8: expected a stride of 1 to 7"),
        (["--plot", "scores.docx"], "expected a picture that ends in .png, .svg, .pdf"),
        (["--reference", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_told_in_one_line(
    arguments: list[object], message: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = lbrx_command(capsys, "score", SHIPPED.base, "--text", text, *arguments)
    assert done.code == 1
    assert done.out == ""
    assert message in done.err
    assert done.err.count("\n") == 1


def test_an_empty_text_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("")
    done = lbrx_command(capsys, "score", SHIPPED.base, "--text", tmp_path / "empty.txt")
    assert (done.code, done.out) == (1, "")
    assert "the text is empty" in done.err


def test_two_tokens_are_scored_without_errors_and_tests(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", SHIPPED.base, SHIPPED.prose, "--text", text, "--max-tokens", 2)
    done = lbrx_command(capsys, *arguments, "--details")
    assert (done.code, done.err) == (0, "")
    assert "nan" not in done.out
    assert "too few tokens to test the difference" in done.out
    assert done.out.splitlines()[1].split()[2] == "-"
    found = json.loads(lbrx_command(capsys, *arguments, "--json").out)
    assert found["scores"][0]["perplexity_error"] is None
    assert found["comparisons"][0]["p_value"] is None


def test_windows_of_llama_cpp_are_an_option(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", SHIPPED.prose, "--text", text, "--context", 64, "--windows", "llama.cpp", "--json")
    (found,) = json.loads(lbrx_command(capsys, *arguments).out)["scores"]
    (expected,) = score(SHIPPED.prose, text, context=64, windows="llama.cpp")
    assert (found["tokens"], found["bytes"]) == (expected.tokens, expected.scored_bytes)
    assert found["loss"] == pytest.approx(expected.loss)


def test_other_bytes_of_another_tokenizer_are_noted(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "letters"
    shutil.copytree(SHIPPED.base, other)
    document = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    document["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    done = lbrx_command(capsys, "score", SHIPPED.base, other, "--text", text, "--max-tokens", 50)
    sizes = [one.scored_bytes for one in score([other, SHIPPED.base], text, max_tokens=50)]
    assert sizes[0] == 49
    assert f"the tokenizers differ, so 49 to {sizes[1]} bytes of the text were scored" in done.err
    assert "is better" not in done.out
    done = lbrx_command(capsys, "score", SHIPPED.base, other, "--text", text)
    assert done.err == ""


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines("scoring", seconds_between=0.0)
    for done in range(4):
        lines(done, 3, "model\x1b.gguf")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == r"scoring: 0 of 3 (model\x1b.gguf)"
    assert second.startswith("scoring: 1 of 3, ")
    assert " s left (" in third
    ProgressLines("scoring")(1, 3, "model.gguf")
    assert capsys.readouterr().err == ""
