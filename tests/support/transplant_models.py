"""Tiny Llama models with trained byte-level or SentencePiece-like tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

Array = npt.NDArray[Any]

COLUMNS = 24
FIRST_TEXT = "the cat sat on the mat and the dog ran to the end of the road, then it slept there for hours "
SECOND_TEXT = "then the other cat and another dog found the mother on the road; they ran over there and there again "


def tokenizer_of(text: str, size: int, *, is_byte_level: bool = True, end: str = "<|end|>") -> Tokenizer:
    tokenizer = Tokenizer(BPE(byte_fallback=not is_byte_level, unk_token=None if is_byte_level else "<unk>"))
    specials = [AddedToken(end, special=True, normalized=False)]
    if is_byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        specials = [AddedToken("<unk>", special=True), *specials]
        specials += [AddedToken(f"<0x{value:02X}>", special=False, normalized=False) for value in range(256)]
        alphabet = sorted({*text.replace(" ", "▁"), "é"})
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator([text] * 3, trainer)
    if not is_byte_level:  # byte tokens belong to the model only
        document = json.loads(tokenizer.to_str())
        document["added_tokens"] = [
            entry for entry in document["added_tokens"] if not entry["content"].startswith("<0x")
        ]
        tokenizer = Tokenizer.from_str(json.dumps(document))
    return tokenizer


def write_model(
    directory: Path,
    tokenizer: Tokenizer,
    seed: int,
    *,
    end: str = "<|end|>",
    is_tied: bool = False,
    columns: int = COLUMNS,
    padding: int = 0,
) -> dict[str, Array]:
    """Write a model of one layer; its embedding has ``padding`` rows more than there are tokens."""
    random = np.random.default_rng(seed)
    rows, inner = tokenizer.get_vocab_size() + padding, 2 * columns
    shapes = {"model.embed_tokens.weight": (rows, columns), "model.norm.weight": (columns,)}
    for part in ("q", "k", "v", "o"):
        shapes[f"model.layers.0.self_attn.{part}_proj.weight"] = (columns, columns)
    for part, shape in (("gate", (inner, columns)), ("up", (inner, columns)), ("down", (columns, inner))):
        shapes[f"model.layers.0.mlp.{part}_proj.weight"] = shape
    for part in ("input", "post_attention"):
        shapes[f"model.layers.0.{part}_layernorm.weight"] = (columns,)
    if not is_tied:
        shapes["lm_head.weight"] = (rows, columns)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": columns,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "vocab_size": rows,
        "tie_word_embeddings": is_tied,
        "eos_token_id": tokenizer.token_to_id(end),
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return tensors


def read_model(directory: Path) -> dict[str, Array]:
    return load_file(directory / "model.safetensors")
