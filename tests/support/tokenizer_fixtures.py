"""Small tokenizers of the kinds that models have, trained here, and texts that are hard to cut."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.trainers import BpeTrainer

SPACE = "▁"
UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind; it's theirs, they've said, and I'll agree.",
    "WE'LL SEE WHAT THEY'RE DOING. IT'S 1999, 2024 and 31415926535 in 3.14 or 2,718,281 ways!",
    "def merge(models, weight=0.5):\n    total = sum(w * m for w, m in zip(weight, models))\n\treturn total / 2\n\n",
    "for (int i = 0; i < n; ++i) { sum += x[i] * y[i]; } // <b>bold</b> == != <= >= && || https://example.org/a?b=c",
    "Größe, Übung, façade, naïve, coöperate, señor, Ångström, œuvre, Žižek, ÉCOLE, ŁÓDŹ, camelCase, HTMLParser, iPhone",
    "Съешь же ещё этих мягких французских булок. Η γρήγορη αλεπού. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดี",
    "我想在这里工作。今天天气很好，我们去公园吧！日本語のテキストです。カタカナ、ひらがな。안녕하세요 세계",
    "Emoji 😀😃🚀👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ and signs € £ ¥ © ® ™ § ¶ … — – « » “quoted” ‘single’ • ½ ⅓ Ⅷ ² ³ ٣٤٥",
    "   leading spaces, trailing spaces   \n\n\nblank lines\r\nwindows lines\r\n\ttabs\t\tand  double  spaces    four",
]

# As tokenizer.json files of these families write them: (normalizer, pre_tokenizer, ignore_merges, name).
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r""" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_QWEN_35 = _WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+") % ""
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_BYTES_AND_WORDS = {**_BYTES, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
_NFC = {"type": "NFC"}


def _sequence(*steps: Mapping[str, Any] | str) -> dict[str, Any]:
    """Steps of a pre-tokenizer, patterns given as texts."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    written = [{**split, "pattern": {"Regex": step}} if isinstance(step, str) else step for step in steps]
    return {"type": "Sequence", "pretokenizers": written}


Family = tuple[Mapping[str, Any] | None, Mapping[str, Any], bool]
FAMILIES: dict[str, Family] = {
    "llama-bpe": (None, _sequence(_WORDS % "{1,3}", _BYTES), True),
    "dbrx": (None, _sequence(_WORDS % "{1,3}", _BYTES), False),
    "qwen2": (_NFC, _sequence(_WORDS % "", _BYTES), False),
    "deepseek-r1-qwen": ({"type": "Sequence", "normalizers": []}, _sequence(_WORDS % "", _BYTES), False),
    "qwen35": (_NFC, _sequence(_QWEN_35, _BYTES), False),
    "tekken": (None, _sequence(_TEKKEN, _BYTES), True),
    "gpt-4o": (None, _sequence(_GPT_4O, _BYTES), False),
    "gpt-2": (None, _BYTES_AND_WORDS, False),
    "olmo": (_NFC, _BYTES_AND_WORDS, False),
    "starcoder": (None, _sequence(_DIGITS, _BYTES_AND_WORDS), False),
    "command-r": (_NFC, _sequence(_DIGITS, _BYTES_AND_WORDS), False),
    "deepseek-v3": (None, _sequence(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK, _BYTES), False),
    "deepseek-coder": (
        None,
        _sequence(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGITS, _BYTES),
        False,
    ),
}


def byte_level_document(family: str, *, size: int = 700) -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE, trained with a family's way of cutting."""
    normalizer, rule, ignore_merges = FAMILIES[family]
    start = {"normalizer": normalizer, "pre_tokenizer": rule, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    tokenizer = Tokenizer.from_str(json.dumps(start))
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = ignore_merges
    document["decoder"] = _BYTES
    return document


def sentencepiece_vocabulary(*, size: int = 900) -> list[tuple[str, float, int]]:
    """Texts, scores and types of a SentencePiece BPE: specials, bytes, joined pieces, then single characters."""
    trainee = Tokenizer(BPE())
    trainee.pre_tokenizer = Metaspace()
    trainee.train_from_iterator(CORPUS, BpeTrainer(vocab_size=size, show_progress=False))
    by_id = sorted(trainee.get_vocab().items(), key=lambda item: item[1])
    texts = [text for text, _ in by_id if len(text) > 1] + [text for text, _ in by_id if len(text) == 1]
    specials = [(UNKNOWN, 0.0, 2), (BOS, 0.0, 3), (EOS, 0.0, 3)]
    byte_pieces = [(f"<0x{value:02X}>", 0.0, 6) for value in range(256)]
    return [*specials, *byte_pieces, *((text, -float(place), 1) for place, text in enumerate(texts))]


def gemma_vocabulary() -> list[tuple[str, float, int]]:
    """The same with runs of spaces and line ends as user-defined pieces, as Gemma's tokenizers have."""
    runs = [*("\n" * count for count in range(1, 5)), *(SPACE * count for count in range(2, 9))]
    rows = sentencepiece_vocabulary()
    return [*rows[:259], *((run, 0.0, 4) for run in runs), *(row for row in rows[259:] if row[0] not in runs)]


def sentencepiece_document(vocabulary: Sequence[tuple[str, float, int]], *, prefix: bool = True) -> dict[str, Any]:
    """The tokenizer.json that transformers makes of such a vocabulary: a merge for every pair that makes a piece."""
    ids = {text: number for number, (text, _, _) in enumerate(vocabulary)}
    merges = [
        [text[:cut], text[cut:]]
        for text, _, piece_type in vocabulary
        for cut in range(1, len(text))
        if piece_type in (1, 4) and text[:cut] in ids and text[cut:] in ids
    ]
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend: list[Any] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    settings = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    unescape = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders = [unescape, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": ids[text], "content": text, "special": piece_type != 4, **settings}
            for text, _, piece_type in vocabulary
            if piece_type in (2, 3, 4)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, escape]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [1], "tokens": [BOS]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": UNKNOWN,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": merges,
        },
    }


