"""``python -m benchmarks.figures``: write docs/figures.md from the stored results in benchmarks/figures.json.

``make bench`` measures, replaces the results of what it measured, and writes the page.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from benchmarks.harness import Figure
from lbrx import __version__
from lbrx.base.system import cpu_count

ROOT = Path(__file__).parent.parent
STORE = Path(__file__).parent / "figures.json"
PAGE = ROOT / "docs" / "figures.md"

INTRODUCTION = """# Figures

This page is generated: `make bench` measures, stores the results in `benchmarks/figures.json` and writes the page.
`python -m benchmarks.figures` writes it again from the stored results. A ratio above 1 means that lbrx is faster than
the peer, or that it exceeds the limit. lbrx and the peer run in turns on the same machine, and the best time of each
counts. Caches are warm. All machines so far were shared virtual machines with two cores.
"""


@dataclass(frozen=True)
class Suite:
    """A section of the page."""

    title: str
    program: str
    text: str


SUITES = {
    "merge": Suite(
        "Merging",
        "merging.py",
        "Wall time of whole commands on models of 1.1 B parameters in bf16 (2.2 GB each), start-up included. The peer "
        "is mergekit 0.1.5; neither it nor `cp` waits for the disk. `to the disk` is lbrx as it runs by default, until "
        "the output is on the disk; the other rows use `--no-sync`. The limit is the hardware: a copy of one model "
        "with `cp` took 0.6 to 1.8 s, and a direct write of 2.2 GB with `dd` 0.8 to 1.1 s. Memory is anonymous memory.",
    ),
    "quantize": Suite(
        "Quantizing and converting",
        "quantizing.py",
        "The model has 1.1 B parameters. Whole commands, with `--no-sync`. gguf-py and `mx.quantize` encode 16 Mi "
        "values in memory.",
    ),
    "compute": Suite(
        "Products and attention",
        "compute.py",
        "Peers: NumPy with OpenBLAS in f32, torch 2.13, and llama.cpp of llama-cpp-python 0.3.36.",
    ),
    "decode": Suite(
        "Running models",
        "decoding.py",
        "Tokens per second of whole models, computed by lbrx and by llama.cpp from the same GGUF files. A token is the "
        "first one; the logits after it, or after the prompt, are computed.",
    ),
    "quality": Suite(
        "Quality of quantized models",
        "quality.py",
        "KL divergence from the original of models of the same size and file type: `llama-quantize` with an importance "
        "matrix of `llama-imatrix`, divided by `lbrx quantize --calibrate --feedback`; 2 means half of the divergence. "
        "Both use the same calibration text, which the model wrote. llama-perplexity measures both on other texts. The "
        "columns show KL divergence and equal top tokens: lbrx against llama.cpp; and, for stories15M, lbrx without "
        "calibration. stories15M has native f32 weights; SmolLM2-135M and Gemma 3 270M are decoded from 4 bits, with "
        "permuted channels. Rows that are not multiples of 256 take the fallback types of llama.cpp.",
    ),
    "search": Suite(
        "Searching",
        "searching.py",
        "`lbrx search` with 25 candidates against the best of a grid of 25 recipes, on text that was not searched on; "
        "a known optimum; and the speed on SmolLM2-135M.",
    ),
    "streaming": Suite(
        "Streaming",
        "streaming.py",
        "The share of copy bandwidth. The limit is all cores copying 1 MiB blocks through the caches. A copy with "
        "streaming stores is up to 1.8 times faster than this limit, a loop that only reads 1.1 times.",
    ),
    "numpy": Suite("Against NumPy", "against_numpy.py", "The peer is NumPy, with ml_dtypes for bf16."),
    "opening": Suite("Opening files", "opening.py", "The peer for GGUF is gguf-py."),
    "cluster": Suite("Ray cluster", "cluster.py", "One node with two cores, against threads in one process."),
}


@dataclass(frozen=True)
class Result:
    """A stored figure: what was measured, where, with which version and when."""

    suite: str
    name: str
    ratio: float
    detail: str
    processor: str
    version: str
    date: str


def load(path: Path = STORE) -> list[Result]:
    return [Result(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def save(results: Sequence[Result], path: Path = STORE) -> None:
    rows = ",\n".join(json.dumps(asdict(result)) for result in results)
    path.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def updated(stored: Sequence[Result], measured: Iterable[Result]) -> list[Result]:
    """The stored results with the measured ones in their places; new ones are added at the end."""
    results = {(result.suite, result.name): result for result in stored}
    return list((results | {(result.suite, result.name): result for result in measured}).values())


def result_of(figure: Figure) -> Result:
    """A figure that was just measured on this machine."""
    ratio = float(f"{figure.ratio:.3g}")
    return Result(figure.suite, figure.name, ratio, figure.detail, processor(), _version(), date.today().isoformat())


def page(results: Sequence[Result]) -> str:
    """The text of docs/figures.md."""
    lines = [INTRODUCTION]
    for key, suite in SUITES.items():
        rows = [result for result in results if result.suite == key]
        if rows:
            lines += [f"## {suite.title}", "", suite.text, ""]
            lines += ["| what | ratio | measured | program | processor | version | date |"]
            lines += ["|---|---|---|---|---|---|---|"]
            lines += [_row(result, suite) for result in rows]
            lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _row(result: Result, suite: Suite) -> str:
    cells = (result.name, f"{result.ratio:g}", result.detail, f"`benchmarks/{suite.program}`", result.processor)
    return f"| {' | '.join(cells)} | {result.version} | {result.date} |"


def processor() -> str:
    """The model of this machine's processor, its cores and its widest vectors."""
    lines: list[str] = []
    if platform.system() == "Darwin":
        lines = [subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True).stdout]
    elif Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")] or lines[:1]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    vectors = next((label for flag, label in (("avx512f", ", AVX-512"), ("avx2", ", AVX2")) if flag in flags), "")
    return f"{(names or [platform.machine()])[0].strip()}, {cpu_count()} cores{vectors}"


def _version() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return f"{__version__} ({done.stdout.strip()})" if done.returncode == 0 else __version__


def write_page() -> None:
    PAGE.write_text(page(load()), encoding="utf-8")


if __name__ == "__main__":
    write_page()
