"""Changes of files that keep most of their structure, so that readers get past their first checks.

>>> from random import Random
>>> mutate("json", [b'{"a": 1}'], Random(3)) == mutate("json", [b'{"a": 1}'], Random(3))
True
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from fuzz.gguf_parts import GgufParts

MAX_BYTES = 1_000_000
_DEEP: Any = 1
for _ in range(70):
    _DEEP = [_DEEP]
_NUMBERS: list[Any] = [0, 1, -1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
_NUMBERS += [-(2**31), -(2**63), 10**9, 10**18, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e300, 1e308, float("inf"), -1.5]
_TEXTS = ["", " ", "x", "0", "\0", "a/b", "../x", "/", "\ud800", "\x1b[2J", "é" * 300, "{}", "a" * 70_000, "[/b]", "%s"]
_OTHERS: list[Any] = [None, True, False, [], {}, [[]], [{}], [None], {"": None}, {"a": {"a": []}}, [1, 2], ["a"], _DEEP]
HOSTILE: list[Any] = [*_NUMBERS, *_TEXTS, *_OTHERS]
_YAML = [
    "0x" + "f" * 300,
    "1e999",
    ".nan",
    ".inf",
    "~",
    "!!python/object:x",
    "*a",
    "&a",
    "[",
    "{",
    "- ",
    ": ",
    "|",
    "'",
]
_YAML += [
    "2001-01-01",
    "1:30",
    "0o7",
    "!!binary x",
    "<<",
    "? x",
    "[0, 1, 2]",
    "{a: 1}",
    "\t",
    "\ufeff",
    "---\n",
    "%YAML",
]


def mutate(format: str, seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the seeds with one to four changes; ``format`` selects the structure that is kept."""
    data = random.choice(seeds)
    change = _STRUCTURED.get(format, _change_bytes)
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        if random.random() < 0.2:
            change_once: Callable[[bytes, Random], bytes] = _change_bytes
        else:
            change_once = change
        with suppress(*_BROKEN):  # the data lost its structure before
            data = change_once(data, random)
    if random.random() < 0.03:
        other = random.choice(seeds)
        data = data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]
    return data[:MAX_BYTES]


_BROKEN = (
    ValueError,
    LookupError,
    TypeError,
    RuntimeError,
    OverflowError,
    zipfile.BadZipFile,
    OSError,
    EOFError,
    zlib.error,
    struct.error,
)


def _change_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    at = random.randrange(len(changed) + 1)
    end = min(len(changed), at + random.choice((1, 1, 2, 4, 8, 16, 100, 1000)))
    match random.randrange(7):
        case 0 if at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        case 1 if at < len(changed):
            changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        case 2:
            nbytes = random.choice((1, 2, 4, 8))
            number = random.choice([each for each in _NUMBERS if isinstance(each, int) and each < 2**65])
            changed[at : at + nbytes] = (number % 256**nbytes).to_bytes(nbytes, random.choice(("little", "big")))
        case 3:
            del changed[at:end]
        case 4:
            changed[at:at] = changed[at:end] * random.choice((1, 1, 2, 50))
        case 5:
            changed[at:at] = random.randbytes(random.choice((1, 2, 8, 64)))
        case _:
            del changed[at:]
    return bytes(changed)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _change_json(data: bytes, random: Random) -> bytes:
    return json.dumps(change_value(json.loads(data), random)).encode()


def change_value(value: Any, random: Random) -> Any:
    """A JSON value with one change somewhere inside."""
    holders = [value] if isinstance(value, dict | list) else []
    for holder in holders:  # grows while it is read
        inner = holder.values() if isinstance(holder, dict) else holder[:50]
        holders += [each for each in inner if isinstance(each, dict | list)]
        if len(holders) > 400:
            break
    holder = random.choice([each for each in holders if each] or [None])
    if holder is None:
        return random.choice(HOSTILE)
    key = random.choice(list(holder)[:2000]) if isinstance(holder, dict) else random.randrange(len(holder))
    match random.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(_TEXTS)] = holder[key]
        case 2 if isinstance(holder, list):
            holder[key:key] = holder[key : key + 1] * random.choice((1, 2, 500))
        case 3:
            other = random.choice(holders)
            holder[key] = json.loads(json.dumps(other))
        case 4 if isinstance(holder[key], int | float) and abs(holder[key]) < 2**60:
            holder[key] = random.choice(
                (-holder[key], holder[key] + 1, holder[key] - 1, holder[key] * 1000, str(holder[key]))
            )
        case 5 if isinstance(holder[key], str):
            text = holder[key]
            cut = random.randrange(len(text) + 1)
            holder[key] = random.choice(
                (text[:cut], text[cut:], text.upper(), [text], text * 20, text[:cut] + "\0" + text[cut:])
            )
        case _:
            holder[key] = random.choice(HOSTILE)
    return value


def _change_safetensors(data: bytes, random: Random) -> bytes:
    nbytes = int.from_bytes(data[:8], "little")
    header = _change_json(data[8 : 8 + nbytes], random)
    return len(header).to_bytes(8, "little") + header + data[8 + nbytes :]


# -- GGUF --------------------------------------------------------------------------------------------------------------


def _change_gguf(data: bytes, random: Random) -> bytes:
    parts = GgufParts.parse(data)
    if random.random() < 0.3:
        _change_infos(parts, random)
    else:
        _change_pairs(parts, random)
    return parts.to_bytes()


