"""Opening files: headers only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import lbrx
from benchmarks.harness import Figure, faster, seconds

TENSORS = 10_000
TOKENS = 250_000


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "many.safetensors"
        small = lbrx.tensor(np.zeros(4, np.float32))
        lbrx.save(path, {f"model.layers.{number}.mlp.up_proj.weight": small for number in range(TENSORS)})
        own = min(seconds(lambda: lbrx.open(path)) for _ in range(7))
        yield Figure("opening", f"50 ms / SafeTensors, {TENSORS} tensors", 0.05 / own, 1, f"{own * 1e3:.1f} ms")
        vocabulary = Path(directory) / "vocabulary.gguf"
        tokens = [f"token{number}" for number in range(TOKENS)]
        lbrx.save(vocabulary, {"w": small}, {"general.architecture": "llama", "tokenizer.ggml.tokens": tokens})
        yield _against_gguf(vocabulary)


def _against_gguf(path: Path) -> Figure:
    from gguf import GGUFReader

    return faster("opening", f"GGUF, {TOKENS} tokens", lambda: lbrx.open(path), lambda: GGUFReader(path), 50, 1)
