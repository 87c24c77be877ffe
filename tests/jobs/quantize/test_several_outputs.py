"""Several outputs of one model: the bytes of single runs, one calibration, a model card, and runs that resume."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, UsageError
from lbrx.jobs.quantize.figures import read_record
from lbrx.jobs.upload.upload import plan_upload
from support.cli_running import lbrx_command

SHIPPED = demo_models()
TYPES = ["q4_k_m", "q8_0", "mlx_4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SHIPPED.prose, tmp_path / "prose")
    text = SHIPPED.prose_text.read_text(encoding="utf-8")
    (tmp_path / "calibration.txt").write_text(text[:3000], encoding="utf-8")
    (tmp_path / "held_out.txt").write_text(text[-1500:], encoding="utf-8")
    return tmp_path


def test_outputs_are_those_of_single_runs(folder: Path) -> None:
    measured: list[int] = []
    out = folder / "out"
    lbrx.quantize(
        folder / "prose",
        out,
        TYPES,
        calibrate=folder / "calibration.txt",
        measuring=lambda done, _total, _name: measured.append(done),
    )
    assert measured == list(range(len(measured)))  # the text was run once
    assert len(measured) > 1
    matrix = out / "prose.imatrix.gguf"
    lbrx.quantize(folder / "prose", folder / "single.gguf", "q4_k_m", imatrix=matrix)
    lbrx.quantize(folder / "prose", folder / "single", "mlx_4", imatrix=matrix)
    assert (out / "prose-Q4_K_M.gguf").read_bytes() == (folder / "single.gguf").read_bytes()
    for file in (folder / "single").iterdir():
        assert (out / "prose-MLX-4bit" / file.name).read_bytes() == file.read_bytes()
    names = {"prose-Q4_K_M.gguf", "prose-Q8_0.gguf", "prose-MLX-4bit", matrix.name, "quantized.json", "README.md"}
    assert {path.name for path in out.iterdir()} == names


def test_a_stopped_run_resumes(folder: Path) -> None:
    def stop(state: lbrx.Progress) -> None:
        if state.tensor.startswith("prose-Q8_0"):
            raise KeyboardInterrupt

    out = folder / "out"
    with pytest.raises(KeyboardInterrupt):
        lbrx.quantize(folder / "prose", out, TYPES, progress=stop)
    first = out / "prose-Q4_K_M.gguf"
    before = first.stat()
    assert not (out / "prose-Q8_0.gguf").exists()
    assert not (out / "README.md").exists()
    result = lbrx.quantize(folder / "prose", out, TYPES)
    assert result.resumed_tensors >= len(lbrx.open(first))
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    again = lbrx.quantize(folder / "prose", out, TYPES)
    assert again.resumed_tensors == again.tensors
    more = lbrx.quantize(folder / "prose", out, ["q6_k"])
    assert more.resumed_tensors == 0
    assert "prose-MLX-4bit" in (out / "README.md").read_text()


def test_what_a_killed_run_left_is_no_obstacle_to_an_upload(folder: Path) -> None:
    out, options = folder / "out", {"calibrate": folder / "calibration.txt"}
    lbrx.quantize(folder / "prose", out, ["q4_0"], **options)  # type: ignore[arg-type]
    names = sorted(path.name for path in out.iterdir())
    (out / ".prose-Q4_0.gguf.feedback").mkdir()
    (out / ".prose.imatrix.gguf.partial.npz").touch()
    (out / ".README.md.0123456789abcdef.partial").touch()
    with pytest.raises(UsageError, match="is unfinished; run the command that writes it again"):
        plan_upload(out, "me/model")
    lbrx.quantize(folder / "prose", out, ["q4_0"], **options)  # type: ignore[arg-type]
    names.remove("quantized.json")
    assert [file.name for file in plan_upload(out, "me/model")] == names


def test_two_runs_into_one_directory(folder: Path) -> None:
    def other(state: lbrx.Progress) -> None:
        if state.tensor.startswith("prose-Q8_0") and not (out / "prose-Q4_0.gguf").exists():
            lbrx.quantize(folder / "prose", out, ["q4_0"])

    out = folder / "out"
    lbrx.quantize(folder / "prose", out, ["q8_0"], progress=other, threads=1)
    assert sorted(read_record(out)) == ["prose-Q4_0.gguf", "prose-Q8_0.gguf"]
    assert "2 outputs" in (out / "README.md").read_text()


def test_an_output_that_was_published_by_a_killed_run_is_kept(folder: Path) -> None:
    out = folder / "out"
    lbrx.quantize(folder / "prose", out, ["q8_0", "q4_0"])
    record = (out / "quantized.json").read_text()
    states = record[record.rindex('"states": {') : record.rindex(',\n   "quality"')]
    (out / "quantized.json").write_text(record.replace(states, '"states": null'))
    assert read_record(out)["prose-Q8_0.gguf"].states is None
    result = lbrx.quantize(folder / "prose", out, ["q8_0", "q4_0"])
    assert result.resumed_tensors == result.tensors


def test_an_older_output_with_the_same_header_is_not_taken_for_a_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed before it begins with an output; the file under its name is of other weights."""
    module = import_module("lbrx.jobs.quantize.quantize")

    def killed(*_given: object, **_options: object) -> None:
        raise KeyboardInterrupt

    out, weights = folder / "out", "model.safetensors"
    lbrx.quantize(folder / "prose", out, ["q4_0"])
    old = (out / "prose-Q4_0.gguf").read_bytes()
    shutil.copyfile(SHIPPED.code / weights, folder / "prose" / weights)
    with monkeypatch.context() as context:
        context.setattr(module, "plan_and_execute", killed)
        with pytest.raises(KeyboardInterrupt):
            lbrx.quantize(folder / "prose", out, ["q4_0"], overwrite=True)
    lbrx.quantize(folder / "prose", out, ["q4_0"], overwrite=True)
    new = (out / "prose-Q4_0.gguf").read_bytes()
    assert new != old
    lbrx.quantize(folder / "prose", folder / "single.gguf", "q4_0")
    assert new == (folder / "single.gguf").read_bytes()


