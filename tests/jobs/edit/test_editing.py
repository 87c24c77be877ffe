"""Editing GGUF files: keys set and removed, in place or in a new file, and interrupted writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
import lbrx.jobs.edit.edit as module
from lbrx.cli.main import run as run_command
from lbrx.errors import FileError, UsageError
from lbrx.files.formats.gguf_values import Typed
from lbrx.jobs.edit.edit import FILLER_KEY, edit

METADATA = {
    "general.architecture": "llama",
    "general.name": "a model",
    "llama.block_count": 1,
    "general.url": "x" * 200,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    tensors = {"w": lbrx.normal((64, 32), seed=1), "v": lbrx.normal((96,), seed=2)}
    lbrx.save(path, tensors, METADATA)
    return path


def values(path: Path) -> dict[str, bytes]:
    opened = lbrx.open(path)
    return {name: opened[name].numpy().tobytes() for name in opened}


def keys(path: Path) -> dict[str, object]:
    return {key: value for key, value in lbrx.open(path).metadata.items() if key != FILLER_KEY}


@pytest.mark.parametrize("name", ["", "b", "a name", "some name that is a little longer than the one before"])
def test_a_header_that_fits_is_changed_in_place(model: Path, name: str) -> None:
    before, inode, size = values(model), model.stat().st_ino, model.stat().st_size
    result = edit(model, {"general.name": Typed(name, "str")}, remove=["general.url"])
    assert result.is_in_place
    assert (model.stat().st_ino, model.stat().st_size) == (inode, size)
    assert values(model) == before
    assert keys(model) == {"general.architecture": "llama", "general.name": name, "llama.block_count": 1}
    assert edit(model, {"general.name": Typed("again", "str")}).is_in_place
    assert keys(model)["general.name"] == "again"


def test_a_longer_header_makes_a_new_file_with_room(model: Path) -> None:
    before, template = values(model), "{{ messages }}" * 100
    assert not edit(model, chat_template=template).is_in_place
    assert values(model) == before
    assert keys(model) == METADATA | {"tokenizer.chat_template": template}
    assert edit(model, {"general.description": Typed("y" * 3000, "str")}).is_in_place
    assert values(model) == before
    assert [path.name for path in model.parent.iterdir()] == ["a.gguf"]


def test_another_file_can_be_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, out = model.read_bytes(), model.with_name("b.gguf")
    monkeypatch.delattr("os.copy_file_range", raising=False)  # as on macOS
    assert edit(model, remove=["general.url"], out=out).path == out
    assert model.read_bytes() == before
    assert values(out) == values(model)
    assert "general.url" not in lbrx.open(out).metadata
    with pytest.raises(FileError, match="exists already"):
        edit(model, remove=["general.url"], out=out)


def test_an_interrupted_write_is_undone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, original = model.read_bytes(), module._overwrite

    def torn(path: Path, header: bytes) -> None:
        original(path, header[: len(header) // 2] + b"\xff" * (len(header) - len(header) // 2))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_overwrite", torn)
    with pytest.raises(KeyboardInterrupt):
        edit(model, {"general.name": Typed("b", "str")})
    assert model.read_bytes() != before
    monkeypatch.setattr(module, "_overwrite", original)
    torn_file, other = model.rename(model.with_name("torn")), model.with_name("a.gguf")
    other.write_bytes(before)  # such as a new download
    with pytest.raises(FileError, match=r"is the header of another file that was 'a\.gguf' when a change was"):
        edit(other, {"general.name": Typed("b", "str")})
    assert other.read_bytes() == before
    torn_file.rename(model)
    with pytest.raises(UsageError, match="nothing to change"):
        edit(model)
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["a.gguf"]


def test_keys_that_cannot_be_changed(model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(UsageError, match=r"'general.architecture' describes the tensors"):
        edit(model, {"general.architecture": Typed("qwen2", "str")})
    with pytest.raises(UsageError, match=r"has no key 'general.nam'; did you mean 'general.name'"):
        edit(model, remove=["general.nam"])
    with pytest.raises(UsageError, match=r"is given as u32, expected str"):
        edit(model, {"tokenizer.chat_template": Typed(1, "u32")})
    assert model.read_bytes() == before


def test_a_file_of_quantized_tensors_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    weight = lbrx.normal((8, 256), seed=1).quantize("q4_k")
    lbrx.save(path, {"w": weight, "n": lbrx.full((5,), 2.0, "f32")}, METADATA)
    edit(path, {"general.tags": Typed(["a", "b"], "array[str]")})
    np.testing.assert_array_equal(lbrx.open(path)["w"].numpy(), weight.numpy())


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jinja").write_text("{{ x }}")
    command = ["edit", str(model), "--set", "llama.context_length=int:64", "--remove", "general.url"]
    assert run_command([*command, "--chat-template", str(tmp_path / "t.jinja")]) == 0
    assert "2 keys set and 1 removed, in place" in capsys.readouterr().out
    assert keys(model)["llama.context_length"] == 64
    assert run_command(["edit", str(model), "--set", "a"]) == 1
    assert run_command(["edit", str(tmp_path), "--set", "a=int:1"]) == 1


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.gguf: cannot be opened"):
        edit(tmp_path / "none.gguf", remove=["a"])


def test_the_target_of_a_link_is_not_changed(model: Path) -> None:
    before, link = model.read_bytes(), model.with_name("link.gguf")
    link.symlink_to(model)
    with pytest.raises(FileError, match="is a symbolic link, and others may use its target"):
        edit(link, remove=["general.url"])
    assert not edit(link, remove=["general.url"], out=model.with_name("b.gguf")).is_in_place
    assert model.read_bytes() == before
    assert sorted(path.name for path in model.parent.iterdir()) == ["a.gguf", "b.gguf", "link.gguf"]


def test_two_edits_of_a_file_at_a_time_are_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, original = model.read_bytes(), module._overwrite
    errors: list[str] = []

    def overwrite(path: Path, header: bytes) -> None:
        original(path, header[:64] + b"\xff" * (len(header) - 64))  # half written, while others come
        for out in (None, model.with_name("b.gguf")):
            with pytest.raises(UsageError) as caught:
                edit(model, {"general.name": Typed("second", "str")}, out=out)
            errors.append(str(caught.value))
        original(path, header)

    monkeypatch.setattr(module, "_overwrite", overwrite)
    assert edit(model, {"general.name": Typed("first", "str")}).is_in_place
    assert errors == [f"{model}: another edit of this file is running; wait for it"] * 2
    assert keys(model) == METADATA | {"general.name": "first"}
    monkeypatch.setattr(module, "_overwrite", original)
    edit(model, {"general.name": Typed("a model", "str")})
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["a.gguf"]


def test_what_a_killed_edit_left_is_removed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    before = model.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_copy_range", die)
        patch.setattr(module.system, "remove_file", lambda _path: None)
        with pytest.raises(Killed):
            edit(model, chat_template="x" * 5000)
    assert model.read_bytes() == before
    assert len(list(model.parent.iterdir())) == 2
    edit(model, remove=["general.url"])
    assert [path.name for path in model.parent.iterdir()] == ["a.gguf"]


def test_a_file_that_can_only_be_read_is_copied(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda _path, _mode: False)  # such as on a read-only disk
    monkeypatch.setattr(module, "open_locked", None)
    out = model.with_name("b.gguf")
    edit(model, remove=["general.url"], out=out)
    assert "general.url" not in keys(out)


def test_only_models_are_replaced(model: Path) -> None:
    out = model.with_name("thesis.gguf")
    out.write_text("a thesis")
    with pytest.raises(FileError, match="--overwrite replaces models only"):
        edit(model, remove=["general.url"], out=out, overwrite=True)
    assert out.read_text() == "a thesis"
    out.write_bytes(model.read_bytes())
    edit(model, remove=["general.url"], out=out, overwrite=True)
    assert "general.url" not in keys(out)


def test_changes_that_break_a_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    lbrx.save(path, {"w": lbrx.full((8,), 1.0, "f32")}, {"general.architecture": "llama", "llama.block_count": 1})
    before = path.read_bytes()
    with pytest.raises(UsageError, match="the chat template is not valid: line 2: "):
        edit(path, chat_template="{% if a %}\n{{ broken")
    with pytest.raises(UsageError, match=r"'llama.block_count' is the number of layers in the file"):
        edit(path, {"llama.block_count": Typed(2, "u32")})
    with pytest.raises(UsageError, match=r"'llama.block_count' is the number of layers in the file"):
        edit(path, remove=["llama.block_count"])
    assert path.read_bytes() == before
    edit(path, chat_template="{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% endfor %}")
    assert "generation" in lbrx.open(path).metadata["tokenizer.chat_template"]
