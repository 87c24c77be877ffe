"""Byte-level BPE from files of byte strings with ranks: ``qwen.tiktoken`` and ``tekken.json``.

These files have no merges: two neighbors are joined if their bytes are a token, the lowest rank first. GGUF lists the
pairs that this joins.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.files.formats.strict_json import read_json
from lbrx.models.tokenizers.records import MAX_TOKENS, TokenTable, TokenType

QWEN_NAME, TEKKEN_NAME = "qwen.tiktoken", "tekken.json"
MAX_TOKEN_BYTES = 1 << 8  # joining takes quadratic time
_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_TEKKEN_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


@dataclass(frozen=True, eq=False)
class RankedTokens:
    """Rows and merges of such a file, the ids of its special tokens, and its splitting rule."""

    table: TokenTable
    merges: list[str]
    special_ids: dict[str, int]
    pre: str


@cache
def byte_letters() -> tuple[str, ...]:
    """Return the letter for each byte in byte-level tokenizers.

    Printable bytes of Latin-1 stay themselves; the others become the letters from U+0100 on, in order.

    >>> byte_letters()[ord(" ")], byte_letters()[ord("a")]
    ('Ġ', 'a')
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return tuple(chr(value) if value in printable else chr(next(others)) for value in range(256))


def letters_of(token: bytes) -> str:
    """Return the text of a token of a byte-level tokenizer.

    >>> letters_of(b" a")
    'Ġa'
    """
    letters = byte_letters()
    return "".join(letters[value] for value in token)


def read_qwen(path: Path, size: int | None) -> RankedTokens:
    """Read a ``qwen.tiktoken``: lines with a token in Base64 and its rank."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            token, _, rank = line.strip().partition(b" ")
            _add(ranks, token, rank.decode("ascii", "replace"), f"{path}: line {number}")
    count = len(ranks)
    table = TokenTable.of_size(size or count + len(_QWEN_SPECIAL), str(path))
    _put(table, ranks, 0)
    for number, text in enumerate(_QWEN_SPECIAL):
        if count + number < len(table):
            table.put(count + number, text, TokenType.CONTROL)
    ends = {"bos": count, "eos": count, "unk": count} if count < len(table) else {}
    return RankedTokens(table, _joined_pairs(ranks, str(path)), ends, "qwen2")


def read_tekken(path: Path, size: int | None) -> RankedTokens:
    """Read a ``tekken.json``: special tokens first, then tokens with ranks."""
    content = read_json(path)
    config = content.get("config")
    listed = content.get("vocab")
    if not isinstance(config, Mapping) or not isinstance(listed, list):
        raise FormatError(f"{path}: has no 'config' or no 'vocab', expected a Tekken vocabulary")
    total, specials = (_count(config, name, str(path)) for name in ("default_vocab_size", "default_num_special_tokens"))
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(listed[: total - specials]):
        where = f"{path}: entry {number} of 'vocab'"
        if not isinstance(entry, Mapping):
            raise FormatError(f"{where} is {entry!r:.80}, expected a record")
        _add(ranks, str(entry.get("token_bytes")).encode(), str(entry.get("rank")), where)
    table = TokenTable.of_size(size or specials + len(ranks), str(path))
    ids = _put_tekken_special(table, content.get("special_tokens"), specials, str(path))
    _put(table, ranks, specials)
    known = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    special_ids = {role: ids[text] for role, text in known.items() if text in ids}
    return RankedTokens(table, _all_pairs(ranks), special_ids, "tekken")


def _count(config: Mapping[str, Any], name: str, where: str) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise FormatError(f"{where}: {name} is {value!r:.60}, expected a number of tokens")
    return value


def _put_tekken_special(table: TokenTable, listed: Any, count: int, where: str) -> dict[str, int]:
    """Set the special tokens; old files do not list them."""
    ids: dict[str, int] = {}
    if listed is None:
        ids = {text: number for number, text in enumerate(_TEKKEN_SPECIAL)}
    elif isinstance(listed, list):
        for entry in listed:
            if not isinstance(entry, Mapping) or type(entry.get("rank")) is not int:
                raise FormatError(f"{where}: the special token {entry!r:.80} has no rank")
            ids[str(entry.get("token_str"))] = entry["rank"]
    else:
        raise FormatError(f"{where}: 'special_tokens' is {listed!r:.80}, expected a list")
    by_id = {number: text for text, number in ids.items() if number < count}
    for number in range(min(count, len(table))):
        table.put(number, by_id.get(number, f"<SPECIAL_{number}>"), TokenType.CONTROL)
    return ids


def _add(ranks: dict[bytes, int], token: bytes, rank: str, where: str) -> None:
    try:
        decoded = b64decode(token, validate=True)
    except (Base64Error, ValueError) as error:
        raise FormatError(f"{where}: {token!r:.80} is not Base64") from error
    if not 0 < len(decoded) <= MAX_TOKEN_BYTES:
        raise FormatError(f"{where}: has a token of {len(decoded)} bytes, expected 1 to {MAX_TOKEN_BYTES}")
    if rank != str(len(ranks)):
        raise FormatError(f"{where}: has rank {rank:.20}, expected {len(ranks)}: ranks without a gap")
    if ranks.setdefault(decoded, len(ranks)) != int(rank):
        raise FormatError(f"{where}: has the bytes of token {ranks[decoded]} again")


def _put(table: TokenTable, ranks: Mapping[bytes, int], first: int) -> None:
    for token, rank in ranks.items():
        table.put(first + rank, letters_of(token), TokenType.NORMAL)


def _joined_pairs(ranks: Mapping[bytes, int], where: str) -> list[str]:
    """Return, for each token, the two tokens that are joined last when it is made from its bytes."""
    merges = []
    for token, rank in ranks.items():
        if len(token) > 1:
            parts = _parts(ranks, token, rank)
            if len(parts) != 2:
                raise FormatError(f"{where}: token {rank} ({token!r:.80}) is not made of two tokens with lower ranks")
            merges.append(" ".join(map(letters_of, parts)))
    return merges


def _parts(ranks: Mapping[bytes, int], token: bytes, below: int) -> Sequence[bytes]:
    """Return the parts of a token after joining everything with a lower rank."""
    parts = [token[number : number + 1] for number in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, below) for left, right in pairwise(parts)]
        lowest = min(pairs)
        if lowest >= below:
            break
        place = pairs.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _all_pairs(ranks: Mapping[bytes, int]) -> list[str]:
    """Return every pair of tokens that makes a token, in the order of ranks."""
    merges = []
    for token in ranks:
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [pair for pair in cuts if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [f"{letters_of(left)} {letters_of(right)}" for left, right in known]
    return merges