def test_outputs_with_error_feedback_are_others(folder: Path) -> None:
    out, text, name = folder / "out", folder / "calibration.txt", "prose-Q4_0.gguf"
    text.write_text(text.read_text()[:600])
    found = []
    for options in ({}, {"feedback": True}, {"feedback": True, "shrink": 0.9}):
        lbrx.quantize(folder / "prose", out, ["q4_0"], calibrate=text, overwrite=True, **options)  # type: ignore[arg-type]
        found.append((out / name).read_bytes())
    assert len(set(found)) == 3


def test_other_files_are_not_replaced(folder: Path) -> None:
    out = folder / "out"
    out.mkdir()
    (out / "prose-Q8_0.gguf").write_bytes(b"mine")
    with pytest.raises(FileError, match=r"prose-Q8_0.gguf: exists; --overwrite replaces it"):
        lbrx.quantize(folder / "prose", out, TYPES)
    assert [path.name for path in out.iterdir()] == ["prose-Q8_0.gguf"]  # nothing was begun
    (out / "prose-Q8_0.gguf").unlink()
    lbrx.quantize(folder / "prose", out, ["q8_0"])
    with (out / "prose-Q8_0.gguf").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(FileError, match="exists"):
        lbrx.quantize(folder / "prose", out, ["q8_0"])


