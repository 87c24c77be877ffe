"""The peers of the compute suite, run by the interpreter of their own environment: prints one JSON object of seconds.

``python benchmarks/compute_peers.py torch`` times torch; ``... llama MODEL.gguf PROMPT_TOKENS`` times llama.cpp.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

TURNS, TOKEN_TURNS, PROMPT_TURNS = 8, 20, 4


def best(job: Callable[[], object], turns: int = TURNS) -> float:
    job()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return min(times)


def torch_seconds() -> dict[str, float]:
    import torch

    torch.manual_seed(0)
    found: dict[str, float] = {}
    square = torch.randn(2048, 2048)
    half = square.to(torch.bfloat16)
    found["matmul_bf16"] = best(lambda: half @ half.T)
    for name, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        heads = torch.randn(1, 32, 2048, 64).to(kind)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        found[f"attention_{name}"] = best(lambda: sdpa(heads, heads, heads, is_causal=True))
    return found


def llama_seconds(path: str, prompt_tokens: int) -> dict[str, float]:
    """The best times of one token, and of a prompt, over numbers of threads up to all processors."""
    import llama_cpp as api

    api.llama_log_set(_SILENT, ctypes.c_void_p(0))
    api.llama_backend_init()
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    found = {"token": float("inf"), "prompt": float("inf")}
    for threads in range(1, (os.cpu_count() or 1) + 1):
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 1024, prompt_tokens, prompt_tokens
        options.n_threads = options.n_threads_batch = threads
        context = api.llama_init_from_model(model, options)
        for name, count, turns in (("token", 1, TOKEN_TURNS), ("prompt", prompt_tokens, PROMPT_TURNS)):
            found[name] = min(found[name], best(lambda: _decode(api, context, count), turns))
        api.llama_free(context)
    return found


def _decode(api: Any, context: Any, count: int) -> None:
    api.llama_memory_clear(api.llama_get_memory(context), True)
    tokens = (ctypes.c_int32 * count)(*(number % 200 for number in range(count)))
    if api.llama_decode(context, api.llama_batch_get_one(tokens, count)):
        raise RuntimeError("llama.cpp did not decode the tokens")
    api.llama_synchronize(context)


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)

if __name__ == "__main__":
    results = torch_seconds() if sys.argv[1] == "torch" else llama_seconds(sys.argv[2], int(sys.argv[3]))
    print(json.dumps(results))
