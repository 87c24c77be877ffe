"""An extension of mkdocstrings: examples in docstrings, lines that begin with >>>, become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_context: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_block, obj.docstring.value)


def _block(match: re.Match[str]) -> str:
    text = re.sub(r"  # doctest: .*$", "", match[0], flags=re.MULTILINE)
    return f"\n```pycon\n{text}\n```\n"