def test_the_card_has_the_figures_of_score(folder: Path) -> None:
    out, text = folder / "out", folder / "held_out.txt"
    lbrx.quantize(folder / "prose", out, ["q4_0", "q8_0"], score=text)
    _, coded = lbrx.score(out / "prose-Q4_0.gguf", text, reference=folder / "prose")
    assert coded.divergence is not None
    interval = coded.divergence.mean_interval
    row = next(line for line in (out / "README.md").read_text().splitlines() if "prose-Q4_0.gguf" in line)
    assert f"| {interval.value:.5f} ({interval.low:.5f} to {interval.high:.5f}) |" in row
    assert f"| {coded.perplexity:.5g} (" in row
    quality = {name: each.quality for name, each in read_record(out).items()}
    eight, four = quality["prose-Q8_0.gguf"], quality["prose-Q4_0.gguf"]
    assert eight is not None
    assert four is not None
    assert 0 < eight.divergence[0] < four.divergence[0] / 10


def test_figures_of_different_texts_are_not_in_one_table(folder: Path) -> None:
    out = folder / "out"
    (folder / "other.txt").write_text((folder / "held_out.txt").read_text()[:700])
    lbrx.quantize(folder / "prose", out, ["q8_0"], score=folder / "held_out.txt")
    lbrx.quantize(folder / "prose", out, ["q4_0"])
    assert "tokens of `held_out.txt`" in (out / "README.md").read_text()
    lbrx.quantize(folder / "prose", out, ["q4_0"], score=folder / "other.txt")
    card = (out / "README.md").read_text()
    assert "tokens of `other.txt`" in card
    rows = {line.split("`")[1]: line for line in card.splitlines() if line.startswith("| `")}
    assert "to" in rows["prose-Q4_0.gguf"]
    assert rows["prose-Q8_0.gguf"].endswith("|  |  |  |")


def test_split_outputs_of_earlier_runs_are_on_the_card(folder: Path) -> None:
    out = folder / "out"
    lbrx.quantize(folder / "prose", out, ["q8_0", "mlx_4"], max_shard_bytes="600KB")
    lbrx.quantize(folder / "prose", out, ["q4_0"])
    assert "3 outputs" in (out / "README.md").read_text()
    (out / "prose-Q4_0.gguf").unlink()
    lbrx.quantize(folder / "prose", out, ["q5_0"])
    card = (out / "README.md").read_text()
    assert "`prose-Q8_0.gguf`" in card
    assert "`prose-Q4_0.gguf`" not in card


@pytest.mark.parametrize("name", ["prose-Q8_0.gguf", "prose-MLX-4bit"])
def test_an_output_in_the_way_is_reported_before_texts_are_run(folder: Path, name: str) -> None:
    (folder / "out" / name).mkdir(parents=True)
    (folder / "out" / name / "mine.txt").write_bytes(b"mine")
    with pytest.raises(FileError, match=name):
        lbrx.quantize(folder / "prose", folder / "out", TYPES, calibrate=folder / "calibration.txt")
    assert [path.name for path in (folder / "out").iterdir()] == [name]


@pytest.mark.parametrize(
    ("out", "types", "options", "message"),
    [
        ("out.gguf", ["q8_0", "q4_0"], {}, "several outputs need a directory"),
        ("out", ["q4_k", "q4_k_m"], {}, "'q4_k_m' is given twice"),
        ("out", [], {}, "there are no types"),
        ("out", ["q8_0", "q9"], {}, "unknown quantization 'q9'"),
        ("out", ["q8_0"], {"calibrate": "held_out.txt", "score": "held_out.txt"}, "expected another one to score"),
        ("out", ["q8_0"], {"target_bpw": 4.0}, "more than one is given"),
        ("out", ["q8_0", "q9"], {"calibrate": "generated"}, "unknown quantization 'q9'"),
        ("out", ["q8_0"], {"feedback": True}, "--feedback needs --calibrate"),
        ("out", ["q8_0"], {"calibrate": "calibration.txt", "feedback": True, "prune_layers": "1"}, "--prune-layers"),
        ("out", ["q8_0"], {"calibrate": "calibration.txt", "feedback": True, "shrink": 2.0}, "shrinkage of 2.0"),
    ],
)
def test_wrong_input(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    types: list[str],
    options: dict[str, object],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match=message):
        lbrx.quantize("prose", out, types, **options)  # type: ignore[arg-type]
    assert {path.name for path in folder.iterdir()} == {"prose", "calibration.txt", "held_out.txt"}


