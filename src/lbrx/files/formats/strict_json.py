"""Untrusted JSON and other values: everything that can be wrong with them becomes a FormatError."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lbrx.errors import FileError, FormatError, LbrxError
from lbrx.files.formats.header import quoted

MAX_JSON_BYTES = 100_000_000
MAX_DEPTH = 64
MAX_CONTAINERS = 2_000_000  # each costs about 80 bytes of memory; a tensor of a SafeTensors header needs three


def parse_object(text: bytes | str, where: str, *, unique_keys: bool = True) -> dict[str, Any]:
    """Parse the JSON object in `text`; error messages begin with `where`.

    >>> parse_object(b'{"a": [1, 2]}', "config.json")
    {'a': [1, 2]}
    """
    plain = decoded(text, where) if isinstance(text, bytes) else text
    containers = plain.count("{") + plain.count("[")
    if containers > MAX_CONTAINERS:
        raise FormatError(f"{where}: has {containers:,} JSON brackets, expected at most {MAX_CONTAINERS:,}")
    try:
        parsed = json.loads(
            plain,
            object_pairs_hook=unique_keys_hook(where) if unique_keys else None,
            parse_constant=_constant,
        )
    except RecursionError as error:
        raise FormatError(f"{where}: is JSON that is nested too deeply") from error
    except ValueError as error:
        raise FormatError(f"{where}: is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise FormatError(f"{where}: is a JSON {type(parsed).__name__}, expected an object")
    if containers > MAX_DEPTH:
        _check_depth(parsed, where)
    if "\\ud" in plain or "\\uD" in plain:
        check_text(parsed, where)
    return parsed


def _constant(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is not valid JSON")
    return float(name)  # infinities are not valid JSON either, but transformers writes them


def _check_depth(parsed: dict[str, Any], where: str) -> None:
    level: list[Any] = [parsed]
    for _ in range(MAX_DEPTH):
        values = (value for each in level for value in (each.values() if isinstance(each, dict) else each))
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise FormatError(f"{where}: is JSON that is nested too deeply, expected at most {MAX_DEPTH} levels")


def check_text(parsed: Mapping[str, Any], where: str) -> None:
    """Raise if JSON contains a lone surrogate, which is not text and cannot be written back."""
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise FormatError(f"{where}: has the lone surrogate {found!r}, which is not text") from error


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Turn any exception that the content of a file causes within the block into a FormatError that names the file.

    >>> with reading("config.json"):
    ...     5 + "a"
    Traceback (most recent call last):
    lbrx.errors.FormatError: config.json: has values that cannot be used: TypeError: unsupported operand ...
    """
    try:
        yield
    except LbrxError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise FormatError(f"{path}: has values that cannot be used: {type(error).__name__}: {reason}") from error


def decoded(raw: bytes, where: str) -> str:
    """Decode these bytes as UTF-8.

    >>> decoded(b"a\\xff", "config.json")
    Traceback (most recent call last):
    lbrx.errors.FormatError: config.json: is not valid UTF-8 at byte 1
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: is not valid UTF-8 at byte {error.start}") from error


def unique_keys_hook(where: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return an ``object_pairs_hook`` that rejects duplicate keys."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs):
            repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise FormatError(f"{where}: key {quoted(repeated)} appears twice in one object")
        return built

    return build


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; return an empty one if the file does not exist."""
    try:
        return parse_object(path.read_bytes(), str(path), unique_keys=False) if path.is_file() else {}
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Serialize JSON in the format that model files use."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
