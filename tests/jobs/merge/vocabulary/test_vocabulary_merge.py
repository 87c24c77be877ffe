"""Merges of models with different vocabularies, from recipes to files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from lbrx.errors import LbrxError
from lbrx.jobs.merge.merge import merge, read_and_plan
from support.small_vocabularies import special, word_tokenizer

Array = npt.NDArray[Any]
Models = tuple[dict[str, Array], dict[str, Array]]
HIDDEN = 8

LINEAR = """
merge_method: linear
models:
  - {model: a, parameters: {weight: 1}}
  - {model: b, parameters: {weight: 1}}
"""


def make_model(
    path: Path, seed: int, words: Sequence[str], rows: int, *, end: str = "<s>", tied: bool = False, **files: Any
) -> dict[str, Array]:
    """A llama of one layer with a tokenizer of these words and an added token; ``files`` are more JSON files."""
    random = np.random.default_rng(seed)
    shapes = {
        "model.embed_tokens.weight": (rows, HIDDEN),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (rows, HIDDEN),
    }
    for matrix in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
        shapes[f"model.layers.0.{matrix}.weight"] = (HIDDEN, HIDDEN)
    for matrix in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        shapes[f"model.layers.0.{matrix}.weight"] = (HIDDEN, HIDDEN)
    if tied:
        del shapes["lm_head.weight"]
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    tokenizer = word_tokenizer(words, [special(end)])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": rows,
        "tie_word_embeddings": tied,
        "eos_token_id": tokenizer.ids[end],
    }
    path.mkdir()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(tokenizer.text)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return tensors


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def token_ids(out: Path) -> dict[str, int]:
    from lbrx.models.tokenizers.tokenizer_file import read_tokenizer

    found = read_tokenizer(out)
    assert found is not None
    return dict(found.ids)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Models:
    monkeypatch.chdir(tmp_path)
    a = make_model(Path("a"), 1, ["<unk>", "red", "green"], 4, generation_config={"eos_token_id": 3})
    b = make_model(Path("b"), 2, ["<unk>", "green", "blue", "black"], 5, generation_config={"eos_token_id": 4})
    return a, b


@pytest.mark.parametrize("tensor", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_union_merges_rows_by_token(models: Models, tensor: str) -> None:
    merge(LINEAR + "tokenizer_source: union\n", "out")
    assert token_ids(Path("out")) == {"<unk>": 0, "red": 1, "green": 2, "<s>": 3, "blue": 4, "black": 5}
    a, b = (model[tensor] for model in models)
    expected = [(a[0] + b[0]) / 2, a[1], (a[2] + b[1]) / 2, (a[3] + b[4]) / 2, b[2], b[3]]
    np.testing.assert_allclose(load_file("out/model.safetensors")[tensor], expected, rtol=1e-6)
    config = read_json(Path("out/config.json"))
    assert (config["vocab_size"], config["eos_token_id"]) == (6, 3)


def test_the_vocabulary_of_another_model_brings_its_special_ids(
    models: Models,
) -> None:
    merge(LINEAR + "tokenizer_source: b\n", "out")
    assert Path("out/tokenizer.json").read_bytes() == Path("b/tokenizer.json").read_bytes()
    a, b = (model["lm_head.weight"] for model in models)
    expected = [(a[0] + b[0]) / 2, (a[2] + b[1]) / 2, b[2], b[3], (a[3] + b[4]) / 2]
    np.testing.assert_allclose(load_file("out/model.safetensors")["lm_head.weight"], expected, rtol=1e-6)
    config = read_json(Path("out/config.json"))
    assert (config["vocab_size"], config["eos_token_id"]) == (5, 4)
    assert read_json(Path("out/generation_config.json")) == {"eos_token_id": 4}


def test_tokens_and_padding_of_a_recipe(models: Models) -> None:
    tokenizer = """
tokenizer:
  source: union
  pad_to_multiple_of: 8
  tokens:
    blue: {source: {kind: zero}}
    <s>: {source: b, force: true}
    <new>: {source: {kind: model_token, model: a, token: red}}
"""
    merge(LINEAR + tokenizer, "out")
    assert token_ids(Path("out"))["<new>"] == 6
    a, b = (model["model.embed_tokens.weight"] for model in models)
    rows_a = [a[0], a[1], a[2], b[4], a[0] * 0, b[3], a[1]]
    rows_b = [b[0], a[1], b[1], b[4], b[2], b[3], a[1]]
    expected = (np.stack([*rows_a, np.mean(rows_a, axis=0)]) + np.stack([*rows_b, np.mean(rows_b, axis=0)])) / 2
    found = load_file("out/model.safetensors")["model.embed_tokens.weight"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_task_vectors_over_a_union(models: Models) -> None:
    recipe = """
