"""`lbrx demo`: the merge is better than its parents, and the files are what it says. And the random models."""

from __future__ import annotations

from pathlib import Path

import pytest

import lbrx
from lbrx.cli.demo import QUANTIZED_TO
from lbrx.demo import models
from lbrx.models.inference import open_model
from support.cli_running import lbrx_command


def test_random_models_are_whole_llama_models(tmp_path: Path) -> None:
    from lbrx.models.architectures import check_names, check_shapes, find_family

    base = lbrx.open(models.write_model(tmp_path / "base", models.base_tensors()))
    tuned = lbrx.open(models.write_model(tmp_path / "tuned", models.tuned_tensors(base)))
    for model in (base, tuned):
        assert model.config is not None
        llama = find_family(model.config)
        assert check_names(llama, model.config, list(model)) == []
        assert check_shapes(llama, model.config, {name: tensor.shape for name, tensor in model.items()}) == []
    name = "model.layers.{}.mlp.up_proj.weight"
    near, far = (
        float((tuned[name.format(layer)] - base[name.format(layer)]).norm()) for layer in (0, models.LAYERS - 1)
    )
    assert 0 < near < far


def test_the_trained_models_and_their_texts_are_in_the_package() -> None:
    shipped = models.demo_models()
    for path in (shipped.base, shipped.prose, shipped.code):
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in path.iterdir()}
        spec = open_model(path).spec
        assert (spec.vocabulary, spec.hidden, len(spec.layers)) == (1024, 256, 3)
    assert "unto" in shipped.prose_text.read_text(encoding="utf-8")
    assert "def " in shipped.code_text.read_text(encoding="utf-8")
    folder = shipped.base.parent
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 10_000_000
    assert {"README.md", "LICENSE-PSF.txt"} <= {file.name for file in folder.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    from contextlib import redirect_stdout
    from io import StringIO

    from lbrx.cli.main import run

    folder = tmp_path_factory.mktemp("demo") / "out"
    printed = StringIO()
    with redirect_stdout(printed):
        assert run(["demo", "--output", str(folder)]) == 0
    return folder, printed.getvalue()


def losses(printed: str) -> dict[str, tuple[float, float]]:
    """Mean and worst loss of every model in the table of scores."""
    lines = printed.split("3. Score all models")[1].split("4. Quantize")[0].splitlines()
    rows = [line.split() for line in lines if len(line.split()) == 5 and "loss" not in line]
    return {name: (float(mean), float(worst)) for name, _, _, mean, worst in rows}


def test_a_merge_is_better_than_both_parents_and_the_base(finished: tuple[Path, str]) -> None:
    found = losses(finished[1])
    methods = list(models.demo_recipes(models.demo_models()))
    assert list(found) == ["base", "prose", "code", *methods]
    best = min(methods, key=lambda method: found[method][0])
    for parent in ("prose", "code"):
        assert found[best][0] < found[parent][0] - 0.2
        assert found[best][1] < found[parent][1] - 0.2
    assert found[best][0] < found["base"][0]


def test_every_file_is_there_and_runs(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    for method in models.demo_recipes(models.demo_models()):
        assert lbrx.open(folder / method).keys() == lbrx.open(models.demo_models().base).keys()
        assert (folder / f"{method}.yml").is_file()
    quantized = sorted(folder.glob("*.gguf"))
    assert [path.stem.split("-")[1] for path in quantized] == sorted(QUANTIZED_TO)
    for path in quantized:
        assert path.name in printed
        assert len(list(open_model(path).generate([5, 6], 3))) == 3
    assert (folder / "changes.png").read_bytes().startswith(b"\x89PNG")


def test_it_runs_again_over_its_own_files(
    finished: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbrx.cli.demo._TOKENS", 60)
    again = lbrx_command(capsys, "demo", "--output", finished[0])
    assert (again.code, again.err) == (0, "")
