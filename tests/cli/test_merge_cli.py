"""`lbrx merge` as it is typed: what it prints, where, and how it exits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from support.cli_running import in_terminal
from support.tiny import LINEAR, make_llama, random_tensors, write_model


@pytest.fixture
def recipe(folder: Path) -> str:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)
    (folder / "recipe.yml").write_text(LINEAR)
    return "recipe.yml"


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_line_when_it_is_no_terminal(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "out", "--no-sync"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("out: 21 tensors, 6.9 KiB, 32.00 bits per weight (read ")
    assert printed.out.endswith(" MiB memory\n")
    assert printed.out.count("\n") == 1
    assert printed.err == ""


def test_quiet(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "out", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_existing_output_is_an_error_in_one_line(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["merge", recipe, "out", "--quiet"])
    assert run(["merge", recipe, "out"]) == 1
    assert capsys.readouterr().err == "error: out: exists and is not empty; --overwrite replaces it\n"
    assert run(["merge", recipe, "out", "--overwrite", "--quiet"]) == 0


def test_dry_run_prints_the_plan_and_writes_nothing(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "out", "--dry-run"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line[0] != " ")
    assert lines["method"] == "linear"
    assert lines["tensors"] == "21"
    assert lines["output"] == "out"
    assert lines["passes"] == "1"
    assert lines["time"].startswith("about ")
    assert lines["memory"].endswith(" at most")
    assert sorted(path.name for path in Path().iterdir()) == ["a", "b", "recipe.yml"]


def test_dry_run_as_json(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "out", "--dry-run", "--json", "--shard-size", "2kB"]) == 0
    (plan,) = events(capsys.readouterr().out)
    assert plan["event"] == "plan"
    assert plan["read_bytes"] == 2 * 5024
    assert run(["merge", recipe, "written", "--shard-size", "2kB", "--no-sync", "--quiet"]) == 0
    assert plan["write_bytes"] == sum(file.stat().st_size for file in Path("written").glob("*.safetensors"))
    assert plan["models"] == ["a", "b"]
    assert "model-00001-of-00003.safetensors" in plan["files"]
    assert plan["passes"] == 1
    assert plan["peak_memory_bytes"] > 50 << 20


def test_events_for_programs(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "out", "--json", "--threads", "1"]) == 0
    *progress, done = events(capsys.readouterr().out)
    assert {event["event"] for event in progress} == {"progress"}
    last = progress[-1]
    assert last["done_tensors"] == last["total_tensors"] == 21
    assert last["done_bytes"] == last["total_bytes"] == 5024
    assert last["bytes_per_second"] > 0
    assert last["memory_bytes"] > 0
    assert done["event"] == "done"
    assert done["tensors"] == 21
    assert done["nonfinite"] == {}


def test_an_error_is_an_event_too(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "recipe.yml/where", "--json"]) == 1
    printed = capsys.readouterr()
    assert events(printed.out) == [
        {"event": "error", "message": "recipe.yml: is a file; expected a directory to write to"}
    ]
    assert printed.err == "error: recipe.yml: is a file; expected a directory to write to\n"


def test_nonfinite_values_are_told_and_strict_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(folder / "a", {"w": np.array([1.0, np.nan], np.float32)}, None)
    write_model(folder / "b", {"w": np.array([1.0, 2.0], np.float32)}, None)
    (folder / "recipe.yml").write_text(LINEAR)
    assert run(["merge", "recipe.yml", "out"]) == 0
    message = "tensor 'w': 1 NaN and 0 infinite values in a; 1 NaN and 0 infinite values in the result"
    assert capsys.readouterr().err == f"warning: {message}\n"
    assert run(["merge", "recipe.yml", "out", "--strict", "--overwrite"]) == 1
    assert capsys.readouterr().err == f"error: {message}; without --strict this is only reported\n"


def test_wrong_options(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe]) == 2
    assert run(["merge", recipe, "out", "--threads", "0"]) == 2
    assert run(["merge", recipe, "out", "--memory", "lots"]) == 1
    assert "'lots' is not a number of bytes" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs pseudo-terminals")
def test_a_terminal_gets_a_bar_with_speed_time_memory_and_tensor(folder: Path) -> None:
    for number, name in enumerate("ab"):
        write_model(folder / name, random_tensors({f"t.{i}": (64,) for i in range(400)}, number), None)
    (folder / "recipe.yml").write_text(LINEAR)
    patient = "import lbrx.cli.progress as p; p._PATIENCE_SECONDS = 0; "
    code = patient + "from lbrx.cli.main import run; run(['merge', 'recipe.yml', 'out'])"
    status, shown = in_terminal("-c", code, columns=120)
    assert status == 0
    for piece in ("/s", "merging", "t.", "KiB", "out: 400 tensors", "memory", "next: lbrx quantize out"):
        assert piece in shown


def test_a_dry_run_looks_at_the_target_and_the_disk(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["merge", recipe, "deep/out", "--dry-run"]) == 0
    assert "free on disk" in capsys.readouterr().out
    assert not Path("deep").exists()
    Path("deep/out").mkdir(parents=True)
    Path("deep/out/model.safetensors").write_bytes(b"old")
    assert run(["merge", recipe, "deep/out", "--dry-run"]) == 1
    assert "deep/out: exists and is not empty" in capsys.readouterr().err
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10}))
    assert run(["merge", recipe, "new", "--dry-run"]) == 1
    assert "new: disk full: needs 6.9 KiB, has 10 B free" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--method", "ties"], "ties needs a base model; expected --base MODEL"),
        (["--method", "linear"], "linear needs the parameter 'weight'; expected --weight W"),
        (["--method", "linear", "--set", "wieght=1"], "linear has no parameter 'wieght'; did you mean 'weight'?"),
        (["--method", "slerp", "--base", "a"], "slerp needs the parameter 't'; expected --set t=VALUE"),
    ],
)
def test_mistakes_without_a_recipe(
    arguments: list[str], problem: str, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recipe
    assert run(["merge", "a", "b", *arguments, "--out", "out"]) == 1
    assert problem in capsys.readouterr().err


def test_the_type_of_the_output_without_a_recipe(recipe: str) -> None:
    assert recipe
    arguments = ["--method", "linear", "--weight", "1", "--set", "dtype=float16", "--out", "out", "--no-sync"]
    assert run(["merge", "a", "b", *arguments]) == 0
    assert lbrx.open("out")["model.norm.weight"].dtype == "f16"


def test_a_dry_run_of_a_merge_into_another_format_says_what_is_read(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["merge", recipe, "out", "--format", "mlx", "--dry-run", "--json"]) == 0
    (plan,) = events(capsys.readouterr().out)
    assert (plan["method"], plan["models"], plan["read_bytes"]) == ("linear", ["a", "b"], 2 * 5024)


def test_errors_of_a_conversion_name_the_model(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["merge", recipe, "out.gguf"]) == 1
    assert capsys.readouterr().err == "error: a: holds no tokenizer.json, no tokenizer.model and no other vocabulary\n"
