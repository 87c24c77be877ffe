"""`lbrx compare`: tables, JSON and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run

VALUES = np.random.default_rng(2).standard_normal((8, 512)).astype(np.float32)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    names = [f"model.layers.{layer}.{module}.weight" for layer in range(2) for module in ("q_proj", "up_proj")]
    original = {name: lbrx.tensor(VALUES * (number + 1)) for number, name in enumerate(names)}
    changed = {name: tensor + 0.25 if "layers.1" in name else tensor for name, tensor in original.items()}
    lbrx.save(tmp_path / "a.safetensors", original | {"old": lbrx.full((3,), 1.0, "f32")})
    lbrx.save(tmp_path / "b.safetensors", changed | {"new": lbrx.full((3,), 1.0, "f32")})
    return str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")


def test_table(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair, "--top", "1"]) == 0
    printed = capsys.readouterr().out
    assert "4 tensors compared, 16.4 K elements" in printed
    error = np.linalg.norm(np.full_like(VALUES, 0.25)) / np.linalg.norm(3 * VALUES)
    listed = printed.split("worst block\n")[1].splitlines()
    assert listed[0].startswith(f"model.layers.1.q_proj.weight  f32       {error:.2%}")
    assert listed[1] == "... 3 more (use --top or --json)"
    assert "only in A: 1\n  old" in printed
    assert "only in B: 1\n  new" in printed


def test_json(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [tensor["name"] for tensor in printed["tensors"]][:2] == [
        "model.layers.1.q_proj.weight",
        "model.layers.1.up_proj.weight",
    ]
    worst, exact = printed["tensors"][0], printed["tensors"][-1]
    assert worst["max_error"] == pytest.approx(0.25, rel=1e-5)
    assert len(worst["worst_blocks"]) == 8
    assert set(worst["worst_blocks"][0]) == {"row", "first", "end", "relative"}
    assert (exact["relative_error"], exact["signal_to_noise_db"], exact["worst_blocks"]) == (0.0, None, [])
    assert (printed["only_in_a"], printed["only_in_b"]) == (["old"], ["new"])


def test_filter(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair, "--filter", "*.q_proj.*", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 2


def test_picture(pair: tuple[str, str], tmp_path: Path) -> None:
    assert run(["compare", *pair, "--plot", str(tmp_path / "errors.png")]) == 0
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


def test_picture_of_a_kind_that_is_not_known(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair, "--plot", "errors.docx"]) == 1
    assert "expected a picture that ends in" in capsys.readouterr().err


def test_equal_models_can_be_drawn(pair: tuple[str, str], tmp_path: Path) -> None:
    assert run(["compare", pair[0], pair[0], "--plot", str(tmp_path / "same.svg")]) == 0
    assert (tmp_path / "same.svg").stat().st_size > 1000