def sentencepiece_bytes(
    vocabulary: Sequence[tuple[str, float, int]], *, model_type: int = 2, normalizer: bytes = b"\x20\x00"
) -> bytes:
    """A tokenizer.model with these pieces; the normalizer that is not told otherwise keeps extra spaces."""
    content = b"".join(_field(1, _piece(*row)) for row in vocabulary)
    return content + _field(2, bytes([3 << 3, model_type])) + _field(3, normalizer)


def _piece(text: str, score: float, piece_type: int) -> bytes:
    return _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, piece_type])


def _field(number: int, value: bytes) -> bytes:
    length, size = b"", len(value)
    while size >= 0x80:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def write_tokenizer(
    directory: Path, document: Mapping[str, Any] | None, settings: Mapping[str, Any] | None = None
) -> Path:
    """A directory with these files."""
    directory.mkdir(exist_ok=True)
    if document is not None:
        (directory / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    if settings is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return directory


_TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    " \n \n  \n",
    "a",
    " a",
    "a ",
    "Hello",
    "Hello world",
    " Hello  world ",
    "Hello, y'all! How're you?",
    "I'VE 'told he'S there, 'RE you sure? We'Ve a'lL",
    "'''''' \"\"\" ``` ...... !!!!??",
    "3 33 333 3333 33333 333333 3333333 3.3 3..3 3,333",
    "x1y22z333",
    "٣٤٥ Ⅷ ½ ² 一二三 12三4",
    "2024-11-16T01:02:03Z",
    "def f(x):\n    return x**2  # comment\n\n\nclass A:\n\tpass\n",
    "a\r\nb\r\n\r\nc",
    "tab\tseparated\t\tvalues\n",
    "https://example.org/path?q=1&r=%20#top",
    "user@example.com",
    "C:\\dir\\file.txt",
    "/usr/bin/env\n/x",
    "$100 €50 £3",
    "<b>bold</b> & </s x> [INST] <<SYS>>",
    "{\"key\": [1, 2.5e-3, null], 'k': true}",
    "a+b=c; x<=y; p||q; ~z^2 `code`",
    "camelCase HTMLParser iPhone XMLHttpRequest ABCdef",
    "snake_case __init__ kebab-case",
    "naïve façade Größe señor",
    "ÉCOLE ŁÓDŹ ÜBER ǅungla ʰa",
    "e\u0301cole na\u0308ive a\u0301\u0302\u0303",
    "Съешь ещё этих БУЛОК",
    "Ταχεία αλεπού",
    "我想在apple工作1314151天～",
    "日本語のテキスト、カタカナ。",
    "안녕하세요 세계",
    "กำลังทดสอบ ภาษาไทย",
    "नमस्ते दुनिया।",
    "שלום עולם!",
    "مرحبا بالعالم، كيف",
    "😀",
    "🚀 (normal) 😶‍🌫️ ✅",
    "👩‍👩‍👧‍👦 🇩🇪 ❤️ 👍🏽",
    "a\u200bb\u200dc\ufeffd",
    "nbsp\u00a0here \u3000ideographic",
    "… — – « » “quoted” ‘single’ • §",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓂀",
    "\x00\x01\x07\x7f",
    "▁ ▁▁ literal",
    "Ġ Ċ literal",
    "<0x0A> literal",
    "the the the the",
    "    four\n        eight",
    "end with spaces    ",
    "!\n\n?\n",
    "word\n",
    "\nword",
    "word \n word",
    "' s 't",
]


def hard_texts(specials: Sequence[str] = ()) -> list[str]:
    """Two hundred texts or more: single ones, each with another, sentences of the corpus, and special tokens."""
    pairs = [first + second for first, second in zip(_TEXTS, _TEXTS[7:], strict=False)]
    spaced = [f"{first} {second}" for first, second in zip(_TEXTS, _TEXTS[3:], strict=False)]
    lines = [f"{first}\n{second}" for first, second in zip(_TEXTS, _TEXTS[13:], strict=False)]
    listed = [f"{second}, {first}" for first, second in zip(_TEXTS, _TEXTS[21:], strict=False)]
    forms = ("{0}", "a{0}b", " {0} x", "{0}{0}\n", "é{0}1 ")
    with_specials = [form.format(token) for token in specials for form in forms]
    return [*_TEXTS, *pairs, *spaced, *lines, *listed, *CORPUS, *with_specials]
