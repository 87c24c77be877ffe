"""Passwords and signatures in addresses: used for requests, and nowhere to be read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import lbrx
from lbrx.errors import FileError
from lbrx.files.output.journal import Journal
from lbrx.files.remote import using_remote
from lbrx.files.remote.filesystem import file_type_of
from lbrx.files.remote.paths import RemotePath
from lbrx.jobs.merge.merge import read_and_plan
from support.range_server import range_server


def test_paths_show_no_secrets() -> None:
    path = RemotePath("https://user:secret@host/models/a.safetensors?key=signature")
    assert path.url == "https://user:secret@host/models/a.safetensors?key=signature"
    assert str(path) == "https://***@host/models/a.safetensors?***"
    assert path.parent.url == "https://user:secret@host/models"
    assert pickle.loads(pickle.dumps(path)).url == path.url
    for shown in (repr(path), f"{path}", path.as_posix()):
        assert "secret" not in shown
        assert "signature" not in shown


def test_errors_show_no_secrets() -> None:
    with using_remote(attempts=1, timeout_seconds=0.5), pytest.raises(FileError) as caught:
        lbrx.open("http://user:secret@127.0.0.1:9/a.safetensors")
    assert "secret" not in str(caught.value)


def test_a_presigned_address_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors?key=x").write_bytes(b"1234")
    with range_server(tmp_path) as server:
        assert file_type_of(RemotePath(f"{server.url}/a.safetensors?key=x")) == "file"


def test_a_recipe_with_a_password_in_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lbrx.save(tmp_path / "a.safetensors", {"w": lbrx.full((64,), 1.0, "f32")})
    with range_server(tmp_path) as server:
        address = server.url.replace("http://", "http://user:secret@") + "/a.safetensors"
        recipe = f"{{merge_method: linear, models: [{{model: '{address}'}}], parameters: {{weight: 1}}}}"
        (tmp_path / "recipe.yml").write_text(recipe)
        plan = read_and_plan(tmp_path / "recipe.yml", tmp_path / "out")
        monkeypatch.setattr(Journal, "remove", lambda _journal: None)
        lbrx.merge(tmp_path / "recipe.yml", tmp_path / "merged")
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "recipe.yml"]
    assert any("journal" in path.name for path in written)
    assert not [path for path in written if b"secret" in path.read_bytes()]
    assert [header.path.name for model in plan.models for header in model.files] == ["a.safetensors"]
    assert "secret" not in str(plan.models[0].files[0].path)
    card = next(file for file in plan.side_files if file.name == "README.md").read().decode()
    assert "secret" not in card
    assert "***@127.0.0.1" in card
