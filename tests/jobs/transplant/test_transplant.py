"""Transplanted tokenizers: rows of shared tokens move, and the others are what NumPy computes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from tokenizers import Tokenizer

import lbrx
from lbrx.cli.main import run
from lbrx.errors import LbrxError
from lbrx.jobs.transplant.options import TransplantOptions
from lbrx.jobs.transplant.transplant import plan_transplant
from support.transplant_models import (
    COLUMNS,
    FIRST_TEXT,
    SECOND_TEXT,
    Array,
    read_model,
    tokenizer_of,
    write_model,
)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SIZE = 299  # tokens of the donor
K = 8


@cache
def first_tokenizer() -> Tokenizer:
    return tokenizer_of(FIRST_TEXT, 300)


@cache
def second_tokenizer() -> Tokenizer:
    return tokenizer_of(SECOND_TEXT, 310, end="<end of text>")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transplant")
    write_model(folder / "model", first_tokenizer(), 1, padding=4)
    write_model(folder / "donor", second_tokenizer(), 2, end="<end of text>", columns=32)
    return folder


def ids_of(tokenizer: Tokenizer) -> dict[str, int]:
    return tokenizer.get_vocab(with_added_tokens=True)


def pairs() -> tuple[list[tuple[int, int]], list[int]]:
    """The ids of shared tokens in donor and model, sorted, and the donor's ids of the others."""
    own, new = ids_of(first_tokenizer()), ids_of(second_tokenizer())
    own["<end of text>"] = own["<|end|>"]  # the role is the same
    shared = sorted((number, own[token]) for token, number in new.items() if token in own)
    return shared, sorted(number for token, number in new.items() if token not in own)


def best_combination(target: Array, points: Array, k: int) -> Array:
    """Orthogonal matching pursuit, solved anew in each step; the weight of every point."""
    chosen: list[int] = []
    rest, weights = target.astype(np.float64), np.zeros(0)
    for _ in range(k):
        products = np.abs(points @ rest)
        products[chosen] = -1
        chosen.append(int(products.argmax()))
        weights = np.linalg.lstsq(points[chosen].T, target)[0]
        rest = target - weights @ points[chosen]
    return np.bincount(chosen, weights, len(points))


def test_rows_of_shared_tokens_move_and_others_are_combined(models: Path, tmp_path: Path) -> None:
    lbrx.transplant(models / "model", models / "donor", tmp_path / "out", k=K)
    own, donor, made = (read_model(path) for path in (models / "model", models / "donor", tmp_path / "out"))
    shared, new = pairs()
    assert (len(shared), len(new)) == (280, 19)
    ids = np.array(shared)
    for name in (EMBEDDING, HEAD):
        assert made[name].shape == (SIZE, COLUMNS)
        np.testing.assert_array_equal(made[name][ids[:, 0]], own[name][ids[:, 1]])
        points = donor[name][ids[:, 0]].astype(np.float64)
        for number in new:
            weights = best_combination(donor[name][number].astype(np.float64), points, K)
            np.testing.assert_allclose(made[name][number], weights @ own[name][ids[:, 1]], atol=2e-5)
    for name in own.keys() - {EMBEDDING, HEAD}:
        np.testing.assert_array_equal(made[name], own[name])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["vocab_size"], config["eos_token_id"]) == (SIZE, second_tokenizer().token_to_id("<end of text>"))
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (models / "donor" / "tokenizer.json").read_bytes()


def rows_by(models: Path, out: Path, **options: object) -> Array:
    """The new rows of the embedding."""
    lbrx.transplant(models / "model", models / "donor", out, **options)  # type: ignore[arg-type]
    return read_model(out)[EMBEDDING][pairs()[1]]


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("weights", ["distance_proportional", "barycentric", "least_squares"])
def test_interpolation(models: Path, tmp_path: Path, weights: str, cosine: bool) -> None:
    found = rows_by(models, tmp_path / "out", method="common_interpolation", k=4, weights=weights, cosine=cosine)
    ids, new = np.array(pairs()[0]), pairs()[1]
    own, donor = (read_model(models / name)[EMBEDDING].astype(np.float64) for name in ("model", "donor"))
    points = donor[ids[:, 0]]
    for row, number in zip(found, new, strict=True):
        target = donor[number]
        distances = np.linalg.norm(points - target, axis=1)
        if cosine:
            distances = 1 - points @ target / np.linalg.norm(points, axis=1) / np.linalg.norm(target)
        near = np.argsort(distances)[:4]
        if weights == "distance_proportional":
            shares = 1 - distances[near] if cosine else 1 / distances[near]
            shares = shares / shares.sum()
        elif weights == "least_squares":
            shares = np.linalg.lstsq(points[near].T, target)[0]
        else:  # the nearest combination with the sum 1
            first, others = points[near[0]], points[near[1:]] - points[near[0]]
            tail = np.linalg.lstsq(others.T, target - first)[0]
            shares = np.array([1 - tail.sum(), *tail])
        np.testing.assert_allclose(row, shares @ own[ids[near, 1]], atol=1e-4)


