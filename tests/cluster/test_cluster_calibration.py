"""Importance matrices and error feedback on a cluster: the bytes of one machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.cluster import ClusterError
from lbrx.demo.models import demo_models
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.jobs.imatrix.imatrix import imatrix

BASE = demo_models().base


@pytest.fixture
def text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(calibration_text()[:3000])
    return path


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("options", [{}, {"process_output": True, "threads": 1}])
def test_importance_matrices_are_those_of_one_machine(folder: Path, text: Path, options: dict[str, Any]) -> None:
    seen: list[tuple[int, int, str]] = []
    local = imatrix(BASE, folder / "local.gguf", text, context=64, **options)
    clustered = imatrix(
        BASE, folder / "c.gguf", text, context=64, cluster="auto", progress=lambda *step: seen.append(step), **options
    )
    assert local.measured_chunks == clustered.measured_chunks > 4
    assert (folder / "c.gguf").read_bytes() == (folder / "local.gguf").read_bytes()
    assert [done for done, _, _ in seen] == list(range(local.measured_chunks))


@pytest.mark.usefixtures("ray_cluster")
def test_the_command(folder: Path, text: Path) -> None:
    given = [str(BASE), "--text", str(text), "--context", "64", "--max-chunks", "3"]
    assert run(["imatrix", given[0], "a.gguf", *given[1:]]) == 0
    assert run(["imatrix", given[0], "b.gguf", *given[1:], "--cluster", "auto"]) == 0
    assert (folder / "a.gguf").read_bytes() == (folder / "b.gguf").read_bytes()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("name", ["q4_k_m", "mlx_4"])
def test_feedback_has_the_bytes_of_one_machine(folder: Path, text: Path, name: str) -> None:
    ending = ".gguf" if name == "q4_k_m" else ""
    local, clustered = folder / f"local{ending}", folder / f"clustered{ending}"
    lbrx.quantize(BASE, local, name, calibrate=text.name, feedback=True)
    lbrx.quantize(BASE, clustered, name, calibrate=text.name, feedback=True, cluster="auto")
    files = [local] if local.is_file() else [path for path in local.iterdir() if path.suffix == ".safetensors"]
    for path in files:
        other = clustered if local.is_file() else clustered / path.name
        assert path.read_bytes() == other.read_bytes()
    assert not list(folder.glob(".*"))


@pytest.mark.usefixtures("ray_cluster")
def test_types_for_a_size_are_those_of_one_machine(text: Path) -> None:
    """Workers plan the model anew, with measurements at a path that only the driver can resolve."""
    for name, cluster in (("local", None), ("clustered", "auto")):
        Path(name).mkdir()
        out = Path(name, "a.gguf")
        lbrx.quantize(BASE, out, target_bpw=5.0, calibrate=text.name, feedback=True, cluster=cluster)
    assert Path("clustered", "a.gguf").read_bytes() == Path("local", "a.gguf").read_bytes()


@pytest.mark.usefixtures("ray_cluster")
def test_calibrated_outputs_have_the_bytes_of_one_machine(folder: Path, text: Path) -> None:
    lbrx.quantize(BASE, "a.gguf", "q4_0", calibrate=text.name)
    lbrx.quantize(BASE, "b.gguf", "q4_0", calibrate=text.name, cluster="auto")
    assert (folder / "a.gguf").read_bytes() == (folder / "b.gguf").read_bytes()


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_dies_changes_nothing(folder: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, driver = folder / "killed", os.getpid()

    def breaking(*arguments: Any) -> Any:
        from lbrx.cluster.calibrating import _encode

        if os.getpid() != driver and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return _encode(*arguments)

    lbrx.quantize(BASE, "local.gguf", "q4_0", calibrate=text, feedback=True)
    with monkeypatch.context() as patch:
        patch.setattr("lbrx.cluster.calibrating._encode", breaking)
        lbrx.quantize(BASE, "clustered.gguf", "q4_0", calibrate=text, feedback=True, cluster="auto")
    assert marker.exists()
    assert (folder / "local.gguf").read_bytes() == (folder / "clustered.gguf").read_bytes()


@pytest.mark.usefixtures("ray_cluster")
def test_wrong_options_are_told_first(folder: Path, text: Path) -> None:
    with pytest.raises(ClusterError, match="a task wants 64 processors, but a node has 1"):
        imatrix(BASE, folder / "a.gguf", text, cluster="auto", threads=64)
    assert not (folder / "a.gguf").exists()