merge_method: task_arithmetic
base_model: a
models: [{model: b, parameters: {weight: 0.5}}]
tokenizer_source: union
"""
    merge(recipe, "out")
    a, b = (model["lm_head.weight"] for model in models)
    expected = [(a[0] + b[0]) / 2, a[1], (a[2] + b[1]) / 2, (a[3] + b[4]) / 2, b[2], b[3]]
    np.testing.assert_allclose(load_file("out/model.safetensors")["lm_head.weight"], expected, rtol=1e-5, atol=1e-6)


def test_a_slice_lends_rows_to_the_other(models: Models) -> None:
    """The embedding is that of the first slice, the head that of the last; each gets all tokens."""
    recipe = """
merge_method: passthrough
slices:
  - sources: [{model: a, layer_range: [0, 1]}]
  - sources: [{model: b, layer_range: [0, 1]}]
tokenizer_source: union
"""
    merge(recipe, "out")
    found = load_file("out/model.safetensors")
    a, b = (model["model.embed_tokens.weight"] for model in models)
    np.testing.assert_array_equal(found["model.embed_tokens.weight"], [a[0], a[1], a[2], a[3], b[2], b[3]])
    a, b = (model["lm_head.weight"] for model in models)
    np.testing.assert_array_equal(found["lm_head.weight"], [b[0], a[1], b[1], b[4], b[2], b[3]])


@pytest.mark.usefixtures("models")
def test_a_later_stage_knows_the_tokens_of_an_earlier_one(tmp_path: Path) -> None:
    c = make_model(tmp_path / "c", 3, ["<unk>", "white", "blue"], 4)
    stages = f"""
name: both
{LINEAR.strip()}
tokenizer_source: union
---
merge_method: passthrough
models: [{{model: both}}]
"""
    merge(stages, "same")
    assert token_ids(Path("same")) == {"<unk>": 0, "red": 1, "green": 2, "<s>": 3, "blue": 4, "black": 5}
    assert read_json(Path("same/config.json"))["vocab_size"] == 6
    merge(
        stages.replace("passthrough", "linear\ntokenizer_source: union").replace(
            "[{model: both}]", "[{model: both, parameters: {weight: 1}}, {model: c, parameters: {weight: 1}}]"
        ),
        "out",
    )
    assert token_ids(Path("out"))["white"] == 6
    both = load_file("same/model.safetensors")["lm_head.weight"]
    own = c["lm_head.weight"]
    expected = [
        (both[0] + own[0]) / 2,
        both[1],
        both[2],
        (both[3] + own[3]) / 2,
        (both[4] + own[2]) / 2,
        both[5],
        own[1],
    ]
    np.testing.assert_allclose(load_file("out/model.safetensors")["lm_head.weight"], expected, rtol=1e-6)


def test_tied_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a = make_model(Path("a"), 1, ["<unk>", "red"], 4, tied=True)["model.embed_tokens.weight"]
    b = make_model(Path("b"), 2, ["<unk>", "blue"], 3, tied=True)["model.embed_tokens.weight"]
    merge(LINEAR + "tokenizer_source: union\n", "out")
    found = load_file("out/model.safetensors")
    assert "lm_head.weight" not in found
    # <unk>, red, <s>, blue, which takes the padding row of a
    expected = [(a[0] + b[0]) / 2, a[1], (a[2] + b[2]) / 2, b[1]]
    np.testing.assert_allclose(found["model.embed_tokens.weight"], expected, rtol=1e-6)


@pytest.mark.usefixtures("models")
def test_chat_templates_by_name_and_by_majority() -> None:
    merge(LINEAR + "tokenizer_source: union\nchat_template: chatml\n", "out")
    template = Path("out/chat_template.jinja").read_text()
    assert "<|im_start|>" in template
    assert read_json(Path("out/tokenizer_config.json")) == {"chat_template": template}
    Path("b/tokenizer_config.json").write_text('{"chat_template": "{{ messages }} of b"}')
    merge(LINEAR + "tokenizer_source: union\nchat_template: auto\n", "auto")
    assert Path("auto/chat_template.jinja").read_text() == "{{ messages }} of b"


@pytest.mark.usefixtures("models")
def test_a_changed_tokenizer_is_another_plan() -> None:

    recipe = LINEAR + "tokenizer_source: union\n"
    before = read_and_plan(recipe, "out").identity({})
    swapped = word_tokenizer(["<unk>", "blue", "green", "black"], [special("<s>")])
    Path("b/tokenizer.json").write_text(swapped.text)
    after = read_and_plan(recipe, "out").identity({})
    assert {key for key in before if before[key] != after[key]} == {"vocabulary"}


def test_an_unknown_family_has_no_known_embedding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Path(name).mkdir()
        save_file({"w": np.zeros((2, 2), np.float32)}, f"{name}/model.safetensors")
    with pytest.raises(LbrxError, match="the embedding of a is not known, so that its vocabulary cannot be changed"):
        read_and_plan(LINEAR + "tokenizer_source: union\n", "out")


@pytest.mark.usefixtures("models")
def test_a_sentencepiece_model_only() -> None:
    Path("b/tokenizer.json").rename("b/spiece.model")
    with pytest.raises(LbrxError, match=r"has spiece\.model, a SentencePiece model, but no tokenizer\.json"):
        read_and_plan(LINEAR + "tokenizer_source: union\n", "out")
