"""Forward passes against transformers and llama.cpp: logits, perplexity, divergence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from lbrx.jobs.quantize import quantize
from lbrx.jobs.score.score import score, windows
from lbrx.jobs.score.tally import log_softmax
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.text import open_tokenizer

TOKENS = 40
RELATIVE = 1e-4
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": kind, **more}}


# (model type, what its config has besides)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("llama", {"head_dim": 32}),
    "llama, linear": ("llama", _rope("linear", factor=4.0)),
    "llama, llama3": (
        "llama",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama, yarn": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7, "query_pre_attn_scalar": 16},
    ),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "olmo2": ("olmo2", {}),
    "olmo2, biases": ("olmo2", {"attention_bias": True}),
    "phi3, half turned": ("phi3", {"pad_token_id": 0, **_rope("default", partial_rotary_factor=0.5)}),
}
# GGUF files cannot say that mistral and qwen2 have a window, nor how gemma 2 scales its queries, nor have biases of
# olmo2.
NOT_IN_GGUF = ("mistral, window", "qwen2, window", "gemma2", "olmo2, biases")


def make(case: str, folder: Path) -> AutoModelForCausalLM:
    kind, changes = CASES[case]
    torch.manual_seed(3)
    config = AutoConfig.for_model(kind, **{**SMALL, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():  # norms and biases are constant in a new model
            if weight.ndim == 1:
                weight.add_(0.3 * torch.randn_like(weight))
            elif "router" not in name:
                weight.mul_(3.0)
    model.save_pretrained(folder)
    return model


def token_ids() -> npt.NDArray[np.int64]:
    return np.random.default_rng(5).integers(0, SMALL["vocab_size"], TOKENS)


def reference_logits(model: AutoModelForCausalLM, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        return model(torch.from_numpy(ids[None])).logits[0].float().numpy()


def assert_close(actual: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    ids = token_ids()
    expected = reference_logits(make(case, tmp_path), ids)
    model = open_model(tmp_path)
    assert_close(model.logits(ids), expected)
    cache = model.new_cache()
    pieces = [
        model.logits(ids[:17], cache),
        *(model.logits(ids[place : place + 1], cache) for place in range(17, TOKENS)),
    ]
    assert_close(np.concatenate(pieces), expected)


@pytest.mark.parametrize("case", [case for case in CASES if case not in NOT_IN_GGUF])
def test_logits_of_the_gguf_form_are_the_same(case: str, tmp_path: Path) -> None:
    ids = token_ids()
    expected = reference_logits(make(case, tmp_path / "hf"), ids)
    contents = hf_to_gguf(read_contents(tmp_path / "hf"), tokenizer_metadata={})
    tensors = {tensor.name: tensor.make() for tensor in contents.tensors}
    lbrx.save(tmp_path / "model.gguf", tensors, contents.metadata)
    assert_close(open_model(tmp_path / "model.gguf").logits(ids), expected)


def test_greedy_text_is_that_of_transformers(tmp_path: Path) -> None:
    model = make("llama", tmp_path)
    ids = token_ids()[:5]
    with torch.no_grad():
        whole = model.generate(torch.from_numpy(ids[None]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert list(open_model(tmp_path).generate(ids, 20)) == whole[0, 5:].tolist()


# -- the models of the demo --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", "prose", "code"])
def test_perplexity_is_that_of_torch_to_four_digits(name: str) -> None:
    shipped = demo_models()
    folder = getattr(shipped, name)
    ids = open_tokenizer(folder).encode(shipped.code_text.read_text(encoding="utf-8"))[:3000]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses = []
    for start, stop, first in windows(len(ids), 256, 128):
        with torch.no_grad():
            shares = model(torch.tensor([ids[start:stop]])).logits[0].log_softmax(-1)
        losses += [-float(shares[place - start - 1, ids[place]]) for place in range(first, stop)]
    (ours,) = score(folder, shipped.code_text, context=256, stride=128, max_tokens=3000)
    assert ours.tokens == len(losses)
    assert f"{ours.perplexity:.4g}" == f"{math.exp(np.mean(losses)):.4g}"
    assert ours.loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_k_m", "q6_k", "q2_k"])
def test_predictions_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    shipped = demo_models()
    path = tmp_path / f"{kind}.gguf"
    quantize(shipped.prose, path, to=kind)
    text = shipped.prose_text.read_text(encoding="utf-8")
    ids = open_tokenizer(path).encode(text)[:256]
    peer = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, verbose=False, n_threads=2)
    assert peer.tokenize(text.encode(), add_bos=False)[:256] == ids
    peer.eval(ids)
    theirs = log_softmax(np.array(peer.scores[: len(ids)], np.float32))
    ours = log_softmax(open_model(path).logits(ids))
    divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    assert divergence.mean() < 1e-3
