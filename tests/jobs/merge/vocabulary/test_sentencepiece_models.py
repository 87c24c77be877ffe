"""Merges with `tokenizer_source` of models that have a tokenizer.model and no tokenizer.json."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

import lbrx
from support.small_models import HIDDEN, Array, config, tensors, write_model
from support.tokenizer_fixtures import sentencepiece_bytes, sentencepiece_vocabulary

EMBEDDING = "model.embed_tokens.weight"


@cache
def pieces() -> list[tuple[str, float, int]]:
    return sentencepiece_vocabulary(size=300)


def write(directory: Path, seed: int, vocabulary: list[tuple[str, float, int]]) -> dict[str, Array]:
    random, rows = np.random.default_rng(seed), len(vocabulary)
    made = tensors(seed)
    made |= {name: random.standard_normal((rows, HIDDEN)).astype(np.float32) for name in (EMBEDDING, "lm_head.weight")}
    write_model(directory, made, config("llama", vocab_size=rows))
    (directory / "tokenizer.model").write_bytes(sentencepiece_bytes(vocabulary))
    return made


def merge(folder: Path, source: str) -> dict[str, Array]:
    models = ", ".join(f"{{model: {name}, parameters: {{weight: 0.5}}}}" for name in "ab")
    recipe = f"{{merge_method: linear, tokenizer_source: {source}, models: [{models}]}}"
    (folder / "recipe.yml").write_text(recipe)
    lbrx.merge(folder / "recipe.yml", folder / "out")
    return {name: tensor.numpy() for name, tensor in lbrx.open(folder / "out").items()}


def test_one_tokenizer_is_kept_as_it_is(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 1, pieces()), write(tmp_path / "b", 2, pieces())
    found = merge(tmp_path, "b")
    np.testing.assert_allclose(found[EMBEDDING], (a[EMBEDDING] + b[EMBEDDING]) / 2, atol=1e-6)
    assert (tmp_path / "out/tokenizer.model").read_bytes() == (tmp_path / "b/tokenizer.model").read_bytes()
    assert not (tmp_path / "out/tokenizer.json").exists()


def test_a_union_of_two(tmp_path: Path) -> None:
    more = [*pieces(), ("newpiece", -9999.0, 1)]
    a, b = write(tmp_path / "a", 1, pieces()), write(tmp_path / "b", 2, more)
    found = merge(tmp_path, "union")
    rows = len(pieces())
    assert found[EMBEDDING].shape == (rows + 1, HIDDEN)
    np.testing.assert_allclose(found[EMBEDDING][:rows], (a[EMBEDDING] + b[EMBEDDING][:rows]) / 2, atol=1e-6)
    np.testing.assert_allclose(found[EMBEDDING][rows], b[EMBEDDING][rows], atol=1e-6)
    assert (tmp_path / "out/tokenizer.json").is_file()
    assert not (tmp_path / "out/tokenizer.model").exists()
