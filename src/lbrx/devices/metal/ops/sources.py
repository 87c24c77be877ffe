"""The shaders of this package, each as one text: Metal compiles from memory and finds no headers there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

SHADERS = Path(__file__).parent.parent / "shaders"
_INCLUDE = re.compile(r'^#include "([a-z_]+\.h)"\n', re.MULTILINE)


@cache
def shader_source(name: str) -> str:
    """The text of ``name.metal`` with our headers in place, each where it is first asked for.

    >>> '#include "' in shader_source("rows"), "kernel void softmax" in shader_source("rows")
    (False, True)
    """
    seen: set[str] = set()

    def inlined(text: str) -> str:
        return _INCLUDE.sub(lambda match: header(match.group(1)), text)

    def header(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        return inlined((SHADERS / file).read_text().replace("#pragma once\n", ""))

    return inlined((SHADERS / f"{name}.metal").read_text())
