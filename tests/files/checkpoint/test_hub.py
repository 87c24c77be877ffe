"""References to the Hugging Face hub: what is asked for, what is found in the cache, and what can go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.hub import is_repository, locate_model
from lbrx.jobs.merge.merge import merge
from support.tiny import LINEAR, make_llama, read_model


def test_local_paths_come_first(folder: Path) -> None:
    (folder / "owner/name").mkdir(parents=True)
    (folder / "beside/model").mkdir(parents=True)
    assert locate_model("owner/name") == Path("owner/name")
    assert locate_model("model", directories=[Path(), folder / "beside"]) == folder / "beside/model"
    with pytest.raises(UsageError, match="is a local model, which has no revisions"):
        locate_model("owner/name", "main")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("meta-llama/Llama-3.2-1B", True),
        ("gpt2", False),
        ("./owner/name", False),
        ("/owner/name", False),
        ("../name", False),
        ("a/b/c", False),
        ("owner/model.safetensors", False),
        ("~/name", False),
        ("owner/na me", False),
    ],
)
def test_what_looks_like_a_repository(path: str, expected: bool) -> None:
    assert is_repository(path) == expected


def test_weights_and_small_files_of_a_revision_are_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert locate_model("owner/name", "v2") == folder
    assert asked["repository"] == "owner/name"
    assert asked["revision"] == "v2"
    assert {"*.safetensors", "*.json", "*.model"} <= set(asked["allow_patterns"])


def response() -> Any:
    """As much of an HTTP response as the hub's errors look at, whichever client the hub uses."""
    return SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.GatedRepoError("gated", response=response()),
            "owner/name@v2: is gated on the hub; expected a token (HF_TOKEN) with access to it",
        ),
        (
            errors.RepositoryNotFoundError("none", response=response()),
            "owner/name@v2: no such file or directory here, and no such repository on the hub",
        ),
        (
            errors.RevisionNotFoundError("none", response=response()),
            "owner/name@v2: the repository has no revision 'v2'",
        ),
        (
            errors.LocalEntryNotFoundError("no network"),
            "owner/name@v2: no such file or directory here, it is not in the hub's cache, and the hub cannot be "
            "reached",
        ),
        (OSError("disk on fire\nand more"), "owner/name@v2: cannot be downloaded from the hub: disk on fire"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_errors_of_the_hub_are_told_in_a_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_arguments: Any, **_options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(FileError) as caught:
        locate_model("owner/name", "v2")
    assert str(caught.value) == message


def cached_model(home: Path, name: str, seed: int) -> None:
    """A model in the hub's cache, as a download leaves it."""
    repository = home / "hub" / f"models--owner--{name}"
    commit = f"{seed:040x}"
    make_llama(repository / "snapshots" / commit, seed)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)


def test_offline_models_come_from_the_cache(folder: Path) -> None:
    cached_model(folder / "home", "a", 1)
    cached_model(folder / "home", "b", 2)
    (folder / "hub.yml").write_text(LINEAR.replace("model: ", "model: owner/"))
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)
    environment = os.environ | {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "lbrx", "merge", "hub.yml", "out", "--no-sync"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    merge(LINEAR, "local")
    found, expected = read_model(folder / "out"), read_model(folder / "local")
    assert found.keys() == expected.keys()
    assert all((found[name] == expected[name]).all() for name in expected)
    assert 'base_model:\n- "owner/a"\n- "owner/b"\n' in (folder / "out/README.md").read_text()
    (folder / "missing.yml").write_text(LINEAR.replace("model: a", "model: owner/c"))
    missing = [sys.executable, "-m", "lbrx", "merge", "missing.yml", "elsewhere"]
    failed = subprocess.run(missing, env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr == (
        "error: owner/c: no such file or directory here, it is not in the hub's cache, and HF_HUB_OFFLINE forbids "
        "downloads\n"
    )
