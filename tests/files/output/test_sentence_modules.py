"""Folders of sentence-transformers beside a model are kept, and copies of a model have them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from support.family_goldens import golden

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
]
KEPT = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/config.json")


def write_model(folder: Path, copy: int = 0) -> Path:
    golden("bert").write(folder, copy)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    for name in ("1_Pooling", "2_Dense"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"of": f"{folder.name}/{name}"}))
    lbrx.save(folder / "2_Dense/model.safetensors", {"linear.weight": lbrx.full((4, 32), 0.5, "f32")})
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*KEPT, "2_Dense/model.safetensors")}


def test_a_merge_has_the_modules_of_its_first_model(tmp_path: Path) -> None:
    a, b, out = write_model(tmp_path / "a"), write_model(tmp_path / "b", 1), tmp_path / "out"
    recipe = f"{{merge_method: linear, parameters: {{weight: 1}}, models: [{{model: {a}}}, {{model: {b}}}]}}"
    warnings: list[str] = []
    lbrx.merge(recipe, out, planned=lambda plan: warnings.extend(plan.warnings))
    assert content(out) == content(a)
    assert f"2_Dense/model.safetensors is copied from {a} and not merged" in warnings
    merged = lbrx.open(out)
    arrays = [golden("bert").arrays(copy)["embeddings.LayerNorm.bias"] for copy in (0, 1)]
    np.testing.assert_allclose(merged["embeddings.LayerNorm.bias"].numpy(), sum(arrays) / 2, rtol=1e-6, atol=1e-7)
    assert "linear.weight" not in merged

    lbrx.merge(recipe.replace(f"{{model: {a}}}, ", ""), out, overwrite=True)
    assert content(out) == content(b)
    (out / "1_Pooling" / "notes.txt").write_text("mine")
    with pytest.raises(LbrxError, match="has '1_Pooling', no part of a model"):
        lbrx.merge(recipe, out, overwrite=True)


def test_a_conversion_keeps_the_modules(tmp_path: Path) -> None:
    model, out = write_model(tmp_path / "a"), tmp_path / "out"
    lbrx.convert(model, out, type="bf16")
    assert content(out) == content(model)


def test_modules_that_a_list_does_not_name_are_left_out(tmp_path: Path) -> None:
    model, out = write_model(tmp_path / "a"), tmp_path / "out"
    (model / "modules.json").write_text(json.dumps(MODULES[:2]))
    lbrx.convert(model, out, type="bf16")
    assert (out / "1_Pooling").is_dir()
    assert not (out / "2_Dense").exists()
    shutil.rmtree(model / "1_Pooling")
    lbrx.convert(model, out, overwrite=True)
    assert not (out / "1_Pooling").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"path": "../a"}]', "'path' is '../a'; expected a folder such as '1_Pooling'"),
        ('[{"path": "/etc"}]', "'path' is '/etc'"),
        ('[{"path": 1}]', "'path' is 1"),
        ("{}", "is not a list of modules"),
        ("[1]", "is not a list of modules"),
        ("[", "modules.json"),
    ],
)
def test_wrong_lists_are_one_error(tmp_path: Path, text: str, message: str) -> None:
    model = write_model(tmp_path / "a")
    (model / "modules.json").write_text(text)
    with pytest.raises(LbrxError, match=message):
        lbrx.convert(model, tmp_path / "out", type="bf16")
    assert not (tmp_path / "out").exists()
