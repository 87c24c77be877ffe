"""The character map of SentencePiece models: a double array, then replacements that end with a zero byte.

u32 bytes of the array | u32 units of the array | replacements
unit: bits 10 to 30 offset, bit 9 offset is times 256, bit 8 has a value, bits 0 to 7 label; bit 31 marks a value
"""

from __future__ import annotations

import numpy as np

from lbrx.errors import FormatError

MAX_REPLACEMENT = 1000  # bytes; the longest that SentencePiece ships has 60


def check_character_map(blob: bytes, where: str) -> None:
    """Raise unless every lookup in the map ends within it and makes a short valid text."""
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 8 or size % 4 or size == 0 or size + 4 >= len(blob):
        raise FormatError(f"{where} has {len(blob)} bytes and an array of {size}, expected an array and replacements")
    texts = blob[4 + size :]
    if not texts.endswith(b"\0"):
        raise FormatError(f"{where} ends within a replacement")
    longest = max(map(len, texts.split(b"\0")))
    if longest > MAX_REPLACEMENT:
        raise FormatError(f"{where} has a replacement of {longest} bytes, expected at most {MAX_REPLACEMENT}")
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{where} is not UTF-8 at byte {4 + size + error.start}") from error
    units = np.frombuffer(blob, "<u4", size // 4, 4)
    _check_units(units, len(texts), where)


def _check_units(units: np.ndarray[tuple[int], np.dtype[np.uint32]], text_bytes: int, where: str) -> None:
    is_value = (units >> 31) == 1
    values = units[is_value] & 0x7FFF_FFFF
    if values.size and int(values.max()) >= text_bytes:
        raise FormatError(f"{where} has a replacement at byte {int(values.max())}, but only {text_bytes} of them")
    places = np.flatnonzero(~is_value).astype(np.uint32)
    nodes = units[places]
    bases = places ^ ((nodes >> 10) << ((nodes & 0x200) >> 6))
    reached = bases | 0xFF  # a label is XORed to the base
    used = nodes != 0
    if used.any() and int(reached[used].max()) >= units.size:
        raise FormatError(f"{where} has a node that leads beyond the {units.size} units of the array")
