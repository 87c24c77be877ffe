"""`lbrx diff`: tables, JSON and pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.diff import Metric, heat_map, metric_text
from lbrx.demo.models import demo_models
from lbrx.jobs.compare.diff import diff_models
from support.cli_running import lbrx_command


def arrays(seed: int) -> dict[str, lbrx.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (8, 4)}
    for layer in range(3):
        shapes[f"model.layers.{layer}.self_attn.q_proj.weight"] = (4, 4)
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (6, 4)
    return {name: lbrx.normal(shape, seed, name).realize() for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("diff")
    paths = [directory / f"{name}.safetensors" for name in ("a", "b", "base")]
    for seed, path in enumerate(paths):
        extra = {"[bold]only": lbrx.full((1,), 1, "f32")} if seed == 0 else {}
        odd = {"odd": lbrx.full((2 + seed,), 1, "f32")}
        lbrx.save(path, arrays(seed) | extra | odd)
    return paths


def test_the_tables(models: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b, base = models
    outcome = lbrx_command(capsys, "diff", a, b, "--base", base)
    assert (outcome.code, outcome.err) == (0, "")
    found = diff_models(lbrx.open(a), lbrx.open(b), lbrx.open(base))
    lines = [line.split() for line in outcome.out.splitlines()]
    total = found.total
    assert [
        "all",
        f"{total.relative_change:.2%}",
        f"{total.cosine:.4f}",
        f"{total.sign_agreement:.2%}",
        f"{total.max_difference:.3g}",
        f"{total.task_cosine:.4f}",
    ] in lines
    modules = found.modules()["model.layers", 2]
    row = [f"{modules[module].relative_change:.2%}" for module in ("self_attn.q_proj", "mlp.up_proj")]
    assert ["layer", "q_proj", "up_proj"] in lines
    assert ["2", *row] in lines
    assert "7 tensors compared, 152 elements" in outcome.out
    assert "only in A: 1\n  [bold]only\n" in outcome.out
    assert "not compared, because their shapes differ: 1\n  odd: 2 in A, 3 in B\n" in outcome.out
    assert "only in B" not in outcome.out


def test_json_has_every_tensor(models: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b, _ = models
    outcome = lbrx_command(capsys, "diff", a, b, "--json", "--filter", "q_proj")
    printed = json.loads(outcome.out)
    found = diff_models(lbrx.open(a), lbrx.open(b), pattern="q_proj")
    assert printed["total"] == found.total.metrics()
    assert [layer["layer"] for layer in printed["layers"]] == [0, 1, 2]
    assert printed["tensors"][1] == {
        "name": "model.layers.1.self_attn.q_proj.weight",
        "shape": [4, 4],
        "layer": 1,
        **found.tensors[1].sums.metrics(),
    }
    assert (printed["only_in_a"], printed["shape_mismatches"], printed["base"]) == ([], [], None)


def test_json_lists_what_was_not_compared(models: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    printed = json.loads(lbrx_command(capsys, "diff", models[0], models[1], "--json").out)
    assert printed["only_in_a"] == ["[bold]only"]
    assert printed["shape_mismatches"] == [{"name": "odd", "a": [2], "b": [3]}]


def test_numbers_that_json_lacks_are_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("zero", 0.0), ("one", 1.0)):
        lbrx.save(tmp_path / f"{name}.safetensors", {"w": lbrx.full((2,), value, "f32")})
    outcome = lbrx_command(capsys, "diff", tmp_path / "zero.safetensors", tmp_path / "one.safetensors", "--json")
    total = json.loads(outcome.out)["total"]
    assert (total["relative_change"], total["cosine"], total["max_difference"]) == (None, None, 1.0)


@pytest.mark.parametrize("metric", [Metric.relative, Metric.tasks])
def test_pictures(metric: Metric, models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from matplotlib.image import imread

    picture = tmp_path / "diff.png"
    a, b, base = models
    outcome = lbrx_command(capsys, "diff", a, b, "--base", base, "--plot", picture, "--metric", metric.value)
    assert outcome.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["diff.png"]
    pixels = imread(picture)
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 800
    colours = np.ascontiguousarray(pixels[..., :3] * 255, np.uint8) @ np.array([1, 256, 65536])
    assert len(np.unique(colours)) > 50


def test_a_picture_has_the_numbers_of_the_table(models: list[Path]) -> None:
    found = diff_models(lbrx.open(models[0]), lbrx.open(models[1]))
    drawn = heat_map(found, Metric.cosine, "A and B")
    layers, others = drawn.panels
    assert (list(layers.rows), list(layers.columns)) == (["0", "1", "2"], ["q_proj", "up_proj"])
    assert layers.values[1, 0] == found.modules()["model.layers", 1]["self_attn.q_proj"].cosine
    assert list(others.columns) == ["embed_tokens"]
    assert not drawn.high_is_strong
    assert drawn.is_signed
    assert drawn.title.startswith("The cosine of A and B is ")
    assert drawn.cell_text(0.25) == "0.25"


def test_a_module_that_a_layer_lacks_stays_empty() -> None:
    a, b = arrays(0), arrays(1)
    del a["model.layers.1.mlp.up_proj.weight"]
    found = diff_models(a, b)
    values = heat_map(found, Metric.relative, "").panels[0].values
    assert np.isnan(values).tolist() == [[False, False], [False, True], [False, False]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "diff.gif"], "expected a picture that ends in .png, .svg, .pdf"),
        (["--plot", "/dev/null/diff.png"], "/dev/null: is a file; expected a directory to write to"),
        (["--metric", "tasks"], "add --base"),
        (["--filter", "k_proj"], "no tensor that matches 'k_proj' in common"),
    ],
)
def test_errors(
    arguments: list[str],
    message: str,
    models: list[Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = lbrx_command(capsys, "diff", models[0], models[1], *arguments)
    assert outcome.code == 1
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_without_matplotlib_the_error_says_how_to_get_it(
    models: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbrx.plots.heat_map.find_spec", lambda _name: None)
    outcome = lbrx_command(capsys, "diff", models[0], models[1], "--plot", tmp_path / "diff.png")
    assert outcome.code == 1
    assert "pip install 'lbrx[plot]'" in outcome.err


def test_numbers_are_printed_with_the_digits_that_matter() -> None:
    assert metric_text(Metric.relative, 0.0) == "0.00%"
    assert metric_text(Metric.relative, 3e-6) == "3.0e-06"
    assert metric_text(Metric.signs, 0.5) == "50.00%"
    assert metric_text(Metric.tasks, float("nan")) == "-"
    assert metric_text(Metric.largest, 0.00123456) == "0.00123"


def test_json_imports_neither_tables_nor_pictures(models: list[Path]) -> None:
    code = (
        "import sys; from lbrx.cli.main import run; run(sys.argv[1:]);"
        "print(sorted({'rich.table', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "diff", str(models[0]), str(models[1]), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_formats_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = demo_models()
    assert lbrx_command(capsys, "convert", shipped.code, tmp_path / "code.gguf", "--quiet").code == 0
    printed = [
        lbrx_command(capsys, "diff", shipped.prose, other, "--base", shipped.base).out.splitlines()[1:]
        for other in (shipped.code, tmp_path / "code.gguf")
    ]
    assert printed[0] == printed[1]
    modules = next(line for line in printed[0] if "q_proj" in line).split()
    assert modules[1:5] == ["input_layernorm", "q_proj", "k_proj", "v_proj"]
