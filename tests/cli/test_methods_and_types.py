"""`lbrx methods`, `lbrx types`, and merges without a recipe's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbrx.demo.models import demo_models
from lbrx.jobs.merge.methods import load_method
from lbrx.jobs.quantize.targets import target_names
from lbrx.registry import METHODS
from support.cli_running import lbrx_command

SHIPPED = demo_models()


def test_every_method_is_listed_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    rows = lbrx_command(capsys, "methods").out.splitlines()[1 : 1 + len(METHODS)]
    assert [row.split()[0] for row in rows] == list(METHODS)
    assert "density" in next(row for row in rows if row.startswith("ties "))


@pytest.mark.parametrize("name", METHODS)
def test_the_shown_recipe_and_command_of_a_method_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = (SHIPPED.prose, SHIPPED.code, SHIPPED.prose, SHIPPED.base)
    for link, model in zip(("model-a", "model-b", "model-c", "base"), models, strict=True):
        Path(link).symlink_to(model)
    for text in ("text-a.txt", "text-b.txt"):
        Path(text).write_text("In the beginning")
    shown = lbrx_command(capsys, "methods", name).out
    command = next(line for line in shown.splitlines() if line.startswith("lbrx merge")).split()[1:]
    Path("recipe.yml").write_text(shown.split("as a recipe\n")[1])
    by_command = lbrx_command(capsys, *command, "--dry-run", "--json")
    by_recipe = lbrx_command(capsys, "merge", "recipe.yml", "OUT", "--dry-run", "--json")
    assert (by_command.code, by_recipe.code) == (0, 0), by_command.out + by_recipe.err
    events = [json.loads(line) for line in by_command.out.splitlines()]
    assert events[0] == {"event": "recipe", "text": Path("recipe.yml").read_text()}
    for plan in (events[-1], json.loads(by_recipe.out.splitlines()[-1])):
        assert (plan["method"], plan["tensors"]) == (name, 29)


def test_methods_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    (slerp,) = json.loads(lbrx_command(capsys, "methods", "slerp", "--json").out)
    assert (slerp["base"], slerp["models"]) == (load_method("slerp").spec.needs_base, [1, 1])
    assert [(each["name"], each["required"]) for each in slerp["parameters"]] == [("t", True)]
    assert "did you mean 'ties'" in lbrx_command(capsys, "methods", "tise").err


def test_every_type_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row.split()[0] for row in lbrx_command(capsys, "types").out.splitlines()[1:]] == target_names()
    assert [row["name"] for row in json.loads(lbrx_command(capsys, "types", "--json").out)] == target_names()


def test_a_merge_without_a_file_writes_what_the_printed_recipe_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = (SHIPPED.prose, SHIPPED.code)
    options = ("--method", "linear", "--weight", "0.7,0.3", "--out", tmp_path / "a")
    done = lbrx_command(capsys, "merge", *models, *options)
    assert done.code == 0, done.err
    lines = done.out.split("recipe:\n")[1].split("\n\n")[0].splitlines()
    (tmp_path / "recipe.yml").write_text("\n".join(line[2:] for line in lines))
    assert lbrx_command(capsys, "merge", tmp_path / "recipe.yml", tmp_path / "b").code == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "b", "--method", "linear"], "--method needs --out"),
        (["a", "b", "--weight", "1"], "need --method"),
        (["a"], "expected RECIPE and OUT, or models with --method and --out"),
        (["a", "b", "--method", "linear", "--weight", "1,2,3", "--out", "o"], "3 values for 2 models"),
        (["a", "b", "--method", "linear", "--set", "weight", "--out", "o"], "expected NAME=VALUE"),
        (["a", "b", "--method", "liner", "--out", "o"], "did you mean 'linear'"),
    ],
)
def test_wrong_options_of_a_merge_without_a_file(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = lbrx_command(capsys, "merge", *arguments)
    assert done.code != 0
    assert message in done.err
