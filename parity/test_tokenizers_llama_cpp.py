"""Texts are cut alike by the tokenizers of Hugging Face files, by llama.cpp from the GGUF keys made of them, and by the
files that are made back from those keys."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from llama_cpp import Llama
from transformers import AutoTokenizer

import lbrx
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support.tokenizer_fixtures import (
    BOS,
    CORPUS,
    EOS,
    FAMILIES,
    byte_level_document,
    gemma_vocabulary,
    hard_texts,
    sentencepiece_document,
    sentencepiece_vocabulary,
    write_tokenizer,
)

BYTE_LEVEL_SETTINGS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "add_bos_token": True}
SENTENCEPIECE_SETTINGS = {"bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>", "add_bos_token": True}
HYPERPARAMETERS = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


Encode = Callable[[str], list[int]]


def llama_cpp(directory: Path, path: Path) -> Encode:
    """llama.cpp's tokenizer of a directory that was converted to the keys of a GGUF file."""
    metadata = {**HYPERPARAMETERS, **gguf_tokenizer_metadata(directory, {})}
    lbrx.save(path, {"token_embd.weight": lbrx.full((32, 32), 0.0, "f32")}, metadata)
    model = Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: model.tokenize(text.encode(), add_bos=True, special=True)


def check(theirs: Encode, ours: Encode, texts: list[str]) -> None:
    assert len(texts) >= 200
    assert [text for text in texts if theirs(text) != ours(text)] == []


def is_cased_beyond_ascii(text: str) -> bool:
    """Whether a text has what llama.cpp's rules for changes of case leave out: capitals beyond ASCII, and marks."""
    kinds = {unicodedata.category(character) for character in text if character > "\x7f"}
    return not kinds.isdisjoint({"Lu", "Lt", "Mn", "Mc", "Me"})


@pytest.mark.parametrize("family", FAMILIES)
def test_byte_level_tokenizers(family: str, tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model", byte_level_document(family), BYTE_LEVEL_SETTINGS)
    theirs = llama_cpp(directory, tmp_path / "model.gguf")
    texts = hard_texts(("<|begin_of_text|>", "<|im_end|>", "<tool_call>"))
    if FAMILIES[family][0] == {"type": "NFC"}:  # llama.cpp leaves the composed form to its caller
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    if family in ("tekken", "gpt-4o"):
        texts = [text for text in texts if not is_cased_beyond_ascii(text)]
    check(theirs, open_tokenizer(directory).encode, texts)
    check(theirs, open_tokenizer(tmp_path / "model.gguf").encode, texts)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_like_tokenizer_json(prefix: bool, tmp_path: Path) -> None:
    document = sentencepiece_document(sentencepiece_vocabulary(), prefix=prefix)
    directory = write_tokenizer(tmp_path / "model", document, SENTENCEPIECE_SETTINGS)
    theirs = llama_cpp(directory, tmp_path / "model.gguf")
    texts = hard_texts((BOS, EOS))
    check(theirs, open_tokenizer(directory).encode, texts)
    check(theirs, open_tokenizer(tmp_path / "model.gguf").encode, texts)


def test_runs_of_spaces_that_are_tokens_of_their_own(tmp_path: Path) -> None:
    document = sentencepiece_document(gemma_vocabulary(), prefix=False)
    directory = write_tokenizer(tmp_path / "model", document, SENTENCEPIECE_SETTINGS)
    theirs = llama_cpp(directory, tmp_path / "model.gguf")
    texts = [text for text in hard_texts((BOS, EOS)) if "▁" not in text]
    check(theirs, open_tokenizer(directory).encode, texts)
    check(theirs, open_tokenizer(tmp_path / "model.gguf").encode, texts)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_models(prefix: bool, tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model", None, SENTENCEPIECE_SETTINGS)
    train_sentencepiece(directory / "tokenizer.model", prefix=prefix)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    theirs = llama_cpp(directory, tmp_path / "model.gguf")
    texts = hard_texts()
    check(theirs, lambda text: [processor.bos_id(), *processor.encode(text)], texts)
    check(theirs, open_tokenizer(directory).encode, texts)
    check(theirs, open_tokenizer(tmp_path / "model.gguf").encode, texts)


def train_sentencepiece(path: Path, *, prefix: bool) -> None:
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=file,
            model_type="bpe",
            vocab_size=900,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=prefix,
            minloglevel=2,
        )


def test_made_files_load_in_transformers(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model", byte_level_document("llama-bpe"), BYTE_LEVEL_SETTINGS)
    (directory / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    made = tmp_path / "made"
    made.mkdir()
    for file in tokenizer_files(gguf_tokenizer_metadata(directory, {})):
        (made / file.name).write_bytes(file.read())
    loaded = AutoTokenizer.from_pretrained(made)
    assert (loaded.bos_token, loaded.eos_token) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert loaded.chat_template == "{{ messages[0]['content'] }}"
    check(loaded.encode, open_tokenizer(directory).encode, hard_texts(("<|im_end|>", "<tool_call>")))
