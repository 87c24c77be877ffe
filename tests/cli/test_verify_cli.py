"""`lbrx verify`: a table or JSON, and an exit code that scripts can go by."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from support.verified_models import write_llama


def saved(path: Path, *values: float) -> str:
    lbrx.save(path, {"w": lbrx.tensor(np.array(values, np.float32))})
    return str(path)


def test_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.safetensors", 1.0, 2.0)
    assert run(["verify", path]) == 0
    printed = capsys.readouterr().out
    assert f"{path}: good" in printed
    assert "1 tensor, 8 B; checked: structure, chat template, code, values\n" in printed
    assert "not checked: vocabulary (has no config.json)\n" in printed
    assert "not checked: checksums (has no lbrx.checksums.json: bytes are not compared with checksums)\n" in printed


def test_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.safetensors", 1.0, np.nan)
    assert run(["verify", path]) == 1
    printed = capsys.readouterr().out
    assert "error  w" in printed
    assert "has 1 NaN and 0 infinite values of 2" in printed
    assert "broken, 1 error" in printed
    assert run(["verify", path, "--quick"]) == 0


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.safetensors", 1.0, np.nan)
    assert run(["verify", path, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["is_good"], printed["format"], printed["bytes"]) == (False, "safetensors", 8)
    assert {"severity": "error", "place": "w", "text": "has 1 NaN and 0 infinite values of 2"} in printed["findings"]


def test_names_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lbrx.save(tmp_path / "a.safetensors", {"\x1b[31mw": lbrx.tensor(np.array([np.nan], np.float32))})
    assert run(["verify", str(tmp_path / "a.safetensors")]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_json_says_which_checks_were_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.safetensors", 1.0)
    assert run(["verify", path, "--quick", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["structure"] == {"name": "structure", "done": True}
    assert checks["vocabulary"] == {"name": "vocabulary", "done": False, "reason": "has no config.json"}
    assert checks["values"] == {"name": "values", "done": False, "reason": "weights are not read"}


def test_a_template_that_differs_from_the_base_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, end in (("base", ""), ("tuned", "{{ 'buy now' }}\n")):
        write_llama(tmp_path / name)
        (tmp_path / name / "chat_template.jinja").write_text("{{ messages }}\n" + end)
    assert run(["verify", str(tmp_path / "tuned"), "--quick", "--base", str(tmp_path / "base")]) == 0
    printed = capsys.readouterr().out
    assert "\n+{{ 'buy now' }}\n" in printed
    assert "good, 1 warning" in printed
    assert run(["verify", str(tmp_path / "tuned"), "--base", str(tmp_path / "no")]) == 1
