"""Products, matrix-vector products and attention against np.matmul, torch and llama.cpp, in one run.

The peers come from a virtual environment of their own (see the Makefile) and run as a subprocess; where it is missing,
or has no llama.cpp, the comparisons with NumPy are made alone. llama.cpp is given models of random blocks, in which all
but a small part of the work is products with the weights that we multiply too.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import lbrx
from benchmarks.compute_peers import PROMPT_TURNS, TOKEN_TURNS, TURNS, best
from benchmarks.harness import Figure, Job, faster
from lbrx.compute import attention, linear, matmul

PEERS = Path(__file__).parent.parent / ".venv-mergekit" / "bin" / "python"
SCRIPT = Path(__file__).parent / "compute_peers.py"
SIZE, COLUMNS, PROMPT = 2048, 4096, 256
HIDDEN, INNER, KEYS, LAYERS, VOCABULARY = 2048, 5632, 256, 6, 256


def run() -> Iterator[Figure]:
    yield from _products()
    yield from _quantized_products()
    if PEERS.exists():
        yield from _against_torch()
        yield from _against_llama()


def _normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _best(job: Job, turns: int) -> float:
    """Timed as the peers time themselves, once BLAS has stopped spinning."""
    time.sleep(0.2)
    return best(job, turns)


def _products() -> Iterator[Figure]:
    a, b = _normal(SIZE, SIZE), _normal(SIZE, SIZE)
    yield faster("compute", "f32 matmul, 2048^3", lambda: matmul(a, b), lambda: a @ b, 0.95)
    for kind, target in (("f32", 0.95), ("bf16", 0.85), ("f16", 0.85)):
        weight = lbrx.tensor(b).to(kind).realize()
        name = f"{kind} weight, 2048^3, to np.matmul f32"
        yield faster("compute", name, lambda: linear(a, weight), lambda: a @ b.T, target)


def _quantized_products() -> Iterator[Figure]:
    x, b = _normal(PROMPT, COLUMNS), _normal(COLUMNS, COLUMNS)
    for kind in ("q4_0", "q8_0", "q4_k"):
        weight = lbrx.tensor(b).quantize(kind).realize()
        name = f"{kind} weight, 256 columns, to np.matmul f32"
        yield faster("compute", name, lambda: linear(x, weight), lambda: x @ b.T, 0.7)


def _peer(*arguments: str) -> dict[str, float] | None:
    """What the peers measured, or None if they are not installed."""
    done = subprocess.run([str(PEERS), str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(f"{SCRIPT.name} {' '.join(arguments)}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _against(name: str, own: float, peer: float, target: float) -> Figure:
    return Figure("compute", name, peer / own, target, f"{own * 1e3:.2f} ms against {peer * 1e3:.2f} ms")


def _against_torch() -> Iterator[Figure]:
    peer = _peer("torch")
    if peer is None:
        return
    a = _normal(SIZE, SIZE)
    weight = lbrx.tensor(a).to("bf16").realize()
    yield _against(
        "bf16 matmul, 2048^3, to torch bf16", _best(lambda: linear(a, weight), TURNS), peer["matmul_bf16"], 4
    )
    for kind, numpy_type, target in (("f32", np.float32, 1), ("bf16", ml_dtypes.bfloat16, 2)):
        q, k, v = (_normal(32, 2048, 64).astype(numpy_type) for _ in range(3))
        own = _best(lambda: attention(q, k, v), TURNS)
        yield _against(f"{kind} attention, 32 heads of 2048 x 64, causal", own, peer[f"attention_{kind}"], target)


def _against_llama() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("q4_0", "q8_0", "q4_k"):
            path = Path(directory) / f"{kind}.gguf"
            make_model(path, kind)
            peer = _peer("llama", str(path), str(PROMPT))
            if peer is None:
                return
            layers = [tensor for name, tensor in lbrx.open(path).items() if name.startswith("blk") and tensor.ndim == 2]
            for what, vectors, turns in (("token", 1, TOKEN_TURNS), ("prompt", PROMPT, PROMPT_TURNS)):
                inputs = {size: _normal(vectors, size) for size in (HIDDEN, INNER)}
                own = _best(lambda: [linear(inputs[layer.shape[1]], layer) for layer in layers], turns)
                yield _against(f"{kind}, all weights for one {what}, to llama.cpp", own, peer[what], 1)
            path.unlink()


def make_model(path: Path, kind: str) -> None:
    """A small model of llama's architecture whose weights are blocks of random codes with small scales."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(SIZE)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HIDDEN // 64)
    writer.add_head_count_kv(KEYS // 64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output": (VOCABULARY, HIDDEN)}
    norms = ["output_norm"]
    for number in range(LAYERS):
        block = f"blk.{number}."
        norms += [f"{block}attn_norm", f"{block}ffn_norm"]
        shapes |= {f"{block}attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "output")}
        shapes |= {f"{block}attn_{name}": (KEYS, HIDDEN) for name in ("k", "v")}
        shapes |= {f"{block}ffn_{name}": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"{block}ffn_down": (HIDDEN, INNER)}
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    for name, shape in shapes.items():
        writer.add_tensor(
            f"{name}.weight", _random_blocks(kind, shape), raw_dtype=gguf.GGMLQuantizationType[kind.upper()]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_blocks(kind: str, shape: tuple[int, int]) -> Any:
    """Bytes of whole rows; the one or two f16 at the beginning of a block are small numbers."""
    from lbrx.quants.quant import quant

    record = quant(kind)
    count = shape[1] // record.block_elements
    blocks = np.random.default_rng(0).integers(0, 256, (shape[0], count, record.block_bytes), dtype=np.uint8)
    scales = np.full(2 if kind.endswith("_k") else 1, 1e-4, np.float16).view(np.uint8)
    blocks[:, :, : scales.size] = scales
    return blocks.reshape(shape[0], -1)
