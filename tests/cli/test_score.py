"""`lbrx score`: tables, JSON and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
