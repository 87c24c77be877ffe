"""What a run finds when it is resumed: other files at its target, lost headers, torn journals, half of the renames."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from lbrx.base import system
from lbrx.errors import FileError, UsageError
from lbrx.files.output.journal import Journal, difference
from lbrx.files.output.model_plan import plan_output
from lbrx.files.output.nonfinite import NonFiniteError
from lbrx.files.output.options import RunOptions
from lbrx.files.output.run import execute
from lbrx.files.output.staging import Staging
from lbrx.jobs.merge.merge import merge, read_and_plan
from support.interrupted_merges import DARE, fail_after, hidden, interrupted
from support.quantizing_models import gguf_model, noise
from support.tiny import LINEAR, directory_bytes, make_llama


@pytest.fixture
def models(folder: Path) -> Path:
    for number, name in enumerate(("a", "b", "base")):
        make_llama(folder / name, number, layers=3)
    return folder


def test_a_target_that_appeared_meanwhile_is_kept(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch)
    (models / "out").mkdir()
    (models / "out/mine").write_text("precious")
    with pytest.raises(FileError, match="--overwrite replaces it"):
        merge(LINEAR, "out")
    assert (models / "out/mine").read_text() == "precious"


def test_restart_leaves_nothing_of_the_earlier_run(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge(LINEAR, "undisturbed")
    with monkeypatch.context() as patch:
        fail_after(patch, 12)
        with pytest.raises(FileError):
            merge(DARE, "out", threads=1, max_shard_bytes=600)
    merge(LINEAR, "out", restart=True)
    assert directory_bytes(models / "out") == directory_bytes(models / "undisturbed")


def test_a_torn_line_and_a_second_interruption(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch)
    journal = models / ".out.partial.journal"
    # Longer than the next line: what is left of it would follow that line.
    journal.write_bytes(journal.read_bytes() + b'{"tensor": "' + b"x" * 300)
    with monkeypatch.context() as patch:
        fail_after(patch, 1)
        with pytest.raises(FileError):
            merge(LINEAR, "out", threads=1)
    assert merge(LINEAR, "out").resumed_tensors == 12


def test_a_line_behind_a_hole_does_not_come_back(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge(LINEAR, "undisturbed")
    interrupted(monkeypatch)
    journal = models / ".out.partial.journal"
    before = journal.read_bytes()

    def one_tensor_more() -> bytes:
        with monkeypatch.context() as patch:
            fail_after(patch, 1)
            with pytest.raises(FileError):
                merge(LINEAR, "out", threads=1)
        return journal.read_bytes()[len(before) :]

    line = one_tensor_more()
    # A power failure lost the line and not the next one; the line is written again, and fills the hole.
    journal.write_bytes(before + bytes(len(line)) + b'{"complete": true, "inodes": {}}\n')
    assert len(one_tensor_more()) == len(line)
    merge(LINEAR, "out")
    assert directory_bytes(models / "out") == directory_bytes(models / "undisturbed")


def test_a_lost_header_is_written_again(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge(LINEAR, "undisturbed")
    interrupted(monkeypatch)
    file = models / ".out.partial/model.safetensors"
    content = bytearray(file.read_bytes())
    content[:64] = bytes(64)
    file.write_bytes(content)
    merge(LINEAR, "out")
    assert directory_bytes(models / "out") == directory_bytes(models / "undisturbed")


@pytest.mark.parametrize("strict", [False, True])
def test_nonfinite_values_of_an_earlier_run_are_reported(
    models: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    slot = read_and_plan(LINEAR, "out").layouts[0].slots[0]
    make_llama(models / "b", 2, layers=3, extra={slot.name: np.full(slot.shape, np.nan, np.float32)})
    interrupted(monkeypatch)
    assert slot.name in (models / ".out.partial.journal").read_text()
    if strict:
        with pytest.raises(NonFiniteError):
            merge(LINEAR, "out", strict=True)
    else:
        assert slot.name in merge(LINEAR, "out").nonfinite


def cannot_exchange(*_: Path) -> bool:
    return False


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_old_output_that_was_not_removed(models: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(system, "exchange", cannot_exchange)
    merge(LINEAR, "out")
    shutil.copytree("out", ".out.replaced")
    merge(DARE, "out", overwrite=True)
    assert hidden(models) == []


def test_an_old_output_is_not_restored_while_another_run_holds_the_journal(models: Path) -> None:
    merge(LINEAR, ".out.replaced")
    with Journal(Staging(Path("out")).journal), pytest.raises(UsageError, match="another run into the same output"):
        merge(DARE, "out", overwrite=True)
    assert not (models / "out").exists()


def test_keys_that_are_gone_are_a_difference() -> None:
    assert difference({"a": 1, "b": 2}, {"a": 1}) == "the b is another"


def test_outputs_are_flushed_before_they_get_their_name(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []
    flush, sync, rename = system.flush_to_disk, system.sync_directory, system.rename

    def noted_flush(descriptor: int, path: Path) -> None:
        events.append(("flush", Path(path).name))
        flush(descriptor, path)

    def noted_sync(path: Path) -> None:
        events.append(("sync", Path(path).name))
        sync(path)

    def noted_rename(partial: Path, target: Path) -> None:
        events.append(("rename", Path(target).name))
        rename(partial, target)

    monkeypatch.setattr(system, "flush_to_disk", noted_flush)
    monkeypatch.setattr("lbrx.base.system.files.flush_to_disk", noted_flush)
    monkeypatch.setattr(system, "sync_directory", noted_sync)
    monkeypatch.setattr(system, "rename", noted_rename)
    merge(LINEAR, "out")
    before = events[: events.index(("rename", "out"))]
    assert {("flush", name) for name in os.listdir(models / "out")} <= set(before)
    assert ("sync", ".out.partial") in before


def test_an_error_of_a_flush_is_raised(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = system.flush_to_disk

    def failing(descriptor: int, path: Path) -> None:
        if str(path).endswith(".safetensors"):
            raise FileError("input/output error")
        flush(descriptor, path)

    monkeypatch.setattr(system, "flush_to_disk", failing)
    with pytest.raises(FileError, match="input/output error"):
        merge(LINEAR, "out")
    assert not (models / "out").exists()


def test_a_plan_that_wrote_no_tensor_may_be_replaced(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 1)
        with pytest.raises(FileError):
            merge(LINEAR, "out", threads=1)
    merge(DARE, "out")
    assert hidden(models) == []


# -- the last renames of a split model ------------------------------------------------------------------------------


def stopped_split(folder: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> dict[str, bytes]:
    """A split GGUF model whose run was killed after so many renames; what its files have to be."""
    model = gguf_model(1, values=noise)
    execute(plan_output(model, folder / "whole.gguf", max_shard_bytes=1 << 20))
    expected = {path.name.replace("whole", "out"): path.read_bytes() for path in folder.glob("whole-*.gguf")}
    assert len(expected) > 2
    rename, done = system.rename, 0

    def limited(partial: Path, target: Path) -> None:
        nonlocal done
        if done == renames:
            raise KeyboardInterrupt  # also when the renames are undone: as if killed
        done += 1
        rename(partial, target)

    with monkeypatch.context() as patch:
        patch.setattr(system, "rename", limited)
        with pytest.raises(KeyboardInterrupt):
            execute(plan_output(model, folder / "out.gguf", max_shard_bytes=1 << 20))
    assert len(list(folder.glob("out-*.gguf"))) == renames
    return expected


def finished_split(folder: Path) -> dict[str, bytes]:
    execute(plan_output(gguf_model(1, values=noise), folder / "out.gguf", max_shard_bytes=1 << 20))
    assert hidden(folder) == []
    return {path.name: path.read_bytes() for path in folder.glob("out-*.gguf")}


def test_renames_that_are_missing_are_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stopped_split(folder, monkeypatch, 1)
    assert finished_split(folder) == expected


def test_damage_before_the_first_rename_is_repaired(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stopped_split(folder, monkeypatch, 0)
    damaged = next((folder / ".out.gguf.partial").glob("out-00002*"))
    content = bytearray(damaged.read_bytes())
    content[-40] ^= 255
    damaged.write_bytes(content)
    assert finished_split(folder) == expected


def test_a_renamed_file_that_is_gone_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stopped_split(folder, monkeypatch, 1)
    next(folder.glob("out-*.gguf")).unlink()
    assert finished_split(folder) == expected


def old_split(folder: Path) -> dict[str, bytes]:
    model = gguf_model(1, values=lambda name, shape: noise(f"old {name}", shape))
    execute(plan_output(model, folder / "out.gguf", max_shard_bytes=1 << 20))
    return {path.name: path.read_bytes() for path in folder.glob("out-*.gguf")}


@pytest.mark.parametrize("stop", range(1, 6))
def test_another_run_gets_the_old_files_of_a_split_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    old = old_split(folder)
    rename, done = system.rename, 0

    def limited(partial: Path, target: Path) -> None:
        nonlocal done
        if done == stop:
            raise KeyboardInterrupt
        done += 1
        rename(partial, target)

    model = gguf_model(1, values=noise)
    with monkeypatch.context() as patch:
        patch.setattr(system, "rename", limited)
        with pytest.raises(KeyboardInterrupt):
            execute(plan_output(model, folder / "out.gguf", max_shard_bytes=1 << 20), RunOptions(overwrite=True))
    assert {path.name: path.read_bytes() for path in folder.glob("out-*.gguf")} != old
    other = plan_output(model, folder / "out.gguf", max_shard_bytes=1 << 19)
    with pytest.raises(UsageError, match="unfinished work of another run"):
        execute(other)
    assert {path.name: path.read_bytes() for path in folder.glob("out-*.gguf")} == old


def test_a_partial_directory_is_emptied(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out")
    for name in ("a", "deep/b", "deep/er/c"):
        (staging.partial / name).parent.mkdir(parents=True, exist_ok=True)
        (staging.partial / name).touch()
    staging.keep_only(["a"])
    assert os.listdir(staging.partial) == ["a"]
    staging.prepare(discard=False)
    assert os.listdir(staging.partial) == ["a"]
    staging.prepare(discard=True)
    assert os.listdir(staging.partial) == []