@pytest.mark.parametrize(
    ("out", "to", "options", "message"),
    [
        ("out", "q4_0", {}, "out: a GGUF model is a file"),
        ("out.gguf", "mlx_4", {}, "mlx_4 is not made in GGUF files"),
        ("out", "ct_fp8", {}, "ct_fp8 is rounded without importances"),
        ("out", None, {"target_bpw": 4.5}, "out: a GGUF model is a file"),
        ("out.gguf", None, {"target_bpw": 4.5, "prune_layers": "1"}, "cannot be used with --prune-layers"),
        ("out.gguf", "q4_0", {"calibrate": ["generated", "empty.txt"]}, "empty.txt: is empty"),
        ("out", "q4_0,q8_0", {"calibrate": ["generated", "empty.txt"]}, "empty.txt: is empty"),
        ("out", "q4_0,q8_0", {"score": "empty.txt"}, "empty.txt: is empty"),
        ("out", "q4_0,q8_0", {"score": "empty.txt", "calibrate": None}, "empty.txt: is empty"),
    ],
)
def test_wrong_input_is_reported_before_a_text_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, out: str, to: str | None, options: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty.txt").write_text("")
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(UsageError, match=message):
        lbrx.quantize("prose", out, to, **{"calibrate": "generated", **options})  # type: ignore[arg-type]
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize(("out", "to"), [("out.gguf", "q4_0"), ("out", "q8_0,q4_0"), ("out", "mlx_4")])
def test_a_quantized_source_is_refused_before_a_text_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, out: str, to: str
) -> None:
    monkeypatch.chdir(folder)
    lbrx.quantize("prose", "eight.gguf", "q8_0")
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(UsageError, match="--allow-requantize"):
        lbrx.quantize("eight.gguf", out, to, calibrate="generated")
    assert {path.name for path in folder.iterdir()} == before


def test_the_command_prints_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    outcome = lbrx_command(capsys, "quantize", "prose", "out", "--to", "q4_0,q8_0", "--score", "held_out.txt")
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[0].startswith("out: ")
    rows = {line.split()[0]: line.split()[1:] for line in outcome.out.splitlines() if line.startswith("prose-")}
    assert set(rows) == {"prose-Q4_0.gguf", "prose-Q8_0.gguf"}
    assert (folder / "out/size_against_divergence.png").read_bytes()[:4] == b"\x89PNG"
    assert "size_against_divergence.png" in (folder / "out/README.md").read_text()
    again = lbrx_command(capsys, "quantize", "prose", "out", "--to", "q4_0,q8_0", "--score", "held_out.txt")
    assert "of them from an earlier run" in again.out
    assert " 0 B memory" not in again.out
    refused = lbrx_command(capsys, "quantize", "prose", "b.gguf", "--to", "q4_0", "--score", "held_out.txt")
    assert "several outputs need a directory" in refused.err


def test_the_card_does_not_compare_precisions_of_activations(tmp_path: Path) -> None:
    base, text, out = demo_models().base, tmp_path / "text.txt", tmp_path / "outputs"
    text.write_text("In the beginning God created the heaven and the earth. And the earth was without form, and void.")
    with lbrx.using(activation_bits=8):
        lbrx.quantize(base, out, ["q8_0"], score=text)
    card = (out / "README.md").read_text()
    assert "tokens of `text.txt`, with activations of 8 bits. " in card
    lbrx.quantize(base, out, ["q4_0"], score=text)
    card = (out / "README.md").read_text()
    rows = {line.split("`")[1]: line for line in card.splitlines() if line.startswith("| `")}
    assert rows["base-Q8_0.gguf"].endswith("|  |  |  |")
    assert "(" in rows["base-Q4_0.gguf"]
    assert "tokens of `text.txt`. " in card