def _change_pairs(parts: GgufParts, random: Random) -> None:
    at = random.randrange(len(parts.pairs))
    key, type_id, value = parts.pairs[at]
    match random.randrange(6):
        case 0:
            del parts.pairs[at]
        case 1:
            parts.pairs.append((key, type_id, value))
        case 2 if isinstance(value, list) and value:
            place = random.randrange(len(value))
            match random.randrange(4):
                case 0:
                    del value[place:]
                case 1:
                    value[place] = value[random.randrange(len(value))]
                case 2:
                    value += value[place : place + 1] * random.choice((1, 100))
                case _:
                    value[place] = _like(value[place], random)
        case 3:
            parts.pairs[at] = (key, type_id, _like(value, random))
        case 4:
            other = random.choice(parts.pairs)
            parts.pairs[at] = (key, other[1], other[2])
        case _:
            new = random.choice([each for each in HOSTILE if isinstance(each, int | float | str | bool)])
            parts.pairs[at] = (key, *GgufParts.typed(new))


def _like(value: Any, random: Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, list):
        return []
    if isinstance(value, bytes):
        return random.choice(_TEXTS).encode("utf-8", "surrogatepass")
    if isinstance(value, float):
        return random.choice((0.0, -1.0, 1e30, 1e-30, float("nan"), float("inf"), -float("inf")))
    return random.choice([each for each in _NUMBERS if isinstance(each, int) and each < 2**64])


def _change_infos(parts: GgufParts, random: Random) -> None:
    if not parts.infos:
        return
    at = random.randrange(len(parts.infos))
    info = parts.infos[at]
    number = random.choice([each for each in _NUMBERS if isinstance(each, int) and 0 <= each < 2**64])
    match random.randrange(6):
        case 0:
            del parts.infos[at]
        case 1:
            parts.infos.append(info)
        case 2:
            parts.infos[at] = info._replace(type_id=random.choice((*range(45), number % 2**32)))
        case 3:
            parts.infos[at] = info._replace(offset=number)
        case 4:
            sizes = list(info.sizes) or [1]
            sizes[random.randrange(len(sizes))] = number
            parts.infos[at] = info._replace(sizes=tuple(sizes))
        case _:
            name = random.choice(
                [random.choice(_TEXTS).encode("utf-8", "surrogatepass"), random.choice(parts.infos).name]
            )
            parts.infos[at] = info._replace(name=name)


# -- PyTorch, protobuf, YAML -------------------------------------------------------------------------------------------


def _change_zip(data: bytes, random: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = random.choice(list(members))
    pickles = [each for each in members if each.endswith(".pkl")]
    if pickles and random.random() < 0.8:
        members[pickles[0]] = _change_pickle(members[pickles[0]], random)
    elif random.random() < 0.5:
        members[name] = _change_bytes(members[name], random)
    else:
        members[random.choice(_TEXTS[1:-2]) or "x"] = members.pop(name)
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return result.getvalue()


def _change_pickle(data: bytes, random: Random) -> bytes:
    """A pickle with an instruction removed, repeated, moved or replaced."""
    starts = [position for _, _, position in pickletools.genops(data) if position is not None]
    pieces = [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]
    at = random.randrange(len(pieces))
    match random.randrange(6):
        case 0:
            del pieces[at]
        case 1:
            pieces[at:at] = pieces[at : at + 1] * random.choice((1, 1, 60))
        case 2:
            other = random.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        case 3:
            pieces[at] = _change_bytes(pieces[at], random)
        case 4:
            number = random.choice([each for each in _NUMBERS if isinstance(each, int) and abs(each) < 2**65])
            pieces.insert(at, b"\x8a\x09" + number.to_bytes(9, "little", signed=True))
        case _:
            pieces.insert(
                at,
                random.choice(
                    (b"}", b"]", b")", b"(", b"t", b"\x85", b"\x86", b"R", b"b", b"0", b"2", b"N", b"s", b"u", b"Q")
                ),
            )
    return b"".join(pieces)


def _change_protobuf(data: bytes, random: Random) -> bytes:
    """A message of fields with a length, of which one is removed, repeated, moved or changed inside."""
    fields, position = [], 0
    while position < len(data):
        start = position
        length, position = _varint(data, position + 1)
        position += length
        fields.append(data[start:position])
    at = random.randrange(len(fields))
    match random.randrange(5):
        case 0:
            del fields[at]
        case 1:
            fields[at:at] = fields[at : at + 1] * random.choice((1, 1, 1000))
        case 2:
            fields[at] = random.choice(fields)
        case _:
            fields[at] = _change_bytes(fields[at], random)
    return b"".join(fields)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            return value, position


def _change_text(data: bytes, random: Random) -> bytes:
    """YAML and other text: words replaced by others, lines moved and repeated."""
    text = data.decode("utf-8", "replace")
    if random.random() < 0.3:
        lines = text.splitlines(keepends=True) or [""]
        at = random.randrange(len(lines))
        line = random.choice(lines)
        lines[at : at + random.randrange(2)] = [
            random.choice((line, line * 20, "  " + line, line.lstrip(), "- " + line))
        ]
        return "".join(lines).encode()
    words = re.split(r"([\w./-]+)", text)
    at = random.randrange(len(words))
    values = [*_YAML, *map(str, _NUMBERS[:-10]), *_TEXTS, *words]
    words[at] = random.choice(values)
    return "".join(words).encode("utf-8", "surrogatepass")


_STRUCTURED: dict[str, Callable[[bytes, Random], bytes]] = {
    "json": _change_json,
    "safetensors": _change_safetensors,
    "gguf": _change_gguf,
    "zip": _change_zip,
    "protobuf": _change_protobuf,
    "text": _change_text,
}