def test_pieces_of_the_models_own_tokenizer(models: Path, tmp_path: Path) -> None:
    own, names = read_model(models / "model"), {number: token for token, number in ids_of(second_tokenizer()).items()}
    lbrx.transplant(models / "model", models / "donor", tmp_path / "out", method="subword", subword="weighted_mean")
    made = read_model(tmp_path / "out")
    for number in pairs()[1]:
        text = names[number].replace("Ġ", " ")
        ids = first_tokenizer().encode(text, add_special_tokens=False).ids
        weights = np.arange(1, len(ids) + 1) / np.arange(1, len(ids) + 1).sum()
        np.testing.assert_allclose(made[EMBEDDING][number], weights @ own[EMBEDDING][ids], atol=1e-6)
        np.testing.assert_allclose(made[HEAD][number], weights[::-1] @ own[HEAD][ids], atol=1e-6)


def test_methods_without_other_tokens(models: Path, tmp_path: Path) -> None:
    own = read_model(models / "model")[EMBEDDING]
    assert not rows_by(models, tmp_path / "zero", method="zero").any()
    mean = rows_by(models, tmp_path / "mean", method="mean", scale=2)
    np.testing.assert_allclose(mean, np.tile(2 * own.mean(axis=0), (len(mean), 1)), atol=1e-6)
    drawn = rows_by(models, tmp_path / "drawn", method="randn", seed=3)
    np.testing.assert_array_equal(drawn, rows_by(models, tmp_path / "again", method="randn", seed=3))
    assert 0.9 < drawn.std() < 1.1
    noisy = rows_by(models, tmp_path / "noisy", method="zero", noise=0.5)
    assert 0.45 < noisy.std() < 0.55


def test_the_covariance_of_drawn_rows(tmp_path: Path) -> None:
    """Many new tokens have the mean and the covariance of the model's rows."""
    write_model(tmp_path / "model", first_tokenizer(), 1, columns=4)
    words = tokenizer_of(SECOND_TEXT, 300)
    words.add_tokens([f"new{number}" for number in range(4000)])
    write_model(tmp_path / "donor", words, 2, columns=4)
    lbrx.transplant(tmp_path / "model", tmp_path / "donor", tmp_path / "out", method="john_hewitt")
    own, made = (read_model(tmp_path / name)[EMBEDDING] for name in ("model", "out"))
    np.testing.assert_allclose(np.cov(made[-4000:].T), np.cov(own.T), atol=0.12)
    np.testing.assert_allclose(made[-4000:].mean(axis=0), own.mean(axis=0), atol=0.06)


def test_the_same_bytes_for_any_number_of_threads(models: Path, tmp_path: Path) -> None:
    for threads in (1, 2):
        lbrx.transplant(models / "model", models / "donor", tmp_path / f"out{threads}", k=K, threads=threads)
    one, two = ((tmp_path / f"out{threads}" / "model.safetensors").read_bytes() for threads in (1, 2))
    assert one == two
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out1", "out2"]


def test_a_tied_model_and_bf16(models: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "tied", first_tokenizer(), 1, is_tied=True)
    lbrx.merge(
        {"merge_method": "passthrough", "models": [{"model": tmp_path / "tied"}], "dtype": "bfloat16"}, tmp_path / "b"
    )
    lbrx.transplant(tmp_path / "b", models / "donor", tmp_path / "out", k=2)
    made = lbrx.open(tmp_path / "out")
    assert HEAD not in made
    assert (made[EMBEDDING].dtype.name, made[EMBEDDING].shape) == ("bf16", (SIZE, COLUMNS))
    ids = np.array(pairs()[0])
    expected = lbrx.open(tmp_path / "b")[EMBEDDING].rows(ids[:, 1]).to("f32").numpy()
    np.testing.assert_array_equal(made[EMBEDDING].rows(ids[:, 0]).to("f32").numpy(), expected)


