"""Names of kernels that multiply coded vectors: those for vectors of 8 bits have a suffix."""

from __future__ import annotations

_SUFFIX = "_in_8_bits"


def coded_name(name: str, bits: int) -> str:
    """
    >>> coded_name("q4_0", 16), coded_name("q4_0", 8)
    ('q4_0', 'q4_0_in_8_bits')
    """
    return name + _SUFFIX if bits == 8 else name


def parse_coded_name(name: str) -> tuple[str, int]:
    """
    >>> parse_coded_name("q4_0_in_8_bits"), parse_coded_name("q4_0")
    (('q4_0', 8), ('q4_0', 16))
    """
    return name.removesuffix(_SUFFIX), 8 if name.endswith(_SUFFIX) else 16
