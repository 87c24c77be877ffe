"""Quantizing and converting whole models of 1.1 B parameters, against llama-quantize, gguf-py, mx.quantize and cp.

Whole commands are timed with their start-up, the file cache and our compiled kernels warm; neither side waits for the
disk. llama.cpp quantizes through the library of llama-cpp-python, on one and on two threads for each core, and its
better time counts. The peers live in virtual environments of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import lbrx
from benchmarks.commands import PEERS, memory_figure, run_command
from benchmarks.harness import Figure, faster, seconds
from benchmarks.models import LAYERS, make_model, make_tokenizer

SUITE = "quantize"
MLX = Path(__file__).parent.parent / ".venv-mlx" / "bin" / "python"

# file type -> (llama.cpp's number of it, how many times faster than llama-quantize it has to be)
FILE_TYPES = {"q8_0": (7, 4), "q4_0": (2, 4), "q4_k_m": (15, 3), "q6_k": (18, 2), "q2_k": (10, 2)}
GGUF_PY_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "TQ1_0", "TQ2_0", "MXFP4")
ELEMENTS = (4096, 4096)

_LLAMA = """
import ctypes, json, sys, time
import llama_cpp
source, target, kind, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
parameters = llama_cpp.llama_model_quantize_default_params()
parameters.ftype, parameters.nthread, parameters.allow_requantize = kind, threads, True
llama_cpp.llama_log_set(ctypes.cast(None, llama_cpp.llama_log_callback), None)
start = time.perf_counter()
assert llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)) == 0
print(json.dumps(time.perf_counter() - start))
"""

_MLX = """
import json, sys, time
import mlx.core as mx
mx.set_default_device(mx.cpu)
values = mx.random.normal(({rows}, {columns})).astype(mx.bfloat16)
mx.eval(values)
def turn():
    start = time.perf_counter()
    mx.eval(mx.quantize(values, group_size=64, bits=int(sys.argv[1])))
    return time.perf_counter() - start
print(json.dumps(min(turn() for _ in range(4))))
"""


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("LBRX_BENCH_DIR")) as directory:
        work = Path(directory)
        make_model(work / "model", LAYERS, 0)
        make_tokenizer(work / "model")
        _lbrx(work, "convert", "model", "model-f16.gguf", "--type", "f16")
        yield from _against_copy(work)
        yield from _against_llama(work)
        yield from _merged_in_one_pass(work)
    yield from _against_gguf_py()
    yield from _against_mlx()


def _lbrx(work: Path, *arguments: str, turns: int = 1) -> tuple[float, int]:
    """The best seconds of a command whose third word is its output, and the most memory that it held."""
    command = [sys.executable, "-m", "lbrx", *arguments, "--quiet", "--no-sync"]
    times = [run_command(command, work, work / arguments[2]) for _ in range(turns)]
    return min(seconds for seconds, _ in times), max(peak for _, peak in times)


def _against_copy(work: Path) -> Iterator[Figure]:
    own, peak = _lbrx(work, "convert", "model", "copy.gguf", turns=4)
    copies = [run_command(["cp", "-r", "model", "copied"], work, work / "copied")[0] for _ in range(3)]
    best = min(copies)
    yield Figure(SUITE, "convert to GGUF: 2 x cp / own", 2 * best / own, 1, f"{own:.2f} s, cp {best:.2f} s")
    yield memory_figure(SUITE, "convert", peak)
    (work / "copy.gguf").unlink()


def _against_llama(work: Path) -> Iterator[Figure]:
    for name, (number, target) in FILE_TYPES.items():
        own, peak = _lbrx(work, "quantize", "model-f16.gguf", "ours.gguf", "--to", name, turns=3)
        yield memory_figure(SUITE, f"quantize to {name}", peak)
        cores = os.cpu_count() or 1
        times = [_llama(work, number, threads) for threads in (cores, 2 * cores)]
        other = min(times)
        detail = f"{own:.2f} s against {other:.1f} s"
        yield Figure(SUITE, f"{name} against llama-quantize", other / own, target, detail)


def _llama(work: Path, number: int, threads: int) -> float:
    arguments = ["model-f16.gguf", "theirs.gguf", str(number), str(threads)]
    done = subprocess.run(
        [PEERS / "python", "-c", _LLAMA, *arguments], cwd=work, check=True, capture_output=True, text=True
    )
    (work / "theirs.gguf").unlink()
    return float(json.loads(done.stdout.splitlines()[-1]))


def _merged_in_one_pass(work: Path) -> Iterator[Figure]:
    """Merging into a quantized file against merging into bf16 and quantizing that."""
    make_model(work / "a", LAYERS, 1)
    lines = ["merge_method: linear", "dtype: bfloat16", "models:"]
    lines += [f"  - {{model: {model}, parameters: {{weight: 0.5}}}}" for model in ("model", "a")]
    (work / "recipe.yml").write_text("\n".join([*lines, "tokenizer_source: base", "base_model: model", ""]))
    once, peak = _lbrx(work, "merge", "recipe.yml", "merged.gguf", "--quantize", "q4_k_m", turns=3)
    merged, _ = _lbrx(work, "merge", "recipe.yml", "merged", turns=3)
    quantized, _ = _lbrx(work, "quantize", "merged", "quantized.gguf", "--to", "q4_k_m", turns=3)
    detail = f"{once:.2f} s against {merged:.2f} + {quantized:.2f} s"
    yield Figure(SUITE, "merge to q4_k_m / merge, then quantize", (merged + quantized) / once, 1, detail)
    yield memory_figure(SUITE, "merge to q4_k_m", peak)


def _against_gguf_py() -> Iterator[Figure]:
    import gguf

    values = np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32)
    tensor = lbrx.tensor(values)
    for name in GGUF_PY_TYPES:
        kind = gguf.GGMLQuantizationType[name]
        code = (
            (lambda: tensor.to("bf16").numpy())
            if name == "BF16"
            else (lambda quant=name.lower(): tensor.quantize(quant).encoded())
        )
        theirs = lambda kind=kind: gguf.quants.quantize(values, kind)
        yield faster(SUITE, f"{name} against gguf-py", code, theirs, 10)


def _against_mlx() -> Iterator[Figure]:
    from lbrx.tensors.codecs.mlx import MlxMode, encoded_mlx
    from lbrx.tensors.coded import Encode

    rows, columns = ELEMENTS
    values = (lbrx.normal(ELEMENTS, 0, "w") * 0.02).to("bf16").realize()
    for bits in (4, 8):
        script = _MLX.format(rows=rows, columns=columns)
        done = subprocess.run([MLX, "-c", script, str(bits)], check=True, capture_output=True, text=True)
        other = float(json.loads(done.stdout))

        def ours(bits: int = bits) -> None:
            words = encoded_mlx(values, MlxMode(bits=bits)).weight.expr
            assert isinstance(words, Encode)
            lbrx.Tensor(Encode(words.encoding)).encoded()  # all parts at once

        own = min(seconds(ours) for _ in range(5))
        yield Figure(SUITE, f"affine {bits} bits against mx.quantize", other / own, 5, f"{own:.3f} s / {other:.3f} s")
