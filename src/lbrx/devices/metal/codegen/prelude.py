"""The functions that generated kernels use: those sections of the files of the prelude that a kernel needs."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FILES = ("prelude.metal", "functions.metal", "sums.metal")
_SECTION = re.compile(r"^// -- .* -+$", re.MULTILINE)
_FUNCTION = re.compile(r"^inline \w+ (\w+)\(", re.MULTILINE)
_WORD = re.compile(r"\w+")


class _Section(NamedTuple):
    text: str
    functions: frozenset[str]


@cache
def _sections() -> tuple[_Section, ...]:
    """The head of the first file, then all sections; a section uses only those above it."""
    text = "\n".join((Path(__file__).parent / name).read_text() for name in FILES)
    starts = [0, *(match.start() for match in _SECTION.finditer(text)), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(starts)]
    return tuple(_Section(piece, frozenset(_FUNCTION.findall(piece))) for piece in pieces)


def with_prelude(body: str) -> str:
    """A kernel after the sections that it needs: short sources compile faster.

    >>> text = with_prelude("kernel void k(device float* x) { x[0] = exp_f32(x[0]); }")
    >>> "inline float exp_f32" in text, "inline ulong f64_add" in text
    (True, False)
    """
    head, *sections = _sections()
    text = body
    for section in reversed(sections):
        if section.functions & set(_WORD.findall(text)):
            text = f"{section.text}{text}"
    return f"{head.text}{text}"
