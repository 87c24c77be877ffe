"""Encoders in GGUF files. Tensors and key-values are compared in tests/models/architectures/test_golden_families.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.errors import LbrxError
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from support.family_goldens import golden


def write_model(folder: Path, name: str = "bert", **config: Any) -> Path:
    golden(name).write(folder)
    (folder / "config.json").write_text(json.dumps({**golden(name).config, **config}))
    return folder


def as_gguf(folder: Path) -> Contents:
    return hf_to_gguf(read_contents(folder), tokenizer_metadata={"tokenizer.ggml.model": "none"})


def write_pooling(folder: Path, settings: dict[str, Any]) -> None:
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"pooling_mode_mean_tokens": True}, 1),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, 2),
        ({"pooling_mode": "lasttoken"}, 3),
    ],
)
def test_pooling_is_that_of_sentence_transformers(tmp_path: Path, settings: dict[str, Any], number: int) -> None:
    model = write_model(tmp_path / "model")
    write_pooling(model, settings)
    metadata = as_gguf(model).metadata
    assert metadata["bert.pooling_type"] == number
    assert metadata["tokenizer.ggml.token_type_count"] == 2


def test_verification_finds_no_errors(tmp_path: Path) -> None:
    made = as_gguf(write_model(tmp_path / "model"))
    lbrx.save(tmp_path / "out.gguf", {each.name: each.make() for each in made.tensors}, made.metadata)
    assert not lbrx.verify(tmp_path / "out.gguf").errors


def test_other_poolings_are_an_error(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    write_pooling(model, {"pooling_mode_max_tokens": True})
    with pytest.raises(LbrxError, match=r"pools by None; llama.cpp has mean, cls, lasttoken"):
        as_gguf(model)


@pytest.mark.parametrize("path", ["../../other", "/1_Pooling", 7])
def test_modules_outside_the_model_are_an_error(tmp_path: Path, path: Any) -> None:
    model = write_model(tmp_path / "model")
    (model / "modules.json").write_text(json.dumps([{"path": path, "type": "x.Pooling"}]))
    (model / "config_sentence_transformers.json").write_text("{}")
    with pytest.raises(LbrxError, match="expected a folder such as '1_Pooling'"):
        as_gguf(model)


def test_joined_poolings_are_an_error(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    write_pooling(model, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True})
    with pytest.raises(LbrxError, match="joins the results of pooling_mode_mean_tokens, pooling_mode_max_tokens"):
        as_gguf(model)


def test_heads_without_a_name_are_left_out_with_a_warning(tmp_path: Path) -> None:
    made = as_gguf(write_model(tmp_path / "model", "bert-masked-lm"))
    assert made.warnings == ("5 tensors are left out: llama.cpp has no names for them in bert",)
    back = gguf_to_hf(made)
    assert back.config is not None
    assert back.config["architectures"] == ["BertModel"]
    assert "embeddings.word_embeddings.weight" in back.by_name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id2label": ["a"]}, "'id2label' is .* expected an object of numbers and labels"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"type_vocab_size": 3}, "expected \\(3, 32\\)"),
    ],
)
def test_wrong_configs_are_one_error(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(LbrxError, match=message):
        as_gguf(write_model(tmp_path / "model", **values))


def test_an_unknown_tensor_is_an_error(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    tensors = dict(lbrx.open(model)) | {"adapter.weight": lbrx.full((2, 2), 1.0, "f32")}
    lbrx.save(model / "model.safetensors", tensors)
    with pytest.raises(LbrxError, match=r"tensor 'adapter.weight' is not known"):
        as_gguf(model)
