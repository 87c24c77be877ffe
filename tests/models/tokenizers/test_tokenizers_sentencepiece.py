"""SentencePiece tokenizers: the protobuf, scores and merges, and the same cut of texts on every way."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lbrx.errors import FormatError, LbrxError
from lbrx.models.tokenizers.sentencepiece import parse_sentencepiece
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support.tokenizer_fixtures import (
    BOS,
    EOS,
    SPACE,
    gemma_vocabulary,
    hard_texts,
    sentencepiece_bytes,
    sentencepiece_document,
    sentencepiece_vocabulary,
    write_tokenizer,
)

PREFIX = "tokenizer.ggml."
VOCABULARY = sentencepiece_vocabulary()
SCORES = {text: score for text, score, piece_type in VOCABULARY if piece_type == 1}
IDS = {text: number for number, (text, _, _) in enumerate(VOCABULARY)}
END = len(VOCABULARY)
SETTINGS = {"bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>"}


def metadata_of(directory: Path, config: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    typed = gguf_tokenizer_metadata(directory, config or {}, **options)
    return {key: value.value for key, value in typed.items()}


def best_pieces(text: str, *, prefix: bool = True) -> list[int]:
    """What SentencePiece does, slowly: join the neighbours that make the best piece, until no two make one."""
    symbols = list((SPACE if prefix and text else "") + text.replace(" ", SPACE))
    while True:
        pairs = enumerate(map("".join, pairwise(symbols)))
        joined = [(-SCORES[pair], place) for place, pair in pairs if pair in SCORES]
        if not joined:
            break
        place = min(joined)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    as_bytes = {symbol: [IDS[f"<0x{byte:02X}>"] for byte in symbol.encode()] for symbol in symbols if symbol not in IDS}
    return [number for symbol in symbols for number in as_bytes.get(symbol) or [IDS[symbol]]]


def write_model(directory: Path, content: bytes, config: dict[str, Any] | None = None) -> Path:
    write_tokenizer(directory, None, config)
    (directory / "tokenizer.model").write_bytes(content)
    return directory


@pytest.mark.parametrize("prefix", [True, False])
def test_a_model_file_gives_files_that_cut_as_sentencepiece_does(prefix: bool, tmp_path: Path) -> None:
    normalizer = b"\x20\x00" if prefix else b"\x18\x00\x20\x00"
    metadata = metadata_of(write_model(tmp_path, sentencepiece_bytes(VOCABULARY, normalizer=normalizer), SETTINGS))
    assert metadata[PREFIX + "model"] == "llama"
    assert metadata[PREFIX + "add_space_prefix"] is prefix
    made = Tokenizer.from_str(tokenizer_files(metadata)[0].read().decode())
    for text in hard_texts():
        expected = best_pieces(text, prefix=prefix)
        assert made.encode(text, add_special_tokens=False).ids == expected, text
        assert made.encode(text).ids == [1, *expected], text


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_json_without_model_file_keeps_its_cut(prefix: bool, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, sentencepiece_document(VOCABULARY, prefix=prefix), SETTINGS)
    original = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    metadata = metadata_of(tmp_path)
    assert metadata[PREFIX + "add_space_prefix"] is prefix
    made = Tokenizer.from_str(tokenizer_files(metadata)[0].read().decode())
    for text in hard_texts((BOS, EOS)):
        assert made.encode(text).ids == original.encode(text).ids, text
        assert made.decode(original.encode(text).ids) == original.decode(original.encode(text).ids).removeprefix(
            " " if prefix else ""
        ), text


def test_scores_of_merges_fall_in_the_order_of_the_pieces(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, sentencepiece_document(VOCABULARY), SETTINGS)
    scores = metadata_of(tmp_path)[PREFIX + "scores"]
    joined = [number for number, (text, _, piece_type) in enumerate(VOCABULARY) if piece_type == 1 and len(text) > 1]
    assert scores.dtype == np.float32
    assert scores[joined].tolist() == [-float(place) for place in range(len(joined))]
    assert scores.min() == scores[0] == -len(joined)


def test_scores_come_from_the_model_file_if_the_pieces_are_the_same(tmp_path: Path) -> None:
    halved = [(text, score / 2, piece_type) for text, score, piece_type in VOCABULARY]
    write_tokenizer(tmp_path, sentencepiece_document(VOCABULARY), SETTINGS)
    write_model(tmp_path, sentencepiece_bytes(halved))
    assert metadata_of(tmp_path)[PREFIX + "scores"][260] == pytest.approx(-0.5)
    renamed = [*halved[:-1], ("another", 0.0, 1)]
    write_model(tmp_path, sentencepiece_bytes(renamed))
    assert metadata_of(tmp_path)[PREFIX + "scores"][260] == pytest.approx(-1.0)


def test_types_added_tokens_and_padding_of_a_model_file(tmp_path: Path) -> None:
    added = {
        f"{END}": {"content": "<|end|>", "special": True},
        f"{END + 1}": {"content": f"{SPACE}{SPACE}", "special": False},
        "5000": {"content": "<without a row>", "special": True},
    }
    config = {**SETTINGS, "added_tokens_decoder": added, "add_eos_token": True}
    write_model(tmp_path, sentencepiece_bytes(VOCABULARY), config)
    metadata = metadata_of(tmp_path, {"text_config": {"vocab_size": END + 4, "pad_token_id": 2}})
    padding = [f"[PAD{END + 2}]", f"[PAD{END + 3}]"]
    assert metadata[PREFIX + "tokens"][END - 1 :] == [VOCABULARY[-1][0], "<|end|>", "  ", *padding]
    types = metadata[PREFIX + "token_type"].tolist()
    assert types[:4] == [2, 3, 3, 6]
    assert types[END - 1 :] == [1, 3, 4, 5, 5]
    names = ("bos", "eos", "unknown", "padding")
    assert [metadata[f"{PREFIX}{name}_token_id"] for name in names] == [1, 2, 0, 2]
    assert metadata[PREFIX + "add_bos_token"] is metadata[PREFIX + "add_eos_token"] is True
    made = Tokenizer.from_str(tokenizer_files(metadata)[0].read().decode())
    assert made.encode("  <|end|>  ").ids == [1, END + 1, END, END + 1, 2]


@pytest.mark.parametrize("from_model", [True, False])
def test_runs_of_spaces_and_lines_that_are_tokens_of_their_own(from_model: bool, tmp_path: Path) -> None:
    vocabulary = gemma_vocabulary()
    document = sentencepiece_document(vocabulary, prefix=False)
    write_tokenizer(tmp_path, None if from_model else document, SETTINGS)
    if from_model:
        write_model(tmp_path, sentencepiece_bytes(vocabulary, normalizer=b"\x18\x00\x20\x00"), SETTINGS)
    metadata = metadata_of(tmp_path)
    assert metadata[PREFIX + "tokens"][259:269] == [
        "\n",
        "\n\n",
        "\n" * 3,
        "\n" * 4,
        *(" " * count for count in range(2, 8)),
    ]
    assert metadata[PREFIX + "token_type"][259:270].tolist() == [4] * 11
    original = Tokenizer.from_str(json.dumps(document))
    made = Tokenizer.from_str(tokenizer_files(metadata)[0].read().decode())
    for text in (text for text in hard_texts((BOS, EOS)) if SPACE not in text):
        assert made.encode(text).ids == original.encode(text).ids, text


def test_merges_that_scores_cannot_express_are_an_error_that_an_argument_overrides(tmp_path: Path) -> None:
    document = sentencepiece_document(VOCABULARY)
    left, right = document["model"]["merges"].pop()
    write_tokenizer(tmp_path, document, SETTINGS)
    with pytest.raises(FormatError, match=f"has no merge of '{left}' and '{right}'"):
        metadata_of(tmp_path)
    assert metadata_of(tmp_path, pre="default")[PREFIX + "pre"] == "default"


def test_merges_that_old_converters_lost_are_found_again(tmp_path: Path) -> None:
    document = sentencepiece_document(VOCABULARY)
    first = VOCABULARY[259][0]
    document["model"]["merges"] = [pair for pair in document["model"]["merges"] if "".join(pair) != first]
    write_tokenizer(tmp_path, document, SETTINGS)
    scores = metadata_of(tmp_path)[PREFIX + "scores"]
    assert scores[259:262].tolist() == [0.0, -1.0, -2.0]


def test_a_text_that_is_cut_into_words_first_is_an_error(tmp_path: Path) -> None:
    document = sentencepiece_document(VOCABULARY)
    document["pre_tokenizer"] = {"type": "Whitespace"}
    write_tokenizer(tmp_path, document, SETTINGS)
    with pytest.raises(FormatError, match="in one piece, optionally with '▁' before it"):
        metadata_of(tmp_path)


def test_metaspace_says_the_same_as_a_normalizer(tmp_path: Path) -> None:
    document = sentencepiece_document(VOCABULARY)
    for scheme, expected in (("always", True), ("first", True), ("never", False)):
        rule = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
        write_tokenizer(tmp_path, {**document, "normalizer": None, "pre_tokenizer": rule}, SETTINGS)
        assert metadata_of(tmp_path)[PREFIX + "add_space_prefix"] is expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            sentencepiece_bytes(VOCABULARY, model_type=3),
            "is a SentencePiece model of type word, expected bpe or unigram",
        ),
        (sentencepiece_bytes(VOCABULARY, normalizer=b""), "removes extra spaces"),
        (sentencepiece_bytes(VOCABULARY, normalizer=b"\x20\x00\x28\x00"), "does not escape spaces"),
        (sentencepiece_bytes(VOCABULARY, normalizer=b"\x12\x02ab\x20\x00"), "a character map"),
        (sentencepiece_bytes([]), "has no pieces"),
        (sentencepiece_bytes([("", 0.0, 1)]), "piece 0 has no text"),
        (sentencepiece_bytes([("a", 0.0, 9)]), "is of type 9, expected 1 to 6"),
        (sentencepiece_bytes([("a", float("nan"), 1)]), "has the score nan"),
        (sentencepiece_bytes(VOCABULARY[:200]), "has no token <0xC5>; expected one for each byte"),
        (sentencepiece_bytes([*VOCABULARY, ("in", 0.0, 1)]), f"token 'in' has both id 259 and id {END}"),
        (sentencepiece_bytes(VOCABULARY)[:-1], "field 3 has 2 bytes, but only 1 are left"),
        (b"IQ== 0\nIg== 1\n", "has no pieces, expected a SentencePiece model"),
        (b"\x0a\x05\x0a\x03\xff\xfe\xfd", "field 1 is not UTF-8 at byte 0"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"\x08\x01", "as a SentencePiece model: field 1 is a varint, expected bytes"),
        (b"\x0a" + b"\xff" * 11, "has more than 10 bytes"),
        (b"\x0a\x80", "ends in the middle of the number at byte 1"),
    ],
)
def test_broken_or_unsuitable_model_files_are_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    write_model(tmp_path, content)
    with pytest.raises(FormatError, match=message):
        metadata_of(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_model_or_an_error(content: bytes) -> None:
    try:
        found = [piece.text for piece in parse_sentencepiece(content, "tokenizer.model").pieces]
    except LbrxError as error:
        found = str(error).split(":")[:1]
    assert found


def test_a_model_that_was_cut_off_is_an_error() -> None:
    content = sentencepiece_bytes(VOCABULARY[:20])
    assert len(parse_sentencepiece(content, "tokenizer.model").pieces) == 20
    for length in range(len(content)):
        with pytest.raises(FormatError, match=r"^tokenizer\.model: "):
            parse_sentencepiece(content[:length], "tokenizer.model")
