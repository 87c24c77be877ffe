"""`lbrx moe` as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lbrx
from lbrx.cli.main import run
from support.small_models import GOLDEN

RECIPE = f"""\
base_model: {GOLDEN}/base
gate_mode: random
experts:
  - source_model: {GOLDEN}/a
  - source_model: {GOLDEN}/b
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "moe.yml"
    path.write_text(RECIPE)
    return path


def test_making_a_mixture(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["moe", str(recipe), str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 42 tensors, ")
    assert len(lbrx.open(out)) == 42
    assert run(["moe", str(recipe), str(out)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert run(["moe", str(recipe), str(out), "--overwrite", "--quiet", "--seed", "1"]) == 0
    assert capsys.readouterr().out == ""


def test_a_dry_run_writes_nothing(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["moe", str(recipe), str(tmp_path / "out"), "--dry-run"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["layout"], lines["tensors"]) == ("mixtral", "42")
    assert [path.name for path in tmp_path.iterdir()] == ["moe.yml"]


def test_events_for_programs(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["moe", str(recipe), str(tmp_path / "out"), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["event"] == "done"
    assert events[-1]["tensors"] == 42
    finished = [event for event in events if event["event"] == "progress"][-1]
    assert finished["done_bytes"] == finished["total_bytes"] == events[-1]["written_bytes"]


def test_a_mistake_is_one_line(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(RECIPE.replace("random", "randm"))
    assert run(["moe", str(recipe), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"error: {recipe}:2: unknown gate mode 'randm'; did you mean 'random'?\n"


def test_without_a_gate_mode_the_message_names_the_others(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(RECIPE.replace("gate_mode: random\n", ""))
    assert run(["moe", str(recipe), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == (
        f"error: {recipe}:3: expert 0 has no 'positive_prompts', which the gate mode 'hidden', the one that holds "
        f"without 'gate_mode', needs; expected prompts of what it is good at, or a 'gate_mode' that needs none: "
        f"'random', 'uniform_random', 'uniform'\n"
    )


def test_a_dry_run_as_json(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["moe", str(recipe), str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["event"], plan["layout"], plan["tensors"]) == ("plan", "mixtral", 42)
    assert {"config.json", "model.safetensors"} <= set(plan["files"])
    assert [path.name for path in tmp_path.iterdir()] == ["moe.yml"]


def test_strict_refuses_nan(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = lbrx.open(GOLDEN / "a")
    name = "model.layers.0.mlp.down_proj.weight"
    (tmp_path / "a").mkdir()
    lbrx.save(tmp_path / "a/model.safetensors", {**model, name: model[name] * float("nan")})
    (tmp_path / "a/config.json").write_bytes((GOLDEN / "a/config.json").read_bytes())
    recipe.write_text(RECIPE.replace(f"{GOLDEN}/a", "a"))
    assert run(["moe", str(recipe), str(tmp_path / "out"), "--strict"]) == 1
    assert "without --strict this is only reported" in capsys.readouterr().err
