"""WordPiece, Unigram, RWKV, tiktoken, Tekken and Gemma 4: files to GGUF and back, with the ids that llama.cpp has."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FormatError, LbrxError
from lbrx.models.tokenizers import document
from lbrx.models.tokenizers.character_map import check_character_map
from lbrx.models.tokenizers.gguf_vocabulary import plain_values
from lbrx.models.tokenizers.sentencepiece import read_sentencepiece
from lbrx.models.tokenizers.text import TextTokenizer, open_tokenizer, tokenizer_of_metadata
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support import GOLDEN
from support.tokenizer_types import WRITERS, write_wordpiece

PREFIX = "tokenizer.ggml."
FOLDER = GOLDEN / "tokenizers"


@cache
def golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "llama_cpp.json").read_text(encoding="utf-8"))
    return content


def metadata_of(name: str, directory: Path) -> dict[str, Any]:
    writer, config = WRITERS[name]
    directory.mkdir()
    writer(directory)
    return gguf_tokenizer_metadata(directory, config)


def check_golden(name: str, tokenizer: TextTokenizer) -> None:
    texts, expected = golden()["texts"], golden()["ids"][name]
    assert len(texts) == len(expected) > 25
    assert {text: tokenizer.encode(text) for text in texts} == dict(zip(texts, expected, strict=True))


@pytest.mark.parametrize("name", WRITERS)
def test_ids_are_those_of_llama_cpp_for_files_metadata_and_files_made_from_it(name: str, tmp_path: Path) -> None:
    metadata = metadata_of(name, tmp_path / "a")
    check_golden(name, tokenizer_of_metadata(metadata))
    if name != "gemma4":  # its tokenizer.json needs no config, which says that this is not SentencePiece
        check_golden(name, open_tokenizer(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    for file in tokenizer_files(metadata):
        (tmp_path / "b" / file.name).write_bytes(file.read())
    check_golden(name, open_tokenizer(tmp_path / "b"))
    again = plain_values(gguf_tokenizer_metadata(tmp_path / "b", WRITERS[name][1]))
    for key, value in plain_values(metadata).items():
        assert np.array_equal(again[key], value), key


@pytest.mark.parametrize("name", WRITERS)
def test_texts_are_decoded(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of_metadata(metadata_of(name, tmp_path / "a"))
    text = "the quick brown dog, and 31415"
    decoded = tokenizer.decode(tokenizer.encode(text))
    assert decoded.strip() == text


@pytest.mark.parametrize("name", WRITERS)
def test_tokens_end_where_their_text_ends(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of_metadata(metadata_of(name, tmp_path / "a"))
    for text in [*golden()["texts"], "the quick brown dog, and 31415"]:
        ids, ends = tokenizer.encode_with_ends(text)
        assert ids == tokenizer.encode(text)
        assert ends.size == len(ids)
        assert (np.diff(ends) >= 0).all()
        assert not ends.size or ends[-1] <= len(text.encode())
    pieces = zip(ids, [0, *ends], ends, strict=False)
    words = [(tokenizer.decode([token]).strip(" #"), text[start:stop].strip()) for token, start, stop in pieces]
    assert "".join(word for word, _ in words) == "thequickbrowndog,and31415"
    assert [word for word, _ in words if word] == [part for _, part in words if part]


@pytest.mark.parametrize(
    ("name", "model", "pre"),
    [
        ("wordpiece", "bert", "default"),
        ("unigram", "t5", "default"),
        ("rwkv", "rwkv", None),
        ("qwen.tiktoken", "gpt2", "qwen2"),
        ("tekken.json", "gpt2", "tekken"),
        ("gemma4", "gemma4", None),
    ],
)
def test_models_and_rules(name: str, model: str, pre: str | None, tmp_path: Path) -> None:
    values = plain_values(metadata_of(name, tmp_path / "a"))
    assert (values[PREFIX + "model"], values.get(PREFIX + "pre")) == (model, pre)


def test_wordpiece_marks_the_start_of_words(tmp_path: Path) -> None:
    values = plain_values(metadata_of("wordpiece", tmp_path / "a"))
    tokens = list(values[PREFIX + "tokens"])
    vocabulary = json.loads((tmp_path / "a" / "tokenizer.json").read_text())["model"]["vocab"]
    assert tokens[vocabulary["[CLS]"]] == "[CLS]"
    assert tokens[vocabulary["the"]] == "▁the"
    assert tokens[vocabulary["##s"]] == "s"
    assert values[PREFIX + "normalizer.lowercase"] is True
    assert (values[PREFIX + "seperator_token_id"], values[PREFIX + "bos_token_id"]) == (3, 2)


def test_gguf_files_keep_character_maps(tmp_path: Path) -> None:
    metadata = {"general.architecture": "t5", **metadata_of("unigram", tmp_path / "a")}
    lbrx.save(tmp_path / "a.gguf", {"w": lbrx.full((32,), 0.0, "f32")}, metadata)
    check_golden("unigram", open_tokenizer(tmp_path / "a.gguf"))


def character_map() -> bytearray:
    return bytearray(read_sentencepiece(FOLDER / "unigram.model").character_map)


def test_the_character_map_of_a_model_is_sound() -> None:
    check_character_map(bytes(character_map()), "a map")


@pytest.mark.parametrize(
    ("start", "change", "message"),
    [
        (0, b"\xff\xff\xff\xff", "expected an array and replacements"),
        (0, b"\x03\x00\x00\x00", "expected an array and replacements"),
        (4, b"\x00\xfc\xff\x7f", "leads beyond"),
        (-1, b"x", "ends within a replacement"),
        (-3, b"\xff\xff", "is not UTF-8"),
    ],
)
def test_broken_character_maps(start: int, change: bytes, message: str) -> None:
    blob = character_map()
    start %= len(blob)
    blob[start : start + len(change)] = change
    with pytest.raises(FormatError, match=message):
        check_character_map(bytes(blob), "a map")


def test_a_replacement_that_makes_texts_endless() -> None:
    with pytest.raises(FormatError, match="a replacement of 5000 bytes, expected at most 1000"):
        check_character_map(bytes(character_map()) + b"x" * 5000 + b"\0", "a map")


@pytest.mark.parametrize("seed", range(20))
def test_damaged_character_maps_are_an_error_or_work(seed: int, tmp_path: Path) -> None:
    values = plain_values(metadata_of("unigram", tmp_path / "a"))
    blob = character_map()
    random = np.random.default_rng(seed)
    for place in random.integers(0, len(blob), 8):
        blob[place] = random.integers(256)
    values[PREFIX + "precompiled_charsmap"] = np.frombuffer(bytes(blob), np.uint8)
    try:
        ids = tokenizer_of_metadata(values).encode("ﬁ Ａ … e\u0301 ①ⅷ½\u3000x")
    except LbrxError:
        return
    assert len(ids) < 100


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 'a'", "expected an id, a text and its length"),
        ("1 a 1", "expected a text in quotes"),
        ("1 'a' 2", "token 1 of 1 bytes, expected 2"),
        ("1 __import__('os') 1", "expected a text in quotes"),
        ("1 '" + "a" * 2000 + "' 2000", "token 1 of 2000 bytes"),
        ("99999999999 'a' 1", "has token 9999999999"),
        ("1 'a'.upper() 1", "expected a text in quotes"),
    ],
)
def test_broken_rwkv_vocabularies(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rwkv_vocab_v20230424.txt").write_text(line + "\n")
    with pytest.raises(FormatError, match=message):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("!!!! 0\n", "is not Base64"),
        ("YQ== 5\n", "has rank 5, expected 0"),
        ("YQ== 0\nYQ== 1\n", "has the bytes of token 0 again"),
        (f"{b64encode(b'a' * 300).decode()} 0\n", "has a token of 300 bytes, expected 1 to 256"),
        ("YQ== 0\nYmNk 1\n", "is not made of two tokens"),
    ],
)
def test_broken_ranks(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_text(lines)
    with pytest.raises(FormatError, match=message):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer is not BertNormalizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "splits words by Whitespace, expected BertPreTokenizer"),
    ],
)
def test_wordpiece_that_gguf_cannot_express(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_wordpiece(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(FormatError, match=message):
        gguf_tokenizer_metadata(tmp_path, {})


def write_document(directory: Path, document: dict[str, Any]) -> None:
    (directory / "tokenizer.json").write_text(json.dumps(document))


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
SMALL_BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
WORDPIECE = {
    "type": "WordPiece",
    "vocab": {"a": 0, "[UNK]": 1},
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
}


@pytest.mark.parametrize("pattern", ["(a|aa)+$", r"(\w|\d)+$", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"])
@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer"])
def test_patterns_that_take_exponential_time(pattern: str, part: str, tmp_path: Path) -> None:
    step = {"pattern": {"Regex": pattern}} | (SPLIT if part == "pre_tokenizer" else {"type": "Replace", "content": ""})
    write_document(tmp_path, {"model": SMALL_BPE, part: step})
    with pytest.raises(FormatError, match=r"the regular expression .* can take exponential time"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("pattern", [" {2,}", r"\s+$", r"'(?i:[sdmt]|ll)|\p{L}+\p{M}*|\d{1,4}", ".*.*.*=.*"])
def test_sound_patterns_are_not_refused(pattern: str, tmp_path: Path) -> None:
    write_document(tmp_path, {"model": SMALL_BPE, "pre_tokenizer": SPLIT | {"pattern": {"Regex": pattern}}})
    assert open_tokenizer(tmp_path).encode("ab") == [0, 1]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"model": WORDPIECE | {"max_input_chars_per_word": 10**9}},
            "max_input_chars_per_word is 1000000000, expected at most 1024",
        ),
        (
            {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a" * 5000, -1.0]]}},
            "has a token of 5000 characters, expected at most 1024",
        ),
        (
            {"model": SMALL_BPE, "normalizer": {"type": "Prepend", "prepend": "x" * 5000}},
            "its steps make texts 5000 characters longer",
        ),
        (
            {
                "model": SMALL_BPE,
                "normalizer": {
                    "type": "Precompiled",
                    "precompiled_charsmap": b64encode(bytes(character_map()) + b"x" * 5000 + b"\0").decode(),
                },
            },
            "the character map has a replacement of 5000 bytes",
        ),
    ],
)
def test_documents_that_take_too_long(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_document(tmp_path, document)
    with pytest.raises(FormatError, match=message):
        open_tokenizer(tmp_path)


def test_a_tokenizer_is_recognized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps some memory for the first text of every tokenizer, so a long process must not repeat it."""
    tried: list[object] = []
    whole = document.name_of_ids
    monkeypatch.setattr(document, "_known_names", {})
    monkeypatch.setattr(document, "name_of_ids", lambda ids: tried.append(ids) or whole(ids))
    first, second = (gguf_tokenizer_metadata(demo_models().base, {}) for _ in range(2))
    assert len(tried) == 1
    assert first["tokenizer.ggml.pre"] == second["tokenizer.ggml.pre"]
