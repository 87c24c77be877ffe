"""Whole merges, from the command line, against mergekit 0.1.5 and against ``cp``.

Models of 1.1 B parameters in bf16 are made once. All programs run as commands with their start-up, the file cache
and our compiled kernels warm. Neither mergekit nor cp waits for the disk: lbrx is compared with them when it does not
wait either (``--no-sync``), and as it runs by default, until its output is on the disk. mergekit comes from a virtual
environment of its own (see the Makefile); where it is missing, only the comparison with ``cp`` is made.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.commands import PEERS, bring_memory, memory_figure, read_through, run_command
from benchmarks.harness import Figure
from benchmarks.models import LAYERS, make_model

MERGEKIT = PEERS / "mergekit-yaml"
MODELS = ("base", "a", "b")
NO_SYNC = "--no-sync"

_WRITE_BYTES = 2 << 20

_WEIGHTS = "parameters: {{weight: {}}}"
_DENSE = "parameters: {{weight: {}, density: {}}}"


def _recipe(method: str, *, base: bool, model_parameters: tuple[str, str], parameters: str = "") -> str:
    lines = [f"merge_method: {method}", "dtype: bfloat16", "models:"]
    for model, given in zip(("a", "b"), model_parameters, strict=True):
        lines += [f"  - model: {model}"] + ([f"    {given}"] if given else [])
    if base:
        lines.append("base_model: base")
    return "\n".join([*lines, parameters, ""])


_PLAIN = ("", "")
_WEIGHTED = (_WEIGHTS.format(0.6), _WEIGHTS.format(0.4))
_SPARSE = (_DENSE.format(0.6, 0.5), _DENSE.format(0.4, 0.7))

# method -> (recipe, how many times faster than mergekit it has to be)
RECIPES: dict[str, tuple[str, float]] = {
    "linear": (_recipe("linear", base=False, model_parameters=_WEIGHTED), 20),
    "slerp": (
        "merge_method: slerp\ndtype: bfloat16\nbase_model: a\nmodels:\n  - model: a\n  - model: b\n"
        "parameters: {t: 0.4}\n",
        20,
    ),
    "ties": (_recipe("ties", base=True, model_parameters=_SPARSE), 40),
    "dare_ties": (_recipe("dare_ties", base=True, model_parameters=_SPARSE), 30),
    "task_arithmetic": (_recipe("task_arithmetic", base=True, model_parameters=_WEIGHTED), 20),
    "dare_linear": (_recipe("dare_linear", base=True, model_parameters=_SPARSE), 20),
    "breadcrumbs": (_recipe("breadcrumbs", base=True, model_parameters=_SPARSE), 20),
    "breadcrumbs_ties": (_recipe("breadcrumbs_ties", base=True, model_parameters=_SPARSE), 20),
    "della": (_recipe("della", base=True, model_parameters=_SPARSE), 20),
    "della_linear": (_recipe("della_linear", base=True, model_parameters=_SPARSE), 20),
    "nuslerp": (_recipe("nuslerp", base=False, model_parameters=_WEIGHTED), 20),
    "multislerp": (_recipe("multislerp", base=False, model_parameters=_WEIGHTED), 20),
    "karcher": (_recipe("karcher", base=False, model_parameters=_PLAIN), 20),
    "model_stock": (_recipe("model_stock", base=True, model_parameters=_PLAIN), 20),
    "nearswap": (
        "merge_method: nearswap\ndtype: bfloat16\nbase_model: a\nmodels:\n  - model: a\n  - model: b\n"
        "parameters: {t: 0.001}\n",
        20,
    ),
    "arcee_fusion": (
        "merge_method: arcee_fusion\ndtype: bfloat16\nbase_model: a\nmodels:\n  - model: a\n  - model: b\n",
        20,
    ),
    "sce": (_recipe("sce", base=True, model_parameters=_PLAIN, parameters="parameters: {select_topk: 0.5}"), 20),
    "ram": (_recipe("ram", base=True, model_parameters=_PLAIN), 20),
    "ramplus_tl": (_recipe("ramplus_tl", base=True, model_parameters=_PLAIN), 20),
    "passthrough": ("merge_method: passthrough\ndtype: bfloat16\nmodels:\n  - model: a\n", 20),
}


def run() -> Iterator[Figure]:
    wanted = os.environ.get("LBRX_BENCH_METHODS", ",".join(RECIPES)).split(",")
    with tempfile.TemporaryDirectory(dir=os.environ.get("LBRX_BENCH_DIR")) as directory:
        work = Path(directory)
        for seed, name in enumerate(MODELS):
            make_model(work / name, LAYERS, seed)
        os.sync()
        yield from _against_copy(work)
        for method in wanted:
            yield from _against_mergekit(work, method, *RECIPES[method])
        if wanted == list(RECIPES):
            yield from _memory(work)


def _ours(work: Path, recipe: Path, *flags: str, turns: int = 3) -> tuple[float, int]:
    command = [sys.executable, "-m", "lbrx", "merge", str(recipe), "ours", "--quiet", *flags]
    outs = work / "ours", work / "theirs", work / "copies"
    _make_ready(work)
    times = [run_command(command, work, *outs) for _ in range(turns + 1)][1:]
    return min(seconds for seconds, _ in times), max(peak for _, peak in times)


def _make_ready(work: Path) -> None:
    """The models in the file cache, and memory for what a program needs besides."""
    bring_memory()
    read_through(*(work / name for name in MODELS))


def _written(work: Path, name: str, text: str) -> Path:
    path = work / f"{name}.yml"
    path.write_text(text)
    return path


def _against_copy(work: Path) -> Iterator[Figure]:
    recipe = _written(work, "linear", RECIPES["linear"][0])
    own, peak = _ours(work, recipe)
    cached, _ = _ours(work, recipe, NO_SYNC)
    (work / "copies").mkdir()
    outs = [work / "copies" / name for name in ("a", "b", "ours")]
    _make_ready(work)
    best = min(run_command(["cp", "-r", "a", "b", "ours", "copies"], work, *outs)[0] for _ in range(3))
    single = min(run_command(["cp", "-r", "a", "copies"], work, *outs[:1])[0] for _ in range(3))
    alone = _start_and_write(work)
    detail = f"cp {best:.2f} s, of one model {single:.2f} s"
    yield Figure("merge", "linear: 2 x cp / own", 2 * best / cached, 1, f"{cached:.2f} s, {detail}")
    yield Figure("merge", "linear, to the disk: 2 x cp / own", 2 * best / own, 1, f"{own:.2f} s, {detail}")
    detail = f"{own:.2f} s; starting {alone.start:.2f} s, writing as much with dd {alone.write:.2f} s"
    yield Figure("merge", "linear, to the disk: start and dd / own", alone.seconds / own, 0.9, detail)
    yield memory_figure("merge", "linear", peak)


class _Alone(NamedTuple):
    """What lbrx's start and then writing as many bytes past the cache take. Two writers can be faster."""

    start: float
    write: float

    @property
    def seconds(self) -> float:
        return self.start + self.write


