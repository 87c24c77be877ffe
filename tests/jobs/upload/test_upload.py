"""Uploads to the hub: a server on this machine speaks the part of its API that an upload uses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, UsageError
from support.cli_running import lbrx_command
from support.hub_uploads import TOKEN, UploadServer, upload_server


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upload")
    shutil.copytree(demo_models().prose, folder / "prose")
    lbrx.quantize(folder / "prose", folder / "outputs", ["q8_0", "mlx_4"])
    return folder


@pytest.fixture
def outputs(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / "outputs"


def test_outputs_become_one_commit(hub: UploadServer, outputs: Path) -> None:
    result = lbrx.upload(outputs, "me/prose-GGUF", private=True)
    repository = hub.repositories["me/prose-GGUF"]
    assert repository.private
    assert repository.commits == ["Upload outputs"]
    assert result.url == f"{hub.url}/me/prose-GGUF/commit/1"
    expected = {
        path.relative_to(outputs).as_posix(): path.read_bytes()
        for path in outputs.rglob("*")
        if path.is_file() and path.name != "quantized.json"
    }
    assert repository.branches["main"] == expected
    assert "prose-MLX-4bit/config.json" in expected
    assert result.nbytes == sum(map(len, expected.values()))
    assert hub.unknown == []


def test_an_upload_resumes(hub: UploadServer, outputs: Path) -> None:
    hub.refused_objects = 1
    with pytest.raises(FileError, match=r"me/prose: the upload failed: .*run the command again to resume"):
        lbrx.upload(outputs, "me/prose")
    repository = hub.repositories["me/prose"]
    assert repository.commits == []
    first = list(hub.received)
    assert len(first) == 1
    hub.refused_objects = 0
    lbrx.upload(outputs, "me/prose")
    assert len(repository.commits) == 1
    assert len(hub.received) == len(set(hub.received)) == 2  # the first one was not sent again
    lbrx.upload(outputs, "me/prose")
    assert len(repository.commits) == 1  # nothing had changed
    (outputs / "README.md").write_text("# Changed\n")
    lbrx.upload(outputs, "me/prose", revision="v2", message="A card")
    assert repository.commits[1:] == ["A card"]
    assert repository.branches["v2"]["README.md"] == b"# Changed\n"
    assert repository.branches["main"]["README.md"] != b"# Changed\n"


def test_a_split_file_is_uploaded_with_all_shards(hub: UploadServer, outputs: Path) -> None:
    out = outputs.parent / "split.gguf"
    lbrx.quantize(outputs.parent / "prose", out, "q8_0", max_shard_bytes="600KB")
    shards = sorted(outputs.parent.glob("split-*.gguf"))
    assert len(shards) > 1
    for shard in shards:  # another split model whose name begins alike
        shutil.copy(shard, shard.with_name(shard.name.replace("split-", "split-chat-")))
    lbrx.upload(shards[0], "me/split")
    assert set(hub.repositories["me/split"].branches["main"]) == {shard.name for shard in shards}
    shards[1].unlink()
    with pytest.raises(UsageError, match=f"its shard {shards[1].name} is missing"):
        lbrx.upload(shards[0], "me/split")


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "no token for the hub; set HF_TOKEN"),
        ("hf_wrong", "me/prose: the hub does not know this token"),
        ("hf_read_only", "me/prose: the token may not write to this repository"),
    ],
)
def test_tokens(
    hub: UploadServer, outputs: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, message: str
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(outputs / "no-such-file"))
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(lbrx.LbrxError, match=message):
        lbrx.upload(outputs, "me/prose")
    assert hub.repositories == {}


def test_a_hub_that_is_not_there(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with upload_server() as server:
        url = server.url
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(FileError, match="me/prose: the hub cannot be reached"):
        lbrx.upload(outputs, "me/prose")


def test_a_public_repository_does_not_become_private(hub: UploadServer, outputs: Path) -> None:
    lbrx.upload(outputs / "prose-Q8_0.gguf", "me/prose")
    with pytest.raises(UsageError, match="exists and is public"):
        lbrx.upload(outputs, "me/prose", private=True)
    assert set(hub.repositories["me/prose"].branches["main"]) == {"prose-Q8_0.gguf"}


def damage(outputs: Path, what: str) -> None:
    gguf = outputs / "prose-Q8_0.gguf"
    if what == "a truncated file":
        with gguf.open("r+b") as file:
            file.truncate(gguf.stat().st_size - 100)
    elif what == "a staging directory":
        (outputs / ".prose-Q4_0.gguf.partial").mkdir()
    elif what == "a stopped run":
        outputs.with_name(".outputs.partial.journal").write_bytes(b"")
    elif what == "an unfinished output":
        record = json.loads((outputs / "quantized.json").read_text())
        record["outputs"][0]["states"] = None
        (outputs / "quantized.json").write_text(json.dumps(record))
    elif what == "a missing shard":
        index = outputs / "prose-MLX-4bit/model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    elif what == "an environment file":
        (outputs / ".env").write_text("A=1")
    elif what == "a key":
        (outputs / "server.pem").write_text("x")
    elif what == "a token":
        (outputs / "notes.txt").write_text("export HF_TOKEN=hf_" + "abcDEF123" * 4)
    elif what == "a password":
        (outputs / "recipe.yml").write_text("model: https://user:hunter2@host/a.gguf")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a truncated file", r"prose-Q8_0.gguf.*a damaged file is not uploaded"),
        ("a staging directory", "is unfinished; run the command that writes it again"),
        ("a stopped run", "a run that writes it is unfinished"),
        ("an unfinished output", "is unfinished; run 'lbrx quantize' again"),
        ("a missing shard", "its shard model-00001-of-00001.safetensors is missing"),
        ("an environment file", r"\.env: has the name of a file with secrets"),
        ("a key", "server.pem: has the name of a file with secrets"),
        ("a token", "notes.txt: contains a token of the Hugging Face hub"),
        ("a password", "recipe.yml: contains a URL with a password"),
    ],
)
def test_what_is_refused(hub: UploadServer, outputs: Path, what: str, message: str) -> None:
    damage(outputs, what)
    with pytest.raises(UsageError, match=message):
        lbrx.upload(outputs, "me/prose")
    assert hub.repositories == {}


def test_the_command(hub: UploadServer, outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = lbrx_command(capsys, "upload", outputs, "me/prose", "--dry-run")
    assert planned.code == 0
    rows = [line.split()[0] for line in planned.out.splitlines()]
    assert {"README.md", "prose-Q8_0.gguf", "prose-MLX-4bit/model.safetensors"} <= set(rows)
    assert hub.repositories == {}
    done = lbrx_command(capsys, "upload", outputs, "me/prose", "--private")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{hub.url}/me/prose/commit/1: ")
    wrong = lbrx_command(capsys, "upload", outputs, "prose")
    assert (wrong.code, wrong.err) == (1, "error: 'prose' is not a repository of the hub; expected owner/name\n")
    missing = lbrx_command(capsys, "upload", outputs / "none", "me/prose")
    assert "no such file or directory" in missing.err
