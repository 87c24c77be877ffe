"""Tokenizers of every type split texts like llama.cpp: its own vocabularies with expected ids, every pre-tokenizer, and
small tokenizers. Run this file as a program to write the ids that the tests without llama.cpp compare with.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import Llama
from peer_sources import llama_cpp_sources

import lbrx
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.gguf_values import Typed
from lbrx.models.tokenizers.pretokenizers import PRE_TOKENIZERS
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support import GOLDEN
from support.tokenizer_fixtures import hard_texts
from support.tokenizer_types import WRITERS

FILE = GOLDEN / "tokenizers" / "llama_cpp.json"
# Not copied here, because the licences are those of the models.
VOCABULARIES = llama_cpp_sources() / "models"
SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = [path.name.removeprefix("ggml-vocab-").removesuffix(".gguf") for path in sorted(VOCABULARIES.glob("*.gguf"))]
# llama.cpp cannot express the classes of letters in these rules, and splits camelCase in another way than the models.
WITHOUT_CASE = {"kimi-k2", "youtu", "tiny_aya", "cohere2moe"}
# llama.cpp does not decompose Hangul, removes fewer marks than BERT does, and knows capitals in ASCII only.
HANGUL, MARKS, CAPITALS = {"Lo"}, {"Mc", "Mn"}, {"Lu", "Lt", "Mn"}
DIFFERING = {"wordpiece": HANGUL | MARKS, "vocab.txt": HANGUL | MARKS, "tekken.json": CAPITALS}


def file_of(name: str) -> Path:
    return VOCABULARIES / f"ggml-vocab-{name}.gguf"


def their_ids(path: Path, texts: list[str], *, special: bool = False) -> list[list[int]]:
    model = Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=special, special=True) for text in texts]


def is_comparable(name: str, text: str) -> bool:
    """Whether llama.cpp treats every character of a text like the models do."""
    categories = {unicodedata.category(each) for each in text if each > "\x7f" and not "\u3000" < each < "\ua000"}
    return categories.isdisjoint(DIFFERING.get(name, ()))


def test_there_are_vocabularies() -> None:
    assert len(NAMES) >= 19


@pytest.mark.parametrize("name", NAMES)
def test_vocabularies_of_llama_cpp(name: str) -> None:
    """The expected ids of the file, or those of the program if there are none."""
    path = file_of(name)
    ours = open_tokenizer(path)
    texts_path, ids_path = (path.with_name(path.name + suffix) for suffix in (".inp", ".out"))
    if texts_path.is_file():
        texts = texts_path.read_bytes().decode().split(SEPARATOR)
        lines = ids_path.read_text().split("\n")
        expected = [[int(number) for number in line.split()] for line in lines[: len(texts)]]
    else:
        # The tokenizers library, and so the models' own tokenizers, looks up a letter with its marks as a whole.
        texts = [text for text in hard_texts() if "\u0302" not in text]
        expected = their_ids(path, texts)
    assert len(texts) > 40
    wrong = {text: ids for text, ids in zip(texts, expected, strict=True) if ours.encode(text, False) != ids}
    assert wrong == {}


@cache
def gpt2_metadata() -> dict[str, Any]:
    plain = open_checkpoint(file_of("gpt-2")).metadata
    typed = {key: Typed(value, "u32") if type(value) is int else value for key, value in plain.items()}
    return {**typed, "tokenizer.ggml.add_bos_token": False}


@pytest.mark.parametrize("name", [row.name for row in PRE_TOKENIZERS if not row.lines])
def test_every_pre_tokenizer_of_llama_cpp(name: str, tmp_path: Path) -> None:
    metadata = {**gpt2_metadata(), "tokenizer.ggml.pre": name}
    lbrx.save(tmp_path / "a.gguf", {"token_embd.weight": lbrx.full((32, 32), 0.0, "f32")}, metadata)
    texts = hard_texts()
    if name in WITHOUT_CASE:
        texts = [text for text in texts if "camelCase" not in text and "工作" not in text]
    ours = open_tokenizer(tmp_path / "a.gguf")
    theirs = their_ids(tmp_path / "a.gguf", texts)
    assert [text for text, ids in zip(texts, theirs, strict=True) if ours.encode(text, False) != ids] == []


def small_tokenizer_ids(name: str, folder: Path, texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    writer, config = WRITERS[name]
    writer(folder)
    extra = {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32}
    metadata = {**extra, **gguf_tokenizer_metadata(folder, config)}
    lbrx.save(folder / "a.gguf", {"token_embd.weight": lbrx.full((32, 32), 0.0, "f32")}, metadata)
    ours = open_tokenizer(folder / "a.gguf")
    return their_ids(folder / "a.gguf", texts, special=True), [ours.encode(text) for text in texts]


@pytest.mark.parametrize("name", WRITERS)
def test_small_tokenizers(name: str, tmp_path: Path) -> None:
    texts = [text for text in hard_texts() if is_comparable(name, text)]
    assert len(texts) > 150
    theirs, ours = small_tokenizer_ids(name, tmp_path, texts)
    assert {text: (a, b) for text, a, b in zip(texts, theirs, ours, strict=True) if a != b} == {}


@pytest.mark.parametrize("name", WRITERS)
def test_stored_ids_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert small_tokenizer_ids(name, tmp_path, stored["texts"])[0] == stored["ids"][name]


def write_golden(folder: Path) -> None:
    texts = [text for text in hard_texts()[:62] if all(is_comparable(name, text) for name in WRITERS)]
    ids = {}
    for name in WRITERS:
        (folder / name).mkdir()
        ids[name] = small_tokenizer_ids(name, folder / name, texts)[0]
    FILE.write_text(json.dumps({"texts": texts, "ids": ids}, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]))
