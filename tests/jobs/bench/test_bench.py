"""`lbrx bench`: cases, the report, and what the command says without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lbrx.cli.main import run
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import KernelCall, Profile, Work
from lbrx.devices.metal.context.tuning import Tuning
from lbrx.errors import UsageError
from lbrx.jobs.bench import cases as cases_module
from lbrx.jobs.bench.cases import BenchCase, cases
from lbrx.jobs.bench.measure import BenchResult, BenchRow, measure
from lbrx.jobs.bench.report import EMULATED_NOTE, as_json, as_markdown
from lbrx.jobs.bench.tuned import tune_all
from support.kernel_contexts import context
from support.metal_shaders import needs_clang

ROW = BenchRow("softmax", 0.004, 0.002, 0.001, 8_000_000, 5_000_000, 1e-7, 1e-6)
WRONG = BenchRow("rope", 0.001, 0.003, 0.002, 1000, 0, float("nan"), 1e-6)
RESULT = BenchResult(
    "a GPU", False, "tiny", (ROW, WRONG), Profile([KernelCall("softmax", 0.0, 0.001, Work(8_000_000))], "a GPU")
)


def test_a_row_says_how_fast_and_how_close() -> None:
    assert ROW.speedup == 2
    assert ROW.gigabytes_per_second == pytest.approx(8)
    assert ROW.gigaflops == pytest.approx(5)
    assert ROW.agrees
    assert not WRONG.agrees


def test_the_page_has_a_line_for_each_case() -> None:
    page = as_markdown(RESULT)
    assert "| softmax | 4.000 | 2.000 | 1.000 | 2.00 | 8.0 | 5.0 | 1.0e-07 |" in page
    assert "| nan (more than 1e-06) |" in page
    assert EMULATED_NOTE not in page
    assert EMULATED_NOTE in as_markdown(BenchResult("x", True, "tiny", (ROW,), RESULT.profile))
    assert [case["agrees"] for case in json.loads(as_json(RESULT))["cases"]] == [True, False]


FAMILIES = (
    "matmul",
    "matrix-vector",
    "attention",
    "softmax",
    "rms_norm",
    "silu_mul",
    "rope",
    "embedding",
    "dequantize",
    "copy",
    "merge of two",
    "sum",
)


@needs_clang
@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_gives_what_the_cpu_gives(family: str) -> None:
    result = measure(context(), "tiny", only=family, repeats=1)
    assert [row for row in result.rows if not row.agrees] == []
    assert all(row.nbytes > 0 and row.metal_seconds > 0 and row.gpu_seconds > 0 for row in result.rows)


@needs_clang
def test_every_case_belongs_to_a_family() -> None:
    names = list(cases_module._makers(context(), 256))
    assert len(names) == len(set(names)) >= 20
    assert sorted(names) == sorted(name for family in FAMILIES for name in names if family in name)
    assert all(any(family in name for name in names) for family in FAMILIES)


@needs_clang
def test_results_that_differ_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(metal: MetalContext, *_: object) -> list[BenchCase]:
        right = next(cases(metal, "tiny", "softmax"))
        return [BenchCase("softmax", lambda: right.on_cpu() + np.float32(0.5), right.on_metal, right.bound)]

    monkeypatch.setattr("lbrx.jobs.bench.measure.cases", broken)
    assert run(["bench", "--emulated", "--json", "--repeats", "1"]) == 1
    assert json.loads(capsys.readouterr().out)["cases"][0]["agrees"] is False


@needs_clang
def test_the_command_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report"
    assert run(["bench", "--emulated", "--only", "rms_norm", "--repeats", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert EMULATED_NOTE in printed
    assert "rms_norm" in printed
    assert sorted(path.name for path in out.iterdir()) == [
        "bench.json",
        "report.md",
        "throughput.png",
        "times.png",
        "trace.json",
    ]
    assert (out / "times.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["rms_norm"] * 3  # one to compare, two to time


@pytest.mark.skipif(sys.platform == "darwin", reason="this machine may have Metal")
def test_a_machine_without_metal_is_told_of_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench"]) == 1
    assert (
        "--emulated runs the same kernels on the CPU, but its times say nothing about a GPU" in capsys.readouterr().err
    )


@needs_clang
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "no case name contains 'nothing'"),
        (["--size", "huge"], "unknown size 'huge'; expected one of tiny, small, large"),
        (["--tune"], "--tune measures a GPU and cannot be used with --emulated"),
        (["--device", "cuda"], "unknown device 'cuda'; expected metal"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--emulated", *arguments]) == 1
    assert message in capsys.readouterr().err


@needs_clang
def test_tuning_asks_about_products_and_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.jobs.bench.tuned._CODINGS", ("f16", "q4_k"))
    monkeypatch.setattr("lbrx.devices.metal.context.tuning._REPEATS", 1)
    tuning = Tuning(tmp_path / "tuning.json")
    found = tune_all(context(), "tiny", tuning=tuning)
    assert list(found) == [
        "matvec f16 1 256 256",
        "matmul f32 f16 64 256 256",
        "matmul f16 f16 64 256 256",
        "matvec q4_k 1 256 256",
        "matmul f32 q4_k 64 256 256",
        "matmul f16 q4_k 64 256 256",
        "attention f32 64 64 128",
        "attention f16 64 64 128",
        "attention_vector 8 1024 64",
        "attention f32 128 128 128",
        "attention f16 128 128 128",
        "attention_vector 8 1024 128",
    ]
    for question, seconds in found.items():
        best = tuning.choice(context().info.tuning_key, question)
        assert best is not None
        assert seconds[best] == min(seconds.values())
    with pytest.raises(UsageError, match="unknown size 'huge'"):
        tune_all(context(), "huge")


def test_sizes_are_whole_blocks() -> None:
    assert all(width % 256 == 0 for width in cases_module.WIDTHS.values())
