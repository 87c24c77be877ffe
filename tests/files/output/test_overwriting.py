"""``--overwrite`` replaces models only, and never an input."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run

GGUF = {"general.architecture": "llama", "llama.block_count": 1}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    lbrx.save(tmp_path / "a" / "model.safetensors", {"w": lbrx.tensor(np.ones(4, np.float32))})
    return tmp_path / "a"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    lbrx.save(path, {"blk.0.ffn_up.weight": lbrx.normal((4, 256), seed=1)}, GGUF)
    return path


def text_of(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_directory_with_other_files_stays(
    more: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "precious"
    (out / "sub").mkdir(parents=True)
    (out / "thesis.txt").write_text("years of work")
    assert run(["convert", str(model), str(out), "--overwrite", *more]) == 1
    assert "has 'sub', 'thesis.txt', no part of a model" in text_of(capsys)
    assert (out / "thesis.txt").read_text() == "years of work"


def test_a_directory_without_weights_stays(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files could be those of a model."""
    out = tmp_path / "project"
    out.mkdir()
    for name in ("main.py", "config.json", "README.md"):
        (out / name).write_text("work")
    assert run(["convert", str(model), str(out), "--overwrite"]) == 1
    assert "project: has no weights; --overwrite replaces models only" in text_of(capsys)
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "config.json", "main.py"]


def test_a_special_file_stays(gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pipe.gguf"
    os.mkfifo(out)
    assert run(["convert", str(gguf), str(out), "--overwrite"]) == 1
    assert "pipe.gguf: is a special file" in text_of(capsys)
    assert out.is_fifo()


def test_a_model_is_replaced_and_the_dry_run_lists_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(model, out)
    (out / "README.md").write_text("old")
    assert run(["convert", str(model), str(out), "--overwrite", "--dry-run"]) == 0
    assert "replaces 2 files" in text_of(capsys)
    assert (out / "README.md").exists()
    assert run(["convert", str(model), str(out), "--overwrite"]) == 0
    assert not (out / "README.md").exists()


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_a_quantized_copy_never_replaces_its_original(
    link: object, gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = gguf.read_bytes(), gguf
    if link is not None:
        out = tmp_path / "other.gguf"
        link(gguf, out)  # type: ignore[operator]
    assert run(["quantize", str(gguf), str(out), "--to", "q4_0", "--overwrite"]) == 1
    assert f"is the input {gguf}, which must not be replaced" in text_of(capsys)
    assert gguf.read_bytes() == out.read_bytes() == before


def test_a_directory_that_has_an_input_is_not_replaced(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (model / "model.safetensors").read_bytes()
    assert run(["convert", str(model), str(model), "--type", "bf16", "--overwrite"]) == 1
    assert "must not be replaced" in text_of(capsys)
    assert (model / "model.safetensors").read_bytes() == before


def test_a_file_that_is_no_model_is_not_replaced(gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = gguf.with_name("notes.gguf")
    out.write_text("a long text of a user")
    assert run(["quantize", str(gguf), str(out), "--to", "q4_0", "--overwrite"]) == 1
    assert "--overwrite replaces models only" in text_of(capsys)
    assert out.read_text() == "a long text of a user"
