"""The rules by which byte-level tokenizers split a text before merging, by the names of ``tokenizer.ggml.pre``.

A row is a list of patterns: each splits the pieces of the previous one into matches and the text between them. The
patterns are those of the models' own tokenizer.json files; llama.cpp knows the names and has the same rules built in.
"""

from __future__ import annotations

from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, nearest

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LINES = r"[^\n]+|[\n]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"


def _plain_words(digits: str, *, spaces: str = _SPACES) -> str:
    return rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|{digits}|{_PUNCTUATION}|{spaces}"


def _cased_words(digits: str, after_word: str, *, upper: str = _UPPER, lower: str = _LOWER, ends: str = "/") -> str:
    """Return a pattern in which words end between lower case and upper case."""
    lower_end = f"{_BEFORE_WORD}{upper}*{lower}+{after_word}"
    upper_start = f"{_BEFORE_WORD}{upper}+{lower}*{after_word}"
    return rf"{lower_end}|{upper_start}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{ends}]*|{_SPACES}"


def _without_han(letters: str) -> str:
    return rf"{letters[:-1]}&&[^\p{{Han}}]]"


_SIGN_AND_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
_DEEPSEEK_WORDS = rf"{_SIGN_AND_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK_WORDS = rf"{_SIGN_AND_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_BLOOM_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DIGITS_FROM_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
_CASED_LETTERS = (
    "A-Za-z\u00b5À-ÖØ-öø-ƺƼ-ƿ\u01c4-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-\u03f5Ϸ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    "ꭰ-ꮿ\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_LONG_SPACES = (
    "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"
)
_ASIAN_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A splitting rule, and the other settings that its name implies in llama.cpp.

    ``ignores_merges``: a piece that is a token is used directly. ``adds_bos``: the default if the file has no key.
    ``nfc``: the models with this name normalize to NFC first, which llama.cpp leaves to the caller.
    ``cleans_spaces``: llama.cpp removes spaces before punctuation from decoded text. ``lines``: the tokens are text
    with ``▁`` for spaces, as in SentencePiece, instead of bytes.
    """

    name: str
    patterns: tuple[str, ...]
    nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False
    cleans_spaces: bool = True
    lines: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the rule in the form of tokenizer.json."""
        cuts = [as_split(pattern) for pattern in self.patterns]
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*cuts, to_bytes]}


def as_split(pattern: str) -> dict[str, Any]:
    """Return a split by a pattern in the form of tokenizer.json."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _rows(*patterns: str, **names: str) -> list[PreTokenizer]:
    """Return rows with the same patterns; ``names`` has the names of rows by their settings: N for ``nfc``, I for
    ``ignores_merges``, B for ``adds_bos``, C for ``cleans_spaces``, L for ``lines``.
    """
    return [
        PreTokenizer(
            name,
            patterns,
            nfc="N" in settings,
            ignores_merges="I" in settings,
            adds_bos="B" in settings,
            cleans_spaces="C" in settings,
            lines="L" in settings,
        )
        for settings, listed in names.items()
        for name in listed.split()
    ]


_WORDS_AND_DIGITS = _plain_words(r"\p{N}")
_WORDS_AND_TRIPLES = _plain_words(r"\p{N}{1,3}")
_GPT_4O = _cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")

PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    *_rows(
        _WORDS_AND_TRIPLES,
        IBC="llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        C="dbrx smaug-bpe chatglm-bpe",
        IC="glm4 glm5",
    ),
    *_rows(
        _WORDS_AND_DIGITS,
        N="qwen2 f2llmv2",
        _="deepseek-r1-qwen kormo hunyuan solar-open grok-2",
        C="stablelm2",
        NC="megrez",
    ),
    *_rows(
        rf"{_CONTRACTIONS}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        N="qwen35",
    ),
    *_rows(_cased_words(r"\p{N}", ""), IB="tekken"),
    *_rows(_GPT_4O, _="gpt-4o llama4 kanana2 talkie minimax-m2", I="granite-embed-multi-97m"),
    *_rows(
        GPT2,
        C="gpt-2 phi-2 jais exaone4 a.x-4.0 gigachat mellum jina-es jina-de jina-v2-es jina-v2-de jina-v1-en "
        "jina-v2-code roberta-bpe",
        _="trillion granite-docling",
        NC="olmo mpt modern-bert",
    ),
    *_rows(r"\p{N}", GPT2, C="starcoder refact codeshell exaone minerva-7b mellum2", _="smollm", N="command-r"),
    *_rows(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]", C="falcon"),
    *_rows(r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_WORDS, _="deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    *_rows(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}", _="deepseek-coder"),
    *_rows(
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
        _="deepseek-llm",
    ),
    *_rows(r"\p{N}{1,3}", _HAN_AND_KANA, _SPARK_WORDS, r"\p{N}", _="spark2_5"),
    *_rows(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_AND_KANA,
        _cased_words(r"\p{N}", f"{_CONTRACTIONS}?"),
        I="youtu",
    ),
    *_rows(_plain_words(r"\p{N}{1,3}", spaces=r"\s*[\r\n]+" + _LONG_SPACES), C="jais-2"),
    *_rows(_BLOOM_WORDS, C="bloom gpt3-finnish", _="poro-chat"),
    *_rows(_BLOOM_WORDS, r"\p{N}", _="viking"),
    *_rows(
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
        B="chameleon",
    ),
    *_rows(_DIGITS_FROM_RIGHT, _GPT_4O, _="tiny_aya cohere2moe"),
    *_rows(
        r"[\p{Han}]+|"
        + _cased_words(
            r"\p{N}{1,3}",
            f"{_CONTRACTIONS}?",
            upper=_without_han(_UPPER),
            lower=_without_han(_LOWER),
            ends="",
        ),
        _="kimi-k2",
    ),
    *_rows(r"\p{N}+", r"(?=(\d{3})+(?!\d))", _="superbpe"),
    *_rows(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+",
        _="bailingmoe bailingmoe2 llada-moe",
    ),
    *_rows(
        rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}", _="seed-coder"
    ),
    *_rows(rf"{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_PUNCTUATION}|{_SPACES}", _="ufakzeka"),
    *_rows(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _ASIAN_SCRIPTS, _DEEPSEEK_WORDS, _="afmoe"),
    *_rows(LINES, _WORDS_AND_DIGITS, _="laguna"),
    *_rows(
        rf"{_CONTRACTIONS}|{_BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        C="exaone-moe",
    ),
    *_rows(r"\p{N}{1,3}", _plain_words(r"\p{N}+"), IC="minicpm5"),
    *_rows(LINES, CL="gemma4 granite-embed-multi-311m", L="sarvam-moe"),
    *_rows(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]", C="default"),
)
_BY_NAME = {row.name: row for row in PRE_TOKENIZERS}


def pre_tokenizer_named(name: str, where: str) -> PreTokenizer:
    """Return the rule with this name; errors begin with ``where``.

    >>> pre_tokenizer_named("llama3", "a.gguf").ignores_merges
    True
    """
    pretokenizer = _BY_NAME.get(name)
    if pretokenizer is None:
        raise FormatError(
            f"{where}: the pre-tokenizer {name!r} is unknown{nearest(name, _BY_NAME)}; expected one of the "
            f"{len(_BY_NAME)} names that llama.cpp has"
        )
    return pretokenizer