def _start_and_write(work: Path) -> _Alone:
    nbytes = sum(path.stat().st_size for path in (work / "a").glob("*.safetensors"))
    count, out = nbytes // _WRITE_BYTES, work / "written"
    write = ["dd", "if=/dev/zero", f"of={out}", f"bs={_WRITE_BYTES}", f"count={count}", "oflag=direct", "conv=fsync"]
    start = [sys.executable, "-m", "lbrx", "merge", "linear.yml", "ours", "--dry-run"]
    best = _Alone(*(min(run_command(command, work, out)[0] for _ in range(4)) for command in (start, write)))
    out.unlink()
    return best


def _against_mergekit(work: Path, method: str, text: str, target: float) -> Iterator[Figure]:
    recipe = _written(work, method, text)
    cached, _ = _ours(work, recipe, NO_SYNC)
    own, peak = _ours(work, recipe)
    yield memory_figure("merge", method, peak)
    if not MERGEKIT.exists():
        return
    _make_ready(work)
    command = [str(MERGEKIT), str(recipe), "theirs", "--no-copy-tokenizer", "--no-write-model-card"]
    other, other_peak = run_command(command, work, work / "ours", work / "theirs")
    memory = f"memory {peak / 1e6:.0f} MB against {other_peak / 1e6:.0f} MB"
    yield Figure("merge", f"{method} against mergekit", other / cached, target, f"{cached:.2f} s against {other:.1f} s")
    yield Figure("merge", f"{method}, to the disk", other / own, target, f"{own:.2f} s against {other:.1f} s; {memory}")


def _memory(work: Path) -> Iterator[Figure]:
    """The same peak at four times the size."""
    for seed, name in enumerate(("a", "b"), 1):
        shutil.rmtree(work / name)
        make_model(work / name, 4 * LAYERS, seed)
    _, peak = _ours(work, _written(work, "linear", RECIPES["linear"][0]), turns=1)
    yield memory_figure("merge", "linear, four times the size", peak)
