"""Targets that are links, renames that fail, inputs that vanish: nothing is lost, and the message says why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.base import atomic_write, system
from lbrx.demo.models import demo_models
from lbrx.errors import FileError
from lbrx.jobs.lora.spool import Spool
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.tensors.dtype import dtype

BASE = demo_models().base


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yml"
    path.write_text(f"{{merge_method: linear, models: [{{model: {BASE}}}], parameters: {{weight: 1}}}}")
    return path


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_an_output_that_is_a_link_to_a_directory(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/model").mkdir()
    (tmp_path / "out").symlink_to("disk/model")
    for _ in range(2):
        lbrx.merge(recipe, tmp_path / "out", overwrite=True)
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "disk/model/model.safetensors").is_file()
        assert names(tmp_path) == {"recipe.yml", "disk", "out"}
        assert names(tmp_path / "disk") == {"model"}


def failing_at(count: int, original: Callable[..., None]) -> Callable[..., None]:
    """A rename that fails at its n-th call and works before and after it."""
    calls = 0

    def rename(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            raise OSError(5, "Input/output error")
        original(*arguments, **options)

    return rename


@pytest.mark.parametrize("count", [1, 2])
def test_a_rename_that_fails_leaves_the_old_directory(
    count: int, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    lbrx.merge(recipe, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with monkeypatch.context() as faults:
        faults.setattr(os, "replace", failing_at(count, os.replace))
        faults.setattr(system, "exchange", lambda *_: False)
        with pytest.raises(FileError, match="input/output error"):
            lbrx.merge(recipe, out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not (tmp_path / ".out.replaced").exists()
    lbrx.merge(recipe, out, overwrite=True)
    assert names(tmp_path) == {"recipe.yml", "out"}


@pytest.mark.parametrize("count", range(1, 9))
def test_a_rename_that_fails_leaves_all_old_files_of_a_split_model(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(value: float) -> None:
        tensors = {f"t{number}": lbrx.full((64, 64), value, "f32") for number in range(4)}
        lbrx.save(tmp_path / "m.gguf", tensors, {"general.architecture": "x"}, max_shard_bytes=20_000)

    save(1.0)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.gguf")}
    assert len(before) == 4
    with monkeypatch.context() as faults:
        faults.setattr(os, "replace", failing_at(count, os.replace))
        with pytest.raises(FileError, match="input/output error"):
            save(2.0)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.gguf")} == before
    save(3.0)
    first = next(tmp_path.glob("*00001-of*.gguf"))
    assert {float(tensor.max()) for tensor in lbrx.open(first).values()} == {3.0}
    assert len(names(tmp_path)) == 4


def test_journal_and_partial_directory_do_not_follow_links(recipe: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".out.partial.journal").symlink_to(victim)
    with pytest.raises(FileError, match=r"\.out\.partial\.journal: cannot be opened"):
        lbrx.merge(recipe, tmp_path / "out")
    assert victim.read_text() == "precious"
    (tmp_path / ".out.partial.journal").unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / ".out.partial").symlink_to(tmp_path / "folder")
    with pytest.raises(FileError, match=r"\.out\.partial: is a symbolic link"):
        lbrx.merge(recipe, tmp_path / "out")
    assert not names(tmp_path / "folder")


def test_an_input_that_vanishes_during_a_merge(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    lbrx.save(source, {"w": lbrx.full((64,), 1.0, "f32")})
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {source}}}], parameters: {{weight: 1}}}}")
    with pytest.raises(FileError, match=r"a\.safetensors: cannot be read any more: No such file"):
        lbrx.merge(recipe, tmp_path / "out", progress=lambda _: source.unlink(missing_ok=True))


def test_a_spool_on_a_full_disk(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, spool._descriptor)
        os.close(full)
        with pytest.raises(FileError, match="spool: disk full: needs 8 B"):
            spool.put("w", np.ones((1, 2)), dtype("f32"))
    assert names(tmp_path) == set()


def test_a_full_cache_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise FileError("disk full")

    monkeypatch.setattr(system, "write_file", full)
    atomic_write.write_cache(tmp_path / "cache/entry", b"data")
    assert not names(tmp_path / "cache")


def test_the_model_card_escapes_names(tmp_path: Path) -> None:
    folder = tmp_path / "a`b](x)"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((BASE / "model.safetensors").read_bytes())
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f'{{merge_method: linear, models: [{{model: "{folder}"}}], parameters: {{weight: 1}}}}')
    card = next(file for file in read_and_plan(recipe, tmp_path / "out").side_files if file.name == "README.md")
    assert f"- `` {folder} ``" in card.read().decode()


@pytest.mark.parametrize("out", ["/", "/..", "/proc/../"])
def test_the_root_of_the_file_system_is_no_output(recipe: Path, out: str) -> None:
    for overwrite in (False, True):
        with pytest.raises(FileError, match="/: is the root of the file system; expected another output"):
            lbrx.merge(recipe, out, overwrite=overwrite)
