"""RegMean: models are run on their texts, and matrices are merged by what they are multiplied with."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.cli.main import run as run_command
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, UsageError
from lbrx.jobs.imatrix.imatrix import calibration_chunks
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.parameters import InputGram
from lbrx.jobs.merge.methods.regmean import regmean
from lbrx.jobs.merge.plan import gram_files
from lbrx.models.inference import open_model
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.weights import Matrix
from lbrx.models.tokenizers.text import open_tokenizer
from support.family_goldens import golden

Array = npt.NDArray[Any]
PROSE = "In the beginning God created the heaven and the earth. And the earth was without form, and void. " * 8
CODE = "def merge(models):\n    total = 0\n    for model in models:\n        total += model\n    return total\n" * 6


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("prose.txt").write_text(PROSE)
    Path("code.txt").write_text(CODE)
    return tmp_path


def recipe(models: Mapping[str, str], **parameters: object) -> dict[str, Any]:
    listed = [{"model": str(model), "parameters": {"text": text}} for model, text in models.items()]
    return {"merge_method": "regmean", "models": listed, "parameters": parameters, "dtype": "float32"}


def demo_recipe(**parameters: object) -> dict[str, Any]:
    models = demo_models()
    return recipe({str(models.prose): "prose.txt", str(models.code): "code.txt"}, **parameters)


def inputs_of(model: LanguageModel, chunks: list[Any]) -> dict[str, Array]:
    """What each matrix is multiplied with, from running the whole model."""
    found: dict[str, list[Array]] = defaultdict(list)

    def watch(matrix: Matrix, values: Array) -> None:
        found[str(matrix.weight.name)].append(values.reshape(-1, values.shape[-1]).copy())

    for chunk in chunks:
        model.run_watched(chunk, watch, with_output=False)
    return {name: np.concatenate(parts).astype(np.float64) for name, parts in found.items()}


def merged(weights: list[Array], inputs: list[Array], factor: float = 0.9) -> Array:
    grams = [x.T @ x / len(x) for x in inputs]
    grams = [np.where(np.eye(len(g), dtype=bool), g, factor * g) for g in grams]
    inverse = np.linalg.inv(sum(grams))
    return sum(w @ g for w, g in zip(weights, grams, strict=True)) @ inverse


@pytest.mark.usefixtures("folder")
def test_matrices_are_nearest_to_the_outputs_of_each_model() -> None:
    lbrx.merge(demo_recipe(ridge=0.0), "out")
    out = lbrx.open("out")
    paths, texts = (demo_models().prose, demo_models().code), ("prose.txt", "code.txt")
    models, opened = [open_model(path) for path in paths], [lbrx.open(path) for path in paths]
    tokenizers = [open_tokenizer(path) for path in paths]
    given = zip(models, tokenizers, texts, strict=True)
    inputs = [inputs_of(m, calibration_chunks(m, t, [Path(text)], 512, 16)) for m, t, text in given]
    tested = 0
    for name in out:
        weights = [each[name].numpy().astype(np.float64) for each in opened]
        is_linear = name.startswith("model.layers.") and name.endswith("proj.weight")
        expected = merged(weights, [each[name] for each in inputs]) if is_linear else sum(weights) / 2
        np.testing.assert_allclose(out[name].numpy(), expected, rtol=1e-3, atol=2e-4 if is_linear else 1e-7)
        tested += is_linear
    assert tested == 21
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("name", ["gpt2", "phi3", "gemma4-inputs", "qwen3_moe", "falcon_h1", "mamba2"])
def test_families(name: str, folder: Path) -> None:
    case = golden(name)
    paths = [case.write(folder / "a"), case.write(folder / "b", 1)]
    size = case.config.get("vocab_size") or case.config["text_config"]["vocab_size"]
    words = {f"w{number}": number for number in range(size)}
    tokenizer = {
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
        "pre_tokenizer": {"type": "Whitespace"},
    }
    for path in paths:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    texts = [" ".join(f"w{(7 * i + 3 * i * i) % size}" for i in range(count)) for count in (40, 24)]
    for number, text in enumerate(texts):
        Path(f"{number}.txt").write_text(text)
    lbrx.merge(recipe({str(path): f"{n}.txt" for n, path in enumerate(paths)}, ridge=0.0, max_tokens=32), "out")
    out, opened = lbrx.open("out"), [lbrx.open(path) for path in paths]
    models = [open_model(path) for path in paths]
    chunks = [[open_tokenizer(path).encode(text)[:32]] for path, text in zip(paths, texts, strict=True)]
    inputs = [inputs_of(model, each) for model, each in zip(models, chunks, strict=True)]
    tested = 0
    for key in out:
        weights = [each[key].numpy().astype(np.float64) for each in opened]
        rows = [each.get(key) for each in inputs]
        is_in_layer = any(part.isdigit() for part in key.split("."))
        if weights[0].ndim != 2 or not is_in_layer or any(each is None for each in rows):
            np.testing.assert_allclose(out[key].numpy(), sum(weights) / 2, atol=1e-6, err_msg=key)
            continue
        is_transposed = name == "gpt2"
        weights = [each.T for each in weights] if is_transposed else weights
        expected = merged(weights, [each for each in rows if each is not None])
        result = out[key].numpy().T if is_transposed else out[key].numpy()
        np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max(), err_msg=key)
        tested += 1
    assert tested >= 2 * case.config.get("num_hidden_layers", case.config.get("n_layer", 2))


@pytest.mark.usefixtures("folder")
def test_a_stopped_run_continues_behind_the_layers_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    lbrx.merge(demo_recipe(), "whole", threads=1)
    original, calls = gram_files.GramFolder.add_layer, []

    def stopped(self: Any, *given: Any, **options: Any) -> None:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(self, *given, **options)

    monkeypatch.setattr(gram_files.GramFolder, "add_layer", stopped)
    with pytest.raises(KeyboardInterrupt):
        lbrx.merge(demo_recipe(), "out", threads=2)
    assert Path(".out.inputs").is_dir()
    lbrx.merge(demo_recipe(), "out", threads=2)
    assert len(calls) == 3 + 4  # of six layers, two were measured before
    assert not list(Path().glob(".*"))
    assert Path("out/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_the_current_directory_is_an_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = demo_models()
    (folder / "out").mkdir()
    monkeypatch.chdir("out")
    texts = {str(models.prose): str(folder / "prose.txt"), str(models.code): str(folder / "code.txt")}
    lbrx.merge(recipe(texts, max_tokens=64), ".", overwrite=True)
    assert (folder / "out/model.safetensors").is_file()
    assert not list(folder.glob(".*"))


@pytest.mark.usefixtures("folder")
def test_a_changed_text_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram_files.GramFolder, "forget", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr("lbrx.jobs.merge.merge.remove_tree", lambda _: None)
        lbrx.merge(demo_recipe(), "out")
        first = {path.name for path in Path(".out.inputs").iterdir() if path.is_dir()}
        Path("code.txt").write_text(CODE + "# more\n")
        lbrx.merge(demo_recipe(), "out", overwrite=True)
    second = {path.name for path in Path(".out.inputs").iterdir() if path.is_dir()}
    assert len(first) == 2
    assert len(second) == 3


@pytest.mark.usefixtures("folder")
def test_quantized_results_stages_and_other_formats() -> None:
    lbrx.merge(demo_recipe(), "out")
    lbrx.merge(demo_recipe(), "out.gguf", quantize="q8_0")
    lbrx.quantize("out", "again.gguf", "q8_0")
    first, second = lbrx.open("out.gguf"), lbrx.open("again.gguf")
    assert all(np.array_equal(first[name].numpy(), second[name].numpy()) for name in first)
    stage = {"name": "mix", **demo_recipe()}
    last = recipe({"mix": "code.txt", str(demo_models().base): "prose.txt"})
    text = f"{json.dumps(stage)}\n---\n{json.dumps(last)}\n"
    lbrx.merge(text, "staged")
    lbrx.merge(recipe({"out": "code.txt", str(demo_models().base): "prose.txt"}), "in-two-runs")
    assert Path("staged/model.safetensors").read_bytes() == Path("in-two-runs/model.safetensors").read_bytes()
    assert not list(Path().glob(".*"))


@pytest.mark.usefixtures("folder")
def test_mistakes_are_reported_before_models_run() -> None:
    text = "merge_method: regmean\nmodels:\n  - model: a\n    parameters:\n      text: {}\n"
    path = demo_models().prose
    given = text.format("absent.txt").replace("model: a", f"model: {path}")
    with pytest.raises(UsageError, match=r":5: text 'absent.txt': there is no such file"):
        lbrx.merge(given, "out")
    with pytest.raises(UsageError, match="has no 'text', which regmean needs"):
        lbrx.merge(f"merge_method: regmean\nmodels: [{{model: {path}}}]\n", "out")
    Path("out").mkdir()
    (Path("out") / "model.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match="--overwrite replaces it"):
        lbrx.merge(demo_recipe(), "out")
    lbrx.save("a.safetensors", {"w": lbrx.full((4, 4), 1.0)})
    with pytest.raises(UsageError, match=r"regmean runs its models on texts, but a.safetensors has no config.json"):
        lbrx.merge(recipe({"a.safetensors": "prose.txt"}), "other")
    Path("short.txt").write_text("")
    models = {str(demo_models().prose): "prose.txt", str(demo_models().code): "short.txt"}
    with pytest.raises(UsageError, match=r"^short.txt: the text has less than 2 tokens"):
        lbrx.merge(recipe(models), "other")
    assert not list(Path(".other.inputs").glob("*/index.json"))
    bert = golden("bert").write(Path("bert"))
    with pytest.raises(UsageError, match=r"regmean runs its models on texts: .*'bert' cannot be run"):
        lbrx.merge(recipe({str(bert): "prose.txt"}), "other")
    with pytest.raises(UsageError, match="all weights are 0"):
        lbrx.merge(demo_recipe(weight=0), "other")
    with pytest.raises(UsageError, match=r"regmean runs whole models on texts; expected lbrx.merge"):
        lbrx.merge_tensors([lbrx.full((2, 2), 1.0)], "regmean")


OWN = """
from collections.abc import Sequence
from typing import Annotated

