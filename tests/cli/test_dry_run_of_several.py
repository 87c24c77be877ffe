"""`lbrx quantize --to a,b --dry-run`: every output with its size, and nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.jobs.imatrix.imatrix import ChunkMeasurer, measured_here
from support.cli_running import lbrx_command

BASE = demo_models().base
GIVEN = ("--to", "q4_k_m,q8_0,mlx_4")


def test_sizes_are_those_of_the_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    plan = json.loads(lbrx_command(capsys, "quantize", BASE, out, *GIVEN, "--dry-run", "--json").out)
    assert not out.exists()
    lbrx.quantize(BASE, out, ["q4_k_m", "q8_0", "mlx_4"])
    assert [each["name"] for each in plan["outputs"]] == ["base-Q4_K_M.gguf", "base-Q8_0.gguf", "base-MLX-4bit"]
    for each in plan["outputs"]:
        path = out / each["name"]
        files = [path / name for name in each["files"]] if path.is_dir() else [path]
        assert each["write_bytes"] == each["bytes"] == sum(file.stat().st_size for file in files)
    assert plan["write_bytes"] == sum(each["bytes"] for each in plan["outputs"])
    assert plan["free_bytes"] > plan["write_bytes"]


def test_complete_outputs_are_not_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    lbrx.quantize(BASE, out, ["q8_0"])
    outcome = lbrx_command(capsys, "quantize", BASE, out, *GIVEN, "--dry-run")
    rows = {line.split()[0]: line.split()[-1] for line in outcome.out.splitlines() if line.startswith("base-")}
    assert rows == {"base-Q4_K_M.gguf": "new", "base-Q8_0.gguf": "complete", "base-MLX-4bit": "new"}
    assert "in 2 outputs" in outcome.out
    assert "free on disk" in outcome.out


def test_what_is_in_the_way_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "base-Q8_0.gguf").write_bytes(b"mine")
    refused = lbrx_command(capsys, "quantize", BASE, out, *GIVEN, "--dry-run")
    assert refused.code == 1
    assert "base-Q8_0.gguf" in refused.err
    replaced = lbrx_command(capsys, "quantize", BASE, out, *GIVEN, "--dry-run", "--overwrite")
    assert "replaces existing" in replaced.out
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    full = lbrx_command(capsys, "quantize", BASE, out, *GIVEN, "--dry-run", "--overwrite")
    assert (full.code, "disk full" in full.err) == (1, True)
    assert [path.name for path in out.iterdir()] == ["base-Q8_0.gguf"]


def test_a_dry_run_calibrates_on_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, asked = tmp_path / "text.txt", []
    text.write_text(calibration_text()[:1500])

    def runner(*given: object) -> ChunkMeasurer:
        asked.append(given)
        return measured_here

    monkeypatch.setattr("lbrx.cluster.calibrating.cluster_imatrix_runner", runner)
    given = ("quantize", BASE, tmp_path / "out", *GIVEN, "--dry-run", "--calibrate", text, "--cluster", "head:6379")
    assert lbrx_command(capsys, *given).code == 0
    assert asked == [("head:6379", None)]
    refused = lbrx_command(capsys, *given, "--device", "numpy")
    assert (refused.code, "its workers compute" in refused.err) == (1, True)


def test_wrong_types_and_missing_importances_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for types, message in (("q8_0,q9", "'q9'"), ("q8_0,iq2_xs", "needs importances"), ("q4_k,q4_k_m", "given twice")):
        outcome = lbrx_command(capsys, "quantize", BASE, tmp_path / "out", "--to", types, "--dry-run")
        assert (outcome.code, message in outcome.err) == (1, True)
    assert not (tmp_path / "out").exists()
