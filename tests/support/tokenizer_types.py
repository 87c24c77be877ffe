"""Small tokenizers of every type except plain BPE, as the files of their models have them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.trainers import BpeTrainer

from support import GOLDEN
from support.tokenizer_fixtures import CORPUS, FAMILIES, sentencepiece_document, sentencepiece_vocabulary

_BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_BERT_SETTINGS = {
    f"{role}_token": text for role, text in zip(("pad", "unk", "cls", "sep", "mask"), _BERT_SPECIAL, strict=True)
}


def _wordpiece() -> Tokenizer:
    """Words, and pieces of words, of the corpus in a fixed order. Training would break ties at random."""
    normalizer, rule = BertNormalizer(), BertPreTokenizer()
    words = [word for line in CORPUS for word, _ in rule.pre_tokenize_str(normalizer.normalize_str(line))]
    pieces = [*words[::2], *(word[:3] for word in words), *(letter for word in words for letter in word)]
    inside = [*(word[3:] for word in words[::3]), *(word[-2:] for word in words), *(word[1:2] for word in words)]
    inside += [letter for word in words[::2] for letter in word]
    marked = [f"##{piece}" for piece in inside if piece]
    texts = dict.fromkeys([*_BERT_SPECIAL, *pieces, *marked])
    tokenizer = Tokenizer(WordPiece({text: number for number, text in enumerate(texts)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rule
    return tokenizer


def write_wordpiece(directory: Path) -> None:
    trained = _wordpiece()
    trained.add_special_tokens(_BERT_SPECIAL)
    document: dict[str, Any] = json.loads(trained.to_str())
    cls, sep = ({"SpecialToken": {"id": text, "type_id": 0}} for text in ("[CLS]", "[SEP]"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [cls, first, sep],
        "pair": [cls, first, sep, second, sep],
        "special_tokens": {
            text: {"id": text, "ids": [number], "tokens": [text]} for text, number in (("[CLS]", 2), ("[SEP]", 3))
        },
    }
    _write(directory, {"tokenizer.json": document, "tokenizer_config.json": _BERT_SETTINGS})


def write_vocabulary_lines(directory: Path) -> None:
    vocabulary = sorted(_wordpiece().get_vocab().items(), key=lambda item: item[1])
    (directory / "vocab.txt").write_text("".join(f"{text}\n" for text, _ in vocabulary), encoding="utf-8")
    _write(directory, {"tokenizer_config.json": {"do_lower_case": True}})


def write_unigram(directory: Path) -> None:
    (directory / "spiece.model").write_bytes((GOLDEN / "tokenizers" / "unigram.model").read_bytes())
    _write(directory, {"tokenizer_config.json": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}})


def write_rwkv(directory: Path) -> None:
    words = sorted({word for line in CORPUS for word in line.split()}, key=lambda word: (len(word), word))
    tokens = [bytes([value]) for value in range(256)]
    for word in words:
        tokens += [each for each in (word.encode(), b" " + word.encode()) if len(each) > 1]
    tokens += [b"\n\n", b"    ", "中".encode()[:2], b"'\"\\"]
    lines = []
    for number, token in enumerate(dict.fromkeys(tokens), 1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{number} {literal} {len(token)}\n")
    (directory / "rwkv_vocab_v20230424.txt").write_text("".join(lines), encoding="utf-8")


def ranked_tokens(family: str, size: int = 700) -> list[bytes]:
    """Tokens in the order of their ranks: every byte, then what training joins."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Tokenizer.from_str(
        json.dumps({"pre_tokenizer": FAMILIES[family][1], "model": {"type": "BPE", "vocab": {}, "merges": []}})
    ).pre_tokenizer
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    joined = [bytes(map(_byte_of, text)) for text, _ in by_id if len(text) > 1]
    return [*(bytes([value]) for value in range(256)), *joined]


def _byte_of(letter: str) -> int:
    """The byte for a letter of a byte-level tokenizer: bytes without a visible letter have those from U+0100 on."""
    hidden = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    return hidden[ord(letter) - 0x100] if ord(letter) >= 0x100 else ord(letter)


def write_qwen(directory: Path) -> None:
    lines = [f"{b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranked_tokens("qwen2"))]
    (directory / "qwen.tiktoken").write_text("".join(lines))


def write_tekken(directory: Path) -> None:
    tokens = ranked_tokens("tekken")
    vocabulary = [
        {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)
    ]
    config = {"pattern": "", "default_vocab_size": 20 + 650, "default_num_special_tokens": 20, "version": "v3"}
    _write(directory, {"tekken.json": {"config": config, "vocab": vocabulary}})


def write_gemma4(directory: Path) -> None:
    document = sentencepiece_document(sentencepiece_vocabulary(), prefix=False)
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write(directory, {"tokenizer.json": document, "tokenizer_config.json": settings})


def _write(directory: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


WRITERS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "wordpiece": (write_wordpiece, {}),
    "vocab.txt": (write_vocabulary_lines, {}),
    "unigram": (write_unigram, {}),
    "rwkv": (write_rwkv, {}),
    "qwen.tiktoken": (write_qwen, {}),
    "tekken.json": (write_tekken, {}),
    "gemma4": (write_gemma4, {"model_type": "gemma4"}),
}