def test_tokens_of_different_kinds_are_compared_by_their_text(tmp_path: Path, models: Path) -> None:
    pieces = tokenizer_of(SECOND_TEXT, 420, is_byte_level=False)
    write_model(tmp_path / "pieces", pieces, 3)
    decided = plan_transplant(models / "model", tmp_path / "pieces", TransplantOptions(k=4))
    own, rows = ids_of(first_tokenizer()), decided.matches[EMBEDDING].own_rows
    new = ids_of(pieces)
    for theirs, ours in (("▁the", "Ġthe"), ("▁", "Ġ"), ("<0x0A>", "Ċ"), ("<|end|>", "<|end|>")):
        assert rows[new[theirs]] == own[ours]
    assert rows[new["é"]] == -1  # two bytes
    assert rows[new["<unk>"]] == -1


def test_a_prefix_lends_its_row(models: Path, tmp_path: Path) -> None:
    lbrx.transplant(models / "model", models / "donor", tmp_path / "out", k=2, prefix_match="head")
    own, made = read_model(models / "model")[HEAD], read_model(tmp_path / "out")
    old, new = ids_of(first_tokenizer()), ids_of(second_tokenizer())
    assert "Ġother" in new
    assert "Ġother" not in old
    longest = next("Ġother"[:end] for end in range(5, 0, -1) if "Ġother"[:end] in old)
    np.testing.assert_array_equal(made[HEAD][new["Ġother"]], own[old[longest]])
    assert not (made[EMBEDDING][new["Ġother"]] == read_model(models / "model")[EMBEDDING][old[longest]]).all()


def test_a_directory_with_a_tokenizer_is_enough(models: Path, tmp_path: Path) -> None:
    (tmp_path / "donor").mkdir()
    second_tokenizer().save(str(tmp_path / "donor" / "tokenizer.json"))
    lbrx.transplant(models / "model", tmp_path / "donor", tmp_path / "out", method="subword")
    assert read_model(tmp_path / "out")[EMBEDDING].shape == (SIZE, COLUMNS)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "eos_token_id" not in config  # those of the model are other tokens now


def test_mistakes(models: Path, tmp_path: Path) -> None:
    with pytest.raises(LbrxError, match="k is 500, but the model and the donor share only 280 tokens"):
        lbrx.transplant(models / "model", models / "donor", tmp_path / "out", k=500)
    with pytest.raises(LbrxError, match="unknown method 'subwords'; did you mean 'subword'"):
        lbrx.transplant(models / "model", models / "donor", tmp_path / "out", method="subwords")
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((models / "model" / name).read_bytes())
    with pytest.raises(LbrxError, match="bare: has no tokenizer"):
        lbrx.transplant(tmp_path / "bare", models / "donor", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]


def test_ids_of_other_tokens_follow_them(models: Path, tmp_path: Path) -> None:
    own, new = ids_of(first_tokenizer()), ids_of(second_tokenizer())
    shared = next(token for token in own if token in new and own[token] != new[token])
    lost = next(token for token in own if token not in new)
    copytree(models / "model", tmp_path / "model")
    config = json.loads((models / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "image_token_id": own[shared]}))
    lbrx.transplant(tmp_path / "model", models / "donor", tmp_path / "out", method="mean")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["image_token_id"] == new[shared]

    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "image_token_id": own[lost]}))
    with pytest.raises(LbrxError, match=r"'image_token_id' is .*; expected a donor that has this token"):
        lbrx.transplant(tmp_path / "model", models / "donor", tmp_path / "other", method="mean")
    with pytest.raises(LbrxError, match=r"out\.gguf: would not be a GGUF file; expected the name of a directory"):
        lbrx.transplant(models / "model", models / "donor", tmp_path / "out.gguf", method="mean")


def test_the_command(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["transplant", str(models / "model"), str(models / "donor"), str(tmp_path / "out"), "-k", "4"]
    assert run([*arguments, "--dry-run"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["vocabulary"] == f"304 -> {SIZE} rows"
    assert rows["tokens"] == "280 keep their rows, 19 get new ones"
    assert not list(tmp_path.iterdir())
    assert run([*arguments, "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["event"], done["tensors"]) == ("done", 12)
    assert run(arguments) == 1
    assert "--overwrite" in capsys.readouterr().err
