"""Models of a recipe that are misspelt, or that are adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.locating import is_adapter, locate, similar_path
from lbrx.jobs.merge.merge import merge
from support.tiny import LINEAR, make_llama


@pytest.fixture
def models(folder: Path) -> Path:
    make_llama(folder / "model-a", 1)
    make_llama(folder / "model-b", 2)
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    (folder / "notes-b.txt").write_text("no model")
    return folder


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("modell-b", "; did you mean 'model-b'?"),
        ("./modell-b", "; did you mean './model-b'?"),
        ("../x/modell-b", ""),
        ("model-b/", "; did you mean 'model-b'?"),
        ("models/b", ""),
        ("notes-b.txd", ""),
        ("entirely-different", ""),
    ],
)
@pytest.mark.usefixtures("models")
def test_what_is_called_alike(path: str, hint: str) -> None:
    assert similar_path(path) == hint


def test_the_nearest_name_of_all_directories(models: Path) -> None:
    (models / "beside/modell-c").mkdir(parents=True)
    assert similar_path("modell-cc", [Path(), models / "beside"]) == "; did you mean 'modell-c'?"


@pytest.mark.usefixtures("models")
def test_a_misspelt_model_of_a_recipe() -> None:
    recipe = LINEAR.replace("model: a", "model: ./modell-a").replace("model: b", "model: ./model-b")
    with pytest.raises(FileError, match=r"^\./modell-a: no such file or directory; did you mean '\./model-a'\?$"):
        merge(recipe, "out")


@pytest.mark.usefixtures("models")
def test_a_misspelt_adapter_of_a_recipe() -> None:
    with pytest.raises(FileError, match=r"^\./adaptr: no such file or directory; did you mean '\./adapter'\?$"):
        merge("{merge_method: passthrough, models: [{model: model-a+./adaptr}]}", "out")


@pytest.mark.usefixtures("models")
def test_what_may_be_of_the_hub_or_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    def snapshot_download(*_: object, **__: object) -> str:
        raise errors.LocalEntryNotFoundError("not reached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    Path("owner/model-a").mkdir(parents=True)
    with pytest.raises(FileError) as caught:
        locate("owner/modell-a")
    assert str(caught.value) == (
        "owner/modell-a: no such file or directory here, it is not in the hub's cache, and the hub cannot be reached; "
        "did you mean 'owner/model-a'?"
    )


@pytest.mark.usefixtures("models")
def test_an_adapter_is_no_model() -> None:
    recipe = LINEAR.replace("model: a", "model: model-a").replace("model: b", "model: adapter")
    with pytest.raises(UsageError) as caught:
        merge(recipe, "out")
    assert str(caught.value) == (
        "adapter: is a LoRA adapter (it has adapter_config.json), not a model; "
        "expected a base model with it, as 'BASE+ADAPTER' in a recipe: 'owner/base+adapter'"
    )


def test_a_model_with_an_adapter_beside_it_is_a_model(models: Path) -> None:
    (models / "model-a/adapter_config.json").write_text("{}")
    assert not is_adapter(models / "model-a")
    assert is_adapter(models / "adapter")


def test_a_split_model_is_suggested_by_its_first_shard(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.gguf").write_bytes(b"")
    (tmp_path / "models.gguf").write_bytes(b"")
    assert similar_path("model.gguf", [tmp_path]) == "; the model is split: did you mean 'model-00001-of-00002.gguf'?"


def test_tensors_are_found_by_name(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.safetensors", {"w": lbrx.zeros((2,))})
    model: Any = lbrx.open(tmp_path / "a.safetensors")
    with pytest.raises(lbrx.TensorNotFound, match=r"tensors are found by name; expected a string, not 0"):
        model[0]
