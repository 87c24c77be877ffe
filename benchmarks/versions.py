"""``python -m benchmarks.versions BEFORE AFTER``: two checkouts of lbrx side by side, in turns.

Each checkout runs in a process of its own, which times a case when it is its turn; whole commands are started anew
every time. A ratio above 1 means that AFTER is faster. One Python runs both, so they share all libraries.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import lbrx
from benchmarks.models import make_model

TURNS = 9
MANY = 18_867
"""The tensors of a mixture of 128 experts in 48 layers."""

RECIPES = {
    "linear": "merge_method: linear\nmodels: [{model: a}, {model: b}]\nparameters: {weight: 0.5}\n",
    "ties": "merge_method: ties\nbase_model: a\nmodels: [{model: b, parameters: {weight: 1, density: 0.5}}]\n",
}
"""Merges of two models, run as commands."""

# Runs in both checkouts, so it uses only names that both have. Prints a line for each case that it reads.
WORKER = """
import json, sys, time
import numpy as np, lbrx
try:
    from lbrx import ops
except ImportError:
    from lbrx import compute as ops
random = np.random.default_rng(0)
x, y = (lbrx.tensor(random.standard_normal(1 << 20).astype(np.float32)) for _ in range(2))
few = lbrx.tensor(np.ones(1000, np.float32))
large = [lbrx.tensor(random.standard_normal(1 << 24).astype(np.float32)).to("bf16").realize() for _ in range(2)]
vector, vectors = np.ones((1, 4096), np.float32), np.ones((256, 4096), np.float32)
matrix = lbrx.tensor(random.standard_normal((4096, 4096)).astype(np.float32))
weights = {name: matrix.quantize(name).realize() for name in ("q4_0", "q8_0", "q4_k")}
weights["bf16"] = matrix.to("bf16").realize()
heads = random.standard_normal((8, 512, 64)).astype(np.float32)
cases = {
    "small evaluation": lambda: (few * 2 + 1).numpy(),
    "1 Mi x*2+y": lambda: (x * 2 + y).numpy(),
    "1 Mi sum": lambda: float(x.sum()),
    "1 Mi max": lambda: float(x.max()),
    "1 Mi exp": lambda: x.exp().numpy(),
    "16 Mi bf16 x+y": lambda: (large[0] + large[1]).to("bf16").numpy(),
    "16 Mi bf16 sum": lambda: float(large[0].sum()),
    "16 Mi bf16 norm": lambda: float(large[0].norm()),
    "16 Mi k-th largest": lambda: float(large[0].kth_largest(1 << 20)),
    "matmul f32 1024": lambda: ops.matmul(vectors[:, :1024], vectors[:, :1024].T),
    "attention 8 heads": lambda: ops.attention(heads, heads, heads),
    "opening": lambda: lbrx.open(sys.argv[1]),
}
cases |= {f"{name} x 1": (lambda w=w: ops.linear(vector, w)) for name, w in weights.items()}
cases |= {f"{name} x 256": (lambda w=w: ops.linear(vectors, w)) for name, w in weights.items()}
for case in cases.values():
    case()
print(json.dumps(list(cases)), flush=True)
for line in sys.stdin:
    case, best, end = cases[line.strip()], float("inf"), time.perf_counter() + 0.05
    while time.perf_counter() < end:
        start = time.perf_counter()
        case()
        best = min(best, time.perf_counter() - start)
    print(best, flush=True)
"""


class Version:
    """A checkout, and a process of it that times cases."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment = inherited | {"PYTHONPATH": str(checkout / "src"), "OPENBLAS_NUM_THREADS": "2"}
        command = [sys.executable, "-c", WORKER, str(folder / "a")]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, text=True)
        self.cases: list[str] = json.loads(self._output.readline())

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def seconds(self, case: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        return float(self._output.readline())

    def command_seconds(self, folder: Path, *arguments: str) -> float:
        start = time.perf_counter()
        command = [sys.executable, "-m", "lbrx", *arguments]
        subprocess.run(command, cwd=folder, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def compared(versions: tuple[Version, Version], measure: Callable[[Version], float]) -> tuple[float, float]:
    """The median of the ratios of neighbouring turns, and the best time of the second version."""
    ratios, best = [], float("inf")
    for turn in range(TURNS):
        order = versions if turn % 2 else versions[::-1]
        taken = {id(version): measure(version) for version in order}
        before, after = (taken[id(version)] for version in versions)
        ratios.append(before / after)
        best = min(best, after)
    return statistics.median(ratios), best


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "lbrx --help", ("--help",)
    yield "lbrx inspect", ("inspect", "a")
    for name in RECIPES:
        yield f"merge, {name}", ("merge", f"{name}.yml", "out", "--overwrite", "--no-sync")
    yield "merge, linear, small models", ("merge", "small.yml", "out-small", "--overwrite", "--no-sync")
    yield f"merge, linear, {MANY:,} tensors", ("merge", "many.yml", "out-many", "--overwrite", "--no-sync")
    yield "quantize to q4_0", ("quantize", "a.gguf", "out.gguf", "--to", "q4_0", "--overwrite", "--no-sync")


def prepare(folder: Path) -> None:
    make_model(folder / "a", 4, 0)
    make_model(folder / "b", 4, 1)
    for seed, name in enumerate(("small-a", "small-b")):
        tensors = {f"layers.{layer}.weight": lbrx.normal((64, 64), seed, str(layer)).to("bf16") for layer in range(40)}
        lbrx.save(folder / f"{name}.safetensors", tensors)
    blocks = {f"blk.{layer}.ffn_up.weight": lbrx.normal((4096, 4096), layer).to("f16") for layer in range(8)}
    lbrx.save(folder / "a.gguf", blocks, {"general.architecture": "llama", "llama.block_count": 8})
    for name, text in RECIPES.items():
        (folder / f"{name}.yml").write_text(text)
    values = lbrx.normal((8, 8), 0).to("bf16").numpy()
    for name in ("many-a", "many-b"):
        experts = (f"layers.{number // 384}.experts.{number % 384}.weight" for number in range(MANY))
        lbrx.save(folder / f"{name}.safetensors", dict.fromkeys(experts, values))
    for size in ("small", "many"):
        recipe = RECIPES["linear"].replace("model: a", f"model: {size}-a.safetensors")
        (folder / f"{size}.yml").write_text(recipe.replace("model: b", f"model: {size}-b.safetensors"))


def main(before: str, after: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        versions = Version(Path(before), folder), Version(Path(after), folder)
        rows: list[tuple[str, float, float]] = []
        measures: list[tuple[str, Any]] = [(case, lambda v, case=case: v.seconds(case)) for case in versions[1].cases]
        measures += [(title, lambda v, words=words: v.command_seconds(folder, *words)) for title, words in commands()]
        for title, measure in measures:
            for version in versions:
                measure(version)
            ratio, best = compared(versions, measure)
            rows.append((title, ratio, best))
            print(f"{ratio:6.2f}  {best * 1e3:9.3f} ms  {title}", flush=True)
        for version in versions:
            version.stop()
    slower = [title for title, ratio, _ in rows if ratio < 0.95]
    print(f"{len(rows) - len(slower)} of {len(rows)} at least 0.95; below: {', '.join(slower) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
