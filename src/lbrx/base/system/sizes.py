"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from lbrx.errors import UsageError

_NUMBER_AND_UNIT = re.compile(r"\s*(\d+)(?:\.(\d+))?\s*([a-z]*)\s*", re.IGNORECASE)
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTES_PER_UNIT: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)},
    **{letter: 1024**power for power, letter in enumerate("kmgtp", start=1)},
}


def parse_bytes(text: str | int) -> int:
    """The number of bytes that a text such as ``4GB`` or ``512MiB`` means.

    ``kB``, ``MB``, ``GB`` count in thousands; ``KiB``, ``MiB``, ``GiB`` and the bare letters ``K``, ``M``, ``G``
    count in 1024s. Case does not matter, and a fraction of a byte is dropped.

    >>> parse_bytes("4GB"), parse_bytes("1.5 KiB"), parse_bytes("2k"), parse_bytes(300)
    (4000000000, 1536, 2048, 300)
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise UsageError(f"{text} is not a number of bytes; expected zero or more")
        return text
    match = _NUMBER_AND_UNIT.fullmatch(text) if isinstance(text, str) else None
    bytes_per_unit = _BYTES_PER_UNIT.get(match[3].lower()) if match else None
    if match is None or bytes_per_unit is None:
        raise UsageError(f"{text!r} is not a number of bytes; expected one such as 4GB, 512MiB or 1073741824")
    decimals = match[2] or ""
    return int(match[1] + decimals) * bytes_per_unit // int(10 ** len(decimals))


def format_bytes(nbytes: int) -> str:
    """A number of bytes for people, in units of 1024 with at most one decimal.

    >>> format_bytes(800), format_bytes(1536), format_bytes(4 << 30)
    ('800 B', '1.5 KiB', '4 GiB')
    """
    power = 0
    while power + 1 < len(_BINARY_UNITS) and _tenths(nbytes, power) >= 10240:
        power += 1
    whole, tenth = divmod(_tenths(nbytes, power), 10)
    return f"{whole}.{tenth} {_BINARY_UNITS[power]}" if tenth else f"{whole} {_BINARY_UNITS[power]}"


def _tenths(nbytes: int, power: int) -> int:
    """Tenths of a unit of 1024**power bytes, rounded to the nearest."""
    unit = 1 << (10 * power)
    return (nbytes * 10 + unit // 2) // unit