from lbrx import MergeContext, Tensor
from lbrx.jobs.merge.methods import INPUT_TEXT


def largest(models, *, file: Annotated[Sequence[str], INPUT_TEXT], context: MergeContext):
    grams = [context.gram(number) for number in range(len(models))]
    return models[0] * 0 if None in grams else models[0] * 0 + float(grams[1].mean.max())


def wrong(models, *, file: Annotated[str, INPUT_TEXT]):
    return models[0]
"""


@pytest.mark.usefixtures("folder")
def test_a_method_of_the_user_gets_inputs() -> None:
    Path("own.py").write_text(OWN)
    listed = [
        {"model": str(model), "parameters": {"file": "code.txt"}} for model in (demo_models().prose, demo_models().code)
    ]
    given = {"merge_method": "./own.py:largest", "models": listed, "dtype": "float32"}
    lbrx.merge(given, "out", allow_code=True)
    model, tokenizer = open_model(demo_models().code), open_tokenizer(demo_models().code)
    inputs = inputs_of(model, calibration_chunks(model, tokenizer, [Path("code.txt")], 512, 16))
    name = "model.layers.1.mlp.down_proj.weight"
    expected = float((inputs[name].T @ inputs[name] / len(inputs[name])).max())
    assert float(lbrx.open("out")[name].max()) == pytest.approx(expected, rel=1e-4)
    assert float(lbrx.open("out")["model.embed_tokens.weight"].max()) == 0
    with pytest.raises(UsageError, match=r"own.py:14: wrong\(\): parameter 'file' names the text of each model"):
        lbrx.merge({**given, "merge_method": "./own.py:wrong"}, "other", allow_code=True)


@pytest.mark.usefixtures("folder")
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    models = [str(demo_models().prose), str(demo_models().code)]
    options = ["--method", "regmean", "--set", "text=prose.txt,code.txt", "--out", "out"]
    assert run_command(["merge", *models, *options, "--dry-run"]) == 0
    assert ", after each model has run on its text" in capsys.readouterr().out
    assert not list(Path().glob(".*"))
    assert run_command(["merge", *models, *options]) == 0
    assert run_command(["methods", "regmean"]) == 0
    assert "--set text=text-a.txt,text-b.txt" in capsys.readouterr().out.replace("\n", " ")


def test_inputs_that_do_not_determine_a_matrix() -> None:
    gram = InputGram(np.diag([1.0, 0.0]))
    context = MergeContext("w", grams=lambda _: gram)
    models = [lbrx.tensor([[1.0, 2.0]]), lbrx.tensor([[3.0, 4.0]])]
    with pytest.raises(UsageError, match="inputs of 'w' do not determine it; expected a ridge above 0"):
        regmean(models, text=["", ""], weight=[1.0, 1.0], ridge=0.0, context=context)
    result = regmean(models, text=["", ""], weight=[1.0, 3.0], context=context)
    np.testing.assert_allclose(result.numpy(), [[2.5, 3.5]], rtol=1e-6)


def test_nan_stays_visible() -> None:
    context = MergeContext("w", grams=lambda _: InputGram(np.eye(2)))
    models = [lbrx.tensor([[1.0, np.nan]]), lbrx.tensor([[3.0, 4.0]])]
    assert np.isnan(regmean(models, text=["", ""], weight=[1.0, 1.0], context=context).numpy()).tolist() == [
        [False, True]
    ]


def test_damaged_hidden_states_are_computed_again(tmp_path: Path) -> None:
    hidden = np.ones((2, 3), np.float32)
    gram_files.GramFolder(tmp_path).add_layer([], [hidden], is_last=False)
    begun = gram_files.GramFolder(tmp_path).begun()
    assert begun is not None
    np.testing.assert_array_equal(begun[1], [hidden])
    for content in (b"", b"PK", (tmp_path / "hidden-1.npz").read_bytes()[:60]):
        (tmp_path / "hidden-1.npz").write_bytes(content)
        assert gram_files.GramFolder(tmp_path).begun() is None


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    folder = gram_files.GramFolder(tmp_path / "a")
    with pytest.raises(FileError, match="not measured to the end"):
        folder.gram("w")
    folder.add_layer([gram_files.MeasuredInput(np.eye(3, dtype=np.float32), 4, {"w": 0})], [], is_last=True)
    gram = folder.gram("w")
    assert gram is not None
    np.testing.assert_array_equal(gram.mean, np.eye(3) / 4)
    assert (gram.axis, folder.gram("norm")) == (0, None)
    (tmp_path / "a/0-0.triangle").write_bytes(b"\0" * 8)
    with pytest.raises(FileError, match=r"0-0.triangle: is damaged"):
        folder.gram("w")
