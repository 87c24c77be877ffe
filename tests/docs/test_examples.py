"""Recipes, scripts and the notebook of ``examples/`` run on the demo models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.demo.models import demo_models

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted((EXAMPLES / "recipes").glob("*.yml"))
NAME = "model.layers.0.mlp.up_proj.weight"
SCRIPTS = {
    "copy_demo_models": (["copy"], "copied to copy"),
    "merge_two_models": (["prose", "code", "merged"], "merged has 29 tensors"),
    "largest_changes": (["base", "code"], "%  model."),
    "custom_method": (["base", "code", "clipped"], "clipped has 29 tensors"),
    "quantization_error": (["base", NAME], "q4_0: error "),
}


@pytest.fixture
def models(folder: Path) -> Path:
    """The current directory, with the demo models by the names that the recipes use."""
    trained = demo_models()
    for model in (trained.base, trained.prose, trained.code):
        shutil.copytree(model, folder / model.name)
    return folder


def test_there_are_enough_recipes() -> None:
    assert len(RECIPES) >= 10


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_passes_a_dry_run(recipe: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", str(recipe), "out", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "tensors" in printed.out
    assert "warning" not in printed.err
    assert not (models / "out").exists()


def test_every_script_is_run() -> None:
    assert {path.stem for path in (EXAMPLES / "scripts").glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.usefixtures("models")
def test_script_runs(script: str) -> None:
    arguments, printed = SCRIPTS[script]
    command = [sys.executable, str(EXAMPLES / "scripts" / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_the_custom_method_limits_the_change(models: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "scripts/custom_method.py"), "base", "code", "clipped"]
    subprocess.run(command, check=True)
    base, code, clipped = (lbrx.open(models / name)[NAME] for name in ("base", "code", "clipped"))
    assert float(abs(code - base).max()) > 0.02
    assert 0.009 < float(abs(clipped - base).max()) < 0.0115  # the weights are bf16


def test_the_notebook_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert 0 < names["error"] < 0.01
