"""Byte-level tokenizers to GGUF and back: every known way of cutting a text is recognised and made again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from lbrx.errors import FormatError
from lbrx.models.tokenizers.gguf_keys import RULES_KEY
from lbrx.models.tokenizers.known_tokenizers import _NAMES, PROBE, name_of_ids
from lbrx.models.tokenizers.pretokenizers import PRE_TOKENIZERS
from lbrx.models.tokenizers.text import open_tokenizer, tokenizer_of_metadata
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support.tokenizer_fixtures import FAMILIES, byte_level_document, hard_texts, write_tokenizer

PREFIX = "tokenizer.ggml."
SETTINGS = {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|end_of_text|>"}, "add_bos_token": True}
SPECIALS = ("<|begin_of_text|>", "<|im_end|>", "<tool_call>")


def metadata_of(directory: Path, config: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    typed = gguf_tokenizer_metadata(directory, config or {}, **options)
    return {key: value.value for key, value in typed.items()}


def made_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files(metadata)[0].read().decode())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_recognised_and_its_files_made_from_gguf_cut_alike(family: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_document(family), SETTINGS)
    original = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    metadata = metadata_of(tmp_path)
    assert metadata[PREFIX + "model"] == "gpt2"
    assert metadata[PREFIX + "pre"] == family
    made = made_tokenizer(metadata)
    for text in hard_texts(SPECIALS):
        ids = original.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special_tokens=False).ids == ids, text
        assert made.decode(ids) == original.decode(ids), text


def test_every_name_has_one_row() -> None:
    names = [row.name for row in PRE_TOKENIZERS]
    assert len(names) == len(set(names)) >= 90
    assert set(names) >= set(FAMILIES)


@pytest.mark.parametrize(("cleans", "name"), [(None, "starcoder"), (True, "starcoder"), (False, "smollm")])
def test_cleaned_spaces_decide_between_names_with_equal_rules(cleans: bool | None, name: str, tmp_path: Path) -> None:
    settings = SETTINGS if cleans is None else {**SETTINGS, "clean_up_tokenization_spaces": cleans}
    write_tokenizer(tmp_path, byte_level_document("starcoder"), settings)
    assert metadata_of(tmp_path)[PREFIX + "pre"] == name


def test_ids_of_known_tokenizers_have_names() -> None:
    vocabulary = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    ids = tokenizer.encode(PROBE).ids
    assert name_of_ids(ids) is None
    digest = hashlib.sha256(str(ids).encode()).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_NAMES, digest, "refact")
        assert name_of_ids(ids) == "refact"


def test_rows_have_types_padding_and_special_ids(tmp_path: Path) -> None:
    document = byte_level_document("llama-bpe")
    write_tokenizer(tmp_path, document, SETTINGS)
    metadata = metadata_of(tmp_path, {"vocab_size": 707, "eos_token_id": [703, 5], "pad_token_id": -1})
    tokens, types = metadata[PREFIX + "tokens"], metadata[PREFIX + "token_type"]
    assert len(tokens) == len(types) == 707
    assert tokens[699:] == [
        next(text for text, number in document["model"]["vocab"].items() if number == 699),
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<tool_call>",
        "[PAD704]",
        "[PAD705]",
        "[PAD706]",
    ]
    assert types[699:].tolist() == [1, 3, 3, 3, 4, 5, 5, 5]
    assert [metadata[PREFIX + name] for name in ("bos_token_id", "eos_token_id")] == [700, 701]
    assert not {PREFIX + "padding_token_id", PREFIX + "eot_token_id"} & metadata.keys()
    assert open_tokenizer(tmp_path).stop_ids == (701, 702)
    assert metadata[PREFIX + "add_bos_token"] is True
    assert metadata[PREFIX + "add_eos_token"] is False
    assert metadata[PREFIX + "merges"][0] == " ".join(document["model"]["merges"][0])


def test_conversion_there_and_back_and_there_is_stable(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "a", byte_level_document("qwen2"), SETTINGS)
    first = gguf_tokenizer_metadata(tmp_path / "a", {"vocab_size": 720})
    (tmp_path / "b").mkdir()
    for file in tokenizer_files(first):
        (tmp_path / "b" / file.name).write_bytes(file.read())
    second = gguf_tokenizer_metadata(tmp_path / "b", {"vocab_size": 720})
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert value.type == second[key].type
        assert list(value.value) == list(second[key].value) if "array" in value.type else value == second[key], key


def test_added_tokens_without_a_row_are_left_out_and_pieces_without_one_are_an_error(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_document("gpt-2"))
    assert metadata_of(tmp_path, {"vocab_size": 701})[PREFIX + "tokens"][-1] == "<|begin_of_text|>"
    with pytest.raises(FormatError, match=r"has id \d+, but the embedding has 650 rows"):
        metadata_of(tmp_path, {"vocab_size": 650})


def test_the_same_rule_in_other_words_is_recognised(tmp_path: Path) -> None:
    document = byte_level_document("llama-bpe")
    pattern = document["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = pattern["Regex"].replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)")
    write_tokenizer(tmp_path, document)
    assert metadata_of(tmp_path)[PREFIX + "pre"] == "llama-bpe"


def test_an_unknown_rule_is_kept_with_a_warning_and_an_argument_names_it(tmp_path: Path) -> None:
    document = byte_level_document("llama-bpe")
    pattern = document["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = pattern["Regex"].replace("{1,3}", "{1,4}")
    write_tokenizer(tmp_path, document)
    with pytest.warns(UserWarning, match=r"llama\.cpp has no pre-tokenizer that splits texts like this one"):
        metadata = metadata_of(tmp_path)
    assert metadata[PREFIX + "pre"] == "default"
    original, made = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), made_tokenizer(metadata)
    for text in hard_texts(SPECIALS):
        ids = original.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer_of_metadata(metadata).encode(text, add_special=False) == ids, text
    assert metadata_of(tmp_path, pre="llama-bpe")[PREFIX + "pre"] == "llama-bpe"


def test_another_normalization_than_that_of_the_name_is_kept(tmp_path: Path) -> None:
    document = byte_level_document("llama-bpe")
    document["normalizer"] = {"type": "NFC"}
    write_tokenizer(tmp_path, document)
    with pytest.warns(UserWarning, match="normalizes texts to NFC, unlike other tokenizers with the pre-tokenizer"):
        metadata = metadata_of(tmp_path)
    assert metadata[PREFIX + "pre"] == "llama-bpe"
    assert made_tokenizer(metadata).encode("e\u0301").ids == made_tokenizer(metadata).encode("é").ids


@pytest.mark.parametrize("rules", ["", "[]", 5, "x" * (1 << 21), '{"pre_tokenizer": {"type": "Nothing"}}'])
def test_broken_kept_rules_are_an_error(rules: Any, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_document("gpt-2"))
    with pytest.raises(FormatError):
        tokenizer_of_metadata({**metadata_of(tmp_path), RULES_KEY: rules})


def test_merges_that_do_not_reach_a_token_matter_where_the_name_means_another_rule(tmp_path: Path) -> None:
    document = byte_level_document("tekken")
    document["model"]["ignore_merges"] = False
    write_tokenizer(tmp_path, document)
    assert metadata_of(tmp_path)[PREFIX + "pre"] == "tekken"  # the merges make every token
    document["model"]["merges"].pop()
    write_tokenizer(tmp_path, document)
    with pytest.raises(FormatError, match=r"pre-tokenizer 'tekken' requires True, and the merges do not produce token"):
        metadata_of(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "the normalizer Lowercase changes texts"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, r"does not split the text into bytes \(ByteLevel\)"),
        ({"pre_tokenizer": None}, "does not split the text into words"),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}},
            "is a WordLevel tokenizer, expected BPE",
        ),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, "the tokenizers library can read"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "have the same id 0"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}},
            "has end_of_word_suffix '</w>'",
        ),
    ],
)
def test_what_gguf_cannot_say_is_an_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, {**byte_level_document("llama-bpe"), "added_tokens": [], **change})
    with pytest.raises(FormatError, match=message):
        metadata_of(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"model": {"type": "BPE"}}', b"\xff\xfe", b"{}"])
def test_files_that_are_no_tokenizer_are_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"tokenizer\.json: "):
        metadata_of(tmp_path)
