"""`lbrx verify`: a table or JSON, and an exit code that scripts can go by."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run


def saved(path: Path, *values: float) -> str:
    lbrx.save(path, {"w": lbrx.tensor(np.array(values, np.float32))})
    return str(path)


def test_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.safetensors", 1.0, 2.0)
    assert run(["verify", path]) == 0
    printed = capsys.readouterr().out
    assert f"{path}: good" in printed
    assert "1 tensor, 8 B; checked: structure, architecture, vocabulary, checksums, values" in printed


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
