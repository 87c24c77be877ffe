"""Products, matrix-vector products and attention against np.matmul, torch and llama.cpp, in one run.

The peers come from a virtual environment of their own (see the Makefile) and run as a subprocess; where it is missing,
or has no llama.cpp, the comparisons with NumPy are made alone. llama.cpp is given models of random blocks, in which all
but a small part of the work is products with the weights that we multiply too.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import ml_dtypes
import numpy as np

import lbrx
from benchmarks.compute_peers import PROMPT_TURNS, TOKEN_TURNS, TURNS, Jobs, best
from benchmarks.harness import Figure, faster
from lbrx.devices.cpu.simd.processor import MULTIPLIES_BF16
from lbrx.ops import attention, linear, matmul

PEERS = Path(__file__).parent.parent / ".venv-mergekit" / "bin" / "python"
SCRIPT = Path(__file__).parent / "compute_peers.py"
SIZE, COLUMNS, PROMPT = 2048, 4096, 256
ROUNDS, PRODUCT_TURNS = 6, 12
HIDDEN, INNER, KEYS, LAYERS, VOCABULARY = 2048, 5632, 256, 6, 256


def run() -> Iterator[Figure]:
    yield from _products()
    yield from _quantized_products()
    if PEERS.exists():
        yield from _against_torch()
        yield from _against_llama()


def _normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _products() -> Iterator[Figure]:
    a, b = _normal(SIZE, SIZE), _normal(SIZE, SIZE)
    yield faster("compute", "f32 matmul, 2048^3", lambda: matmul(a, b), lambda: a @ b, 0.95, PRODUCT_TURNS)
    for kind, target in (("f32", 0.95), ("bf16", 0.85), ("f16", 0.85)):
        weight = lbrx.tensor(b).to(kind).realize()
        name = f"{kind} weight, 2048^3, to np.matmul f32"
        yield faster("compute", name, lambda: linear(a, weight), lambda: a @ b.T, target, PRODUCT_TURNS)


def _quantized_products() -> Iterator[Figure]:
    x, b = _normal(PROMPT, COLUMNS), _normal(COLUMNS, COLUMNS)
    for kind in ("q4_0", "q8_0", "q4_k"):
        weight = lbrx.tensor(b).quantize(kind).realize()
        name = f"{kind} weight, 256 columns, to np.matmul f32"
        yield faster("compute", name, lambda: linear(x, weight), lambda: x @ b.T, 0.7, PRODUCT_TURNS)


def in_turns(own: Jobs, *arguments: str, rounds: int = ROUNDS) -> tuple[dict[str, float], dict[str, float]] | None:
    """The best times of our jobs and of a peer's, who take turns; None if the peer is not installed."""
    command = [str(PEERS), str(SCRIPT), *arguments]
    ours, theirs = dict.fromkeys(own, math.inf), {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True) as peer,
    ):
        assert peer.stdin is not None
        assert peer.stdout is not None
        for _ in range(rounds):
            peer.stdin.write("again\n")
            peer.stdin.flush()
            answer = peer.stdout.readline()
            if not answer:
                break
            for name, seconds in json.loads(answer).items():
                theirs[name] = min(theirs.get(name, math.inf), seconds)
            time.sleep(0.3)  # until the threads of their BLAS have stopped spinning
            for name, (job, turns) in own.items():
                ours[name] = min(ours[name], best(job, turns))
        peer.stdin.close()
        failed = peer.wait()
        errors.seek(0)
        report = errors.read()
    if failed and "ModuleNotFoundError" in report:
        return None
    if failed or not theirs:
        raise RuntimeError(f"{SCRIPT.name} {' '.join(arguments)}: {report[-2000:]}")
    return ours, theirs


def _against(name: str, own: float, peer: float, target: float) -> Figure:
    return Figure("compute", name, peer / own, target, f"{own * 1e3:.2f} ms against {peer * 1e3:.2f} ms")


def _against_torch() -> Iterator[Figure]:
    a = _normal(SIZE, SIZE).astype(ml_dtypes.bfloat16)
    weight = lbrx.tensor(a).realize()
    jobs: Jobs = {"matmul_bf16": (lambda: linear(a, weight), TURNS)}
    for kind, numpy_type in (("f32", np.float32), ("bf16", ml_dtypes.bfloat16)):
        heads = [_normal(32, 2048, 64).astype(numpy_type) for _ in range(3)]
        jobs[f"attention_{kind}"] = (lambda heads=heads: attention(*heads)), TURNS
    found = in_turns(jobs, "torch")
    if found is None:
        return
    ours, theirs = found
    for name, label, target in (
        # Where the processor multiplies bf16 itself, torch is at its limit, and so can be reached but not outdone.
        ("matmul_bf16", "bf16 matmul, 2048^3, to torch bf16", 0.9 if MULTIPLIES_BF16 else 4),
        ("attention_f32", "f32 attention, 32 heads of 2048 x 64, causal", 1),
        ("attention_bf16", "bf16 attention, 32 heads of 2048 x 64, causal", 2),
    ):
        yield _against(label, ours[name], theirs[name], target)


def _against_llama() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("q4_0", "q8_0", "q4_k"):
            path = Path(directory) / f"{kind}.gguf"
            make_model(path, kind)
            layers = [tensor for name, tensor in lbrx.open(path).items() if name.startswith("blk") and tensor.ndim == 2]
            jobs: Jobs = {}
            counts = {"1": "token", str(PROMPT): "prompt"}
            for count in counts:
                inputs = {size: _normal(int(count), size) for size in (HIDDEN, INNER)}
                turns = TOKEN_TURNS if count == "1" else PROMPT_TURNS
                jobs[count] = (lambda inputs=inputs: _multiply_all(layers, inputs)), turns
            found = in_turns(jobs, "llama", str(path), *counts)
            if found is None:
                return
            ours, theirs = found
            for count, what in counts.items():
                peer = min(seconds for name, seconds in theirs.items() if name.split()[0] == count)
                yield _against(f"{kind}, all weights for one {what}, to llama.cpp", ours[count], peer, 1)
            path.unlink()


def _multiply_all(layers: list[lbrx.Tensor], inputs: dict[int, Any]) -> None:
    """A product with every weight, none of which is kept, as in a model."""
    for layer in layers:
        linear(inputs[layer.shape[1]], layer)


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
    from lbrx.tensors.codecs.codec import codec

    record = codec(kind)
    count = shape[1] // record.block_elements
    blocks = np.random.default_rng(0).integers(0, 256, (shape[0], count, record.block_bytes), dtype=np.uint8)
    scales = np.full(2 if kind.endswith("_k") else 1, 1e-4, np.float16).view(np.uint8)
    blocks[:, :, : scales.size] = scales
    return blocks.reshape(shape[0], -1)
