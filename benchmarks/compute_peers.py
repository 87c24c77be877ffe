"""The peers of the compute suite, run by the interpreter of their own environment.

``python benchmarks/compute_peers.py torch`` times torch; ``... llama MODEL.gguf 1 256`` times llama.cpp. For
each line that it reads, it measures once and prints one JSON object of seconds: so both sides can take turns.
llama.cpp's jobs are named by how many tokens they take, and by the threads: ``"256 2"``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

TURNS, TOKEN_TURNS, PROMPT_TURNS = 3, 15, 2
Jobs = dict[str, tuple[Callable[[], object], int]]


def best(job: Callable[[], object], turns: int = TURNS) -> float:
    job()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


def torch_jobs() -> Jobs:
    import torch

    torch.manual_seed(0)
    square = torch.randn(2048, 2048)
    half = square.to(torch.bfloat16)
    jobs: Jobs = {"matmul_bf16": (lambda: half @ half.T, TURNS)}
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for name, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        heads = torch.randn(1, 32, 2048, 64).to(kind)
        jobs[f"attention_{name}"] = lambda heads=heads: sdpa(heads, heads, heads, is_causal=True), TURNS
    return jobs


def llama_jobs(path: str, counts: list[int]) -> Jobs:
    """So many tokens at once, with each number of threads up to that of all processors."""
    import llama_cpp as api

    api.llama_log_set(_SILENT, ctypes.c_void_p(0))
    api.llama_backend_init()
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    jobs: Jobs = {}
    for threads in range(1, (os.cpu_count() or 1) + 1):
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 2 * max(counts), max(counts), 512
        options.n_threads = options.n_threads_batch = threads
        context = api.llama_init_from_model(model, options)
        for count in counts:
            turns = TOKEN_TURNS if count == 1 else PROMPT_TURNS
            jobs[f"{count} {threads}"] = (lambda context=context, count=count: _decode(api, context, count)), turns
    return jobs


def _decode(api: Any, context: Any, count: int) -> None:
    api.llama_memory_clear(api.llama_get_memory(context), True)
    tokens = (ctypes.c_int32 * count)(*(number % 200 for number in range(count)))
    if api.llama_decode(context, api.llama_batch_get_one(tokens, count)):
        raise RuntimeError("llama.cpp did not decode the tokens")
    api.llama_synchronize(context)


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)

if __name__ == "__main__":
    measured = (
        torch_jobs() if sys.argv[1] == "torch" else llama_jobs(sys.argv[2], [int(count) for count in sys.argv[3:]])
    )
    for _ in sys.stdin:
        print(json.dumps({name: best(job, turns) for name, (job, turns) in measured.items()}), flush=True)
