"""Scores on a cluster: the figures of one machine, digit for digit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.cluster import ClusterError
from lbrx.cluster.options import MAX_FAILURES
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError
from lbrx.jobs.score.records import Score
from lbrx.jobs.score.score import score

SHIPPED = demo_models()
TEXT = SHIPPED.prose_text.read_text(encoding="utf-8")[:1500]
TIMES = ("seconds", "tokens_per_second")


def without_times(scores: list[Score]) -> list[Score]:
    assert all(one.seconds > 0 for one in scores)
    return [replace(one, seconds=0.0) for one in scores]


@pytest.mark.usefixtures("ray_cluster", "folder")
@pytest.mark.parametrize(("context", "stride"), [(64, 32), (50, 7), (1000, 10)])
def test_scores_are_those_of_one_machine(context: int, stride: int) -> None:
    models = [SHIPPED.prose, SHIPPED.code]
    local = score(models, TEXT, context=context, stride=stride)
    steps: list[tuple[int, int, str]] = []
    clustered = score(
        models, TEXT, context=context, stride=stride, cluster="auto", progress=lambda *step: steps.append(step)
    )
    assert without_times(clustered) == without_times(local)
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _, _ in steps] == sorted({done for done, _, _ in steps})
    assert {name for _, _, name in steps} == {str(model) for model in models}


@pytest.mark.usefixtures("ray_cluster")
def test_divergences_are_those_of_one_machine(folder: Path) -> None:
    lbrx.quantize(SHIPPED.base, folder / "coded.gguf", to="q4_0")
    models = [Path("coded.gguf"), SHIPPED.prose]
    local = score(models, TEXT, reference=SHIPPED.base, context=64)
    clustered = score(models, TEXT, reference=SHIPPED.base, context=64, cluster="auto", threads=1)
    assert without_times(clustered) == without_times(local)
    assert clustered[1].model == Path("coded.gguf")
    assert clustered[1].divergence is not None


@pytest.mark.usefixtures("ray_cluster")
def test_the_command_prints_the_same_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    arguments = ["score", str(SHIPPED.prose), "--reference", str(SHIPPED.base), "--text", "text.txt", "--json"]

    def printed(*more: str) -> Any:
        assert run([*arguments, "--context", "64", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        for one in found["scores"]:
            for name in TIMES:
                assert one.pop(name) > 0
        return found

    assert printed("--cluster", "auto") == printed()


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_dies_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker, driver = folder / "killed", os.getpid()

    def breaking(*arguments: Any) -> Any:
        from lbrx.cluster.scoring import _score

        if os.getpid() != driver and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return _score(*arguments)

    local = score(SHIPPED.base, TEXT, context=64)
    with monkeypatch.context() as patch:
        patch.setattr("lbrx.cluster.scoring._score", breaking)
        clustered = score(SHIPPED.base, TEXT, context=64, cluster="auto")
    assert marker.exists()
    assert without_times(clustered) == without_times(local)


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_sees_another_model_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(SHIPPED.base, folder / "model")
    monkeypatch.setattr("lbrx.cluster.scoring.appearance", lambda _: "what the driver sees")
    expected = f"model: windows .*: failed {MAX_FAILURES} times .*: this worker sees another model than the driver"
    with pytest.raises(ClusterError, match=expected):
        score("model", TEXT, context=64, cluster="auto")


@pytest.mark.usefixtures("ray_cluster", "folder")
def test_a_worker_with_another_build_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.cluster.calls.build", lambda: "0.1.0 (sources of the driver)")
    with pytest.raises(ClusterError, match=r"the driver has 0.1.0 \(sources of the driver\); expected the same"):
        score(SHIPPED.base, TEXT, context=64, cluster="auto")


@pytest.mark.usefixtures("ray_cluster", "folder")
def test_wrong_options_are_told_before_a_task_is_sent() -> None:
    with pytest.raises(UsageError, match="windows of 16 tokens, one every 16"):
        score(SHIPPED.base, TEXT, context=16, stride=16, cluster="auto")
    with pytest.raises(ClusterError, match="a task wants 64 processors, but a node has 1"):
        score(SHIPPED.base, TEXT, cluster="auto", threads=64)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--cluster", "auto"], "pip install 'lbrx[cluster]'"), (["--cluster", "auto", "--device", "metal"], "--device")],
)
def test_without_ray_the_extra_is_named(folder: Path, options: list[str], message: str) -> None:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    code = "import sys; sys.modules['ray'] = None; from lbrx.cli.main import run; sys.exit(run(sys.argv[1:]))"
    arguments = ["score", str(SHIPPED.base), "--text", "text.txt", *options]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
