"""Tokenizers of real models: to GGUF and back, and the keys that llama.cpp's converter writes for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from llama_cpp import Llama
from peer_sources import llama_cpp_sources, tokenizer_folder, wheel_folder

import lbrx
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.models.tokenizers.gguf_vocabulary import plain_values
from lbrx.models.tokenizers.text import open_tokenizer, tokenizer_of_metadata
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support.tokenizer_fixtures import hard_texts

PREFIX = "tokenizer.ggml."
MISTRAL_COMMON = ("mistral-common", "1.13.0")
# By name: the class and type in config.json, and the rows of the embedding.
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "gpt2", 50257),
    "llama3": ("LlamaForCausalLM", "llama", 128256),
    "qwen2_5": ("Qwen2ForCausalLM", "qwen2", 152064),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", 151936),
    "mistral_nemo": ("MistralForCausalLM", "mistral", 131072),
    "llama2": ("LlamaForCausalLM", "llama", 32000),  # really that of Mistral 7B
    "gemma2": ("Gemma2ForCausalLM", "gemma2", 256000),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", 262144),
}
SENTENCEPIECE = {
    "tokenizer.model.v1": 32000,
    "mistral_instruct_tokenizer_240216.model.v2": 32768,
    "mistral_instruct_tokenizer_240323.model.v3": 32768,
    "mistral_instruct_tokenizer_241114.model.v7": 32768,
}
# The converter needs a tokenizer.model for Gemma 2 and 3, which the packages do not have.
NOT_CONVERTED = ("gemma2", "gemma3")
# Values of llama.cpp without a key. The converter leaves them out if there is no tokenizer_config.json.
DEFAULTS = {
    "add_bos_token": True,
    "add_eos_token": False,
    "add_space_prefix": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "unknown_token_id": 0,
}
DIFFERENT = {
    "llama3": {"pre"},  # equal ids, but the file ignores merges, and the converter's `smaug-bpe` does not
    "mistral_nemo": {"add_space_prefix"},  # has no effect on byte-level tokenizers
    # Without tokenizer.model, the converter gives all tokens the score -1000, and llama.cpp then joins other pairs.
    "llama2": {"scores", "token_type"},
    # The converter takes user-defined pieces for normal ones, so llama.cpp would split them.
    "mistral_instruct_tokenizer_240216.model.v2": {"token_type"},
    "mistral_instruct_tokenizer_240323.model.v3": {"token_type"},
    "mistral_instruct_tokenizer_241114.model.v7": {"token_type"},
}
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd"), 32),
    **dict.fromkeys(("intermediate_size",), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 1),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 512),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), 1e-5),
    "head_dim": 8,
}


def write_model(name: str, folder: Path) -> dict[str, Any]:
    """Write tokenizer files and a config, which is returned."""
    if name in SENTENCEPIECE:
        architecture, model_type, rows = "LlamaForCausalLM", "llama", SENTENCEPIECE[name]
        shutil.copy(wheel_folder(*MISTRAL_COMMON) / "mistral_common" / "data" / name, folder / "tokenizer.model")
    else:
        architecture, model_type, rows = MODELS[name]
        for file in tokenizer_folder(name).iterdir():
            shutil.copy(file, folder / file.name)
    config = {**SIZES, "architectures": [architecture], "model_type": model_type, "vocab_size": rows}
    (folder / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("name", [name for name in (*MODELS, *SENTENCEPIECE) if name not in NOT_CONVERTED])
def test_keys_are_those_of_the_converter(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = write_model(name, folder)
    converter = llama_cpp_sources() / "convert_hf_to_gguf.py"
    command = [sys.executable, str(converter), "--vocab-only", "--outfile", str(tmp_path / "a.gguf"), str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    metadata = open_checkpoint(tmp_path / "a.gguf").metadata
    theirs = {key: value for key, value in plain_values(metadata).items() if key.startswith("tokenizer.")}
    ours = plain_values(gguf_tokenizer_metadata(folder, config))
    defaults = {} if name not in (*SENTENCEPIECE, "llama2") else DEFAULTS
    theirs = {PREFIX + key: value for key, value in defaults.items()} | theirs
    exceptions = {PREFIX + key for key in DIFFERENT.get(name, ())}
    assert theirs.keys() - exceptions == ours.keys() - exceptions
    for key in theirs.keys() - exceptions:
        same = theirs[key] == ours[key] if isinstance(theirs[key], str | int) else list(theirs[key]) == list(ours[key])
        assert same, key


@pytest.mark.parametrize("name", [*MODELS, *SENTENCEPIECE])
def test_there_and_back(name: str, tmp_path: Path) -> None:
    for each in ("model", "made"):
        (tmp_path / each).mkdir()
    config = write_model(name, tmp_path / "model")
    metadata = gguf_tokenizer_metadata(tmp_path / "model", config)
    for file in tokenizer_files(metadata):
        (tmp_path / "made" / file.name).write_bytes(file.read())
    texts = [text for text in hard_texts() if "\u0301" not in text and "▁" not in text]  # GGUF has no NFC
    assert len(texts) > 200
    original = open_tokenizer(tmp_path / "model")
    expected = {text: original.encode(text) for text in texts}
    for tokenizer in (tokenizer_of_metadata(metadata), open_tokenizer(tmp_path / "made")):
        assert {text: tokenizer.encode(text) for text in texts} == expected
    if name in SENTENCEPIECE:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model" / "tokenizer.model"))
        plain = [text for text in texts if "<" not in text and "[" not in text]
        assert [original.encode(text)[1:] for text in plain] == processor.encode(plain)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "llama3", "llama2"])
def test_llama_cpp_reads_them(name: str, tmp_path: Path) -> None:
    config = write_model(name, tmp_path)
    extra = {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32}
    metadata = {**extra, **gguf_tokenizer_metadata(tmp_path, config)}
    lbrx.save(tmp_path / "a.gguf", {"token_embd.weight": lbrx.full((32, 32), 0.0, "f32")}, metadata)
    theirs = Llama(str(tmp_path / "a.gguf"), vocab_only=True, verbose=False)
    ours = open_tokenizer(tmp_path)
    texts = [text for text in hard_texts() if "▁" not in text]
    wrong = [text for text in texts if theirs.tokenize(text.encode(), special=True) != ours.encode(text)]
    assert wrong == []


@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(name: str, tmp_path: Path) -> None:
    """The vocabulary of Mistral Nemo in both forms: equal ids, except for names of special tokens."""
    shutil.copy(wheel_folder(*MISTRAL_COMMON) / "mistral_common" / "data" / name, tmp_path / "tekken.json")
    ours, theirs = open_tokenizer(tmp_path), open_tokenizer(tokenizer_folder("mistral_nemo"))
    assert ours.vocab_size == theirs.vocab_size == 131072
    texts = hard_texts(("[INST]", "</s>"))
    assert {text: ours.encode(text) for text in texts} == {text: theirs.encode(text) for text in texts}
