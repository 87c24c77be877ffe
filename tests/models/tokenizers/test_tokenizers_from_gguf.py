"""Tokenizer files and texts from GGUF key-values: defaults, chat templates, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import lbrx
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.models.tokenizers.text import open_tokenizer, tokenizer_of_metadata
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support.tokenizer_fixtures import (
    BOS,
    EOS,
    byte_level_document,
    hard_texts,
    sentencepiece_bytes,
    sentencepiece_document,
    sentencepiece_vocabulary,
    write_tokenizer,
)

PREFIX = "tokenizer.ggml."
SMALL: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    PREFIX + "model": "gpt2",
    PREFIX + "pre": "gpt-2",
    PREFIX + "tokens": ["a", "b", "ab", "<|x|>", "<y>", "[PAD5]"],
    PREFIX + "token_type": np.array([1, 1, 1, 3, 4, 5], np.int32),
    PREFIX + "merges": ["a b"],
    PREFIX + "eos_token_id": 3,
}


def files_of(metadata: dict[str, Any]) -> dict[str, bytes]:
    return {file.name: file.read() for file in tokenizer_files(metadata)}


def test_the_files_have_tokens_settings_and_no_padding() -> None:
    files = files_of(SMALL)
    assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.get_vocab() == {"a": 0, "b": 1, "ab": 2, "<|x|>": 3, "<y>": 4}
    assert tokenizer.encode("ab<y>ba<|x|>").ids == [2, 4, 1, 0, 3]
    settings = json.loads(files["tokenizer_config.json"])
    assert settings["eos_token"] == "<|x|>"
    assert settings["model_max_length"] == 64
    assert settings["added_tokens_decoder"]["3"]["special"] is True
    assert settings["added_tokens_decoder"]["4"]["special"] is False
    assert "bos_token" not in settings


def test_one_template_has_a_file_and_several_are_a_list() -> None:
    files = files_of({**SMALL, "tokenizer.chat_template": "{{ a }}"})
    assert files["chat_template.jinja"] == b"{{ a }}"
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{ a }}"
    named = {"tokenizer.chat_templates": ["tool"], "tokenizer.chat_template.tool": "{{ b }}"}
    files = files_of({**SMALL, "tokenizer.chat_template": "{{ a }}", **named})
    assert "chat_template.jinja" not in files
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == [
        {"name": "default", "template": "{{ a }}"},
        {"name": "tool", "template": "{{ b }}"},
    ]


@pytest.mark.parametrize("form", ["config", "list", "jinja", "old", "several files"])
def test_chat_templates_of_directories_become_keys(form: str, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ a }}"}, {"name": "tool", "template": "{{ b }}"}]
    value = {"config": "{{ a }}", "list": named}.get(form)
    write_tokenizer(tmp_path, byte_level_document("gpt-2"), {"chat_template": value} if value else {})
    if form in ("jinja", "several files"):
        (tmp_path / "chat_template.jinja").write_text("{{ a }}")
    if form == "several files":
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool.jinja").write_text("{{ b }}")
    if form == "old":
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "{{ a }}"}))
    metadata = gguf_tokenizer_metadata(tmp_path, {})
    assert metadata["tokenizer.chat_template"].value == "{{ a }}"
    has_tool = form in ("list", "several files")
    assert ("tokenizer.chat_template.tool" in metadata) is has_tool
    assert not has_tool or metadata["tokenizer.chat_templates"].value == ["tool"]


def test_the_name_of_phi_3_lets_special_tokens_swallow_spaces() -> None:
    metadata = {
        **SMALL,
        PREFIX + "tokens": ["a", "b", "ab", "<|end|>", "<s>", "Ġ"],
        PREFIX + "token_type": [1, 1, 1, 3, 3, 1],
    }
    assert tokenizer_of_metadata(metadata).encode("<|end|> a<s> b") == [3, 5, 0, 4, 5, 1]
    stripping = tokenizer_of_metadata({**metadata, "general.name": "Phi-3 Mini"})
    assert stripping.encode("<|end|> a<s> b") == [3, 0, 4, 5, 1]


def test_names_decide_over_bos_where_the_file_does_not() -> None:
    metadata = {**SMALL, PREFIX + "bos_token_id": 4}
    assert tokenizer_of_metadata(metadata).encode("ab") == [2]
    assert tokenizer_of_metadata({**metadata, PREFIX + "pre": "llama-bpe"}).encode("ab") == [4, 2]
    said = {**metadata, PREFIX + "pre": "llama-bpe", PREFIX + "add_bos_token": False, PREFIX + "add_eos_token": True}
    assert tokenizer_of_metadata(said).encode("ab") == [2, 3]
    assert tokenizer_of_metadata(said).encode("ab", add_special=False) == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({PREFIX + "model": "plamo2"}, "has a tokenizer of model 'plamo2', expected one of gpt2, llama, bert, t5"),
        ({PREFIX + "model": None}, "has no tokenizer, expected one of gpt2, llama"),
        ({PREFIX + "model": "bert"}, "has no unknown token, which WordPiece needs"),
        ({PREFIX + "model": "llama"}, r"has no tokenizer\.ggml\.scores, expected one for each of the 6 tokens"),
        ({PREFIX + "pre": "lama-bpe"}, "the pre-tokenizer 'lama-bpe' is unknown; did you mean 'llama-bpe'?"),
        ({PREFIX + "tokens": []}, r"has no tokenizer\.ggml\.tokens"),
        ({PREFIX + "tokens": ["a", "b", "ab", "a", "<y>", "c"]}, "token 'a' has both id 0 and id 3"),
        ({PREFIX + "tokens": ["a", "b", "ab", "\udcff", "<y>", "c"]}, "token 3 .* is not valid UTF-8"),
        ({PREFIX + "token_type": [1, 1]}, "token_type has 2 values for 6 tokens"),
        ({PREFIX + "merges": ["a c"]}, "the merge 'a c' is not two tokens"),
        ({PREFIX + "merges": ["ab"]}, "the merge 'ab' is not two tokens"),
    ],
)
def test_broken_metadata_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        tokenizer_files({**SMALL, **change})


@pytest.mark.parametrize("tokenizer_type", ["byte level", "sentencepiece", "model file"])
def test_a_directory_and_its_gguf_file_give_the_same_ids(tokenizer_type: str, tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary()
    documents = {"byte level": byte_level_document("llama-bpe"), "sentencepiece": sentencepiece_document(vocabulary)}
    begin = "<|begin_of_text|>" if tokenizer_type == "byte level" else BOS
    end = "<|end_of_text|>" if tokenizer_type == "byte level" else EOS
    settings = {"bos_token": begin, "eos_token": end, "add_bos_token": True}
    directory = write_tokenizer(tmp_path / "model", documents.get(tokenizer_type), settings)
    if tokenizer_type == "model file":
        (directory / "tokenizer.model").write_bytes(sentencepiece_bytes(vocabulary))
    metadata = {"general.architecture": "llama", **gguf_tokenizer_metadata(directory, {})}
    lbrx.save(tmp_path / "model.gguf", {"w": lbrx.full((32,), 0.0, "f32")}, metadata)
    ours, theirs = open_tokenizer(directory), open_tokenizer(tmp_path / "model.gguf")
    assert ours.vocab_size == theirs.vocab_size
    assert ours.bos_id is not None
    assert (ours.bos_id, ours.eos_id, ours.stop_ids) == (theirs.bos_id, theirs.eos_id, theirs.stop_ids)
    for text in hard_texts((begin,)):
        ids = ours.encode(text)
        assert ids[0] == ours.bos_id
        assert theirs.encode(text) == ids, text
        assert theirs.encode(text, add_special=False) == ids[1:], text
    assert theirs.decode(ours.encode("Hello wörld 😀\n")) == "Hello wörld 😀\n"
    assert theirs.decode([ours.bos_id], skip_special=False) == begin


def test_what_is_no_text_no_id_or_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    tokenizer = tokenizer_of_metadata(SMALL)
    with pytest.raises(UsageError, match="lone surrogate at character 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(UsageError, match="-1 is not a token id, expected 0 to 5"):
        tokenizer.decode([0, -1])
    assert tokenizer.decode([0, 5, 2]) == "aab"
    with pytest.raises(FileError, match=r"holds no tokenizer\.json, no tokenizer\.model and no GGUF file"):
        open_tokenizer(tmp_path)
    with pytest.raises(FileError, match="cannot be opened"):
        open_tokenizer(tmp_path / "missing")
