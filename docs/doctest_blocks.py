"""An extension of mkdocstrings: examples in docstrings become code blocks, and records list their fields."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_context: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_block, obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_context: Any) -> None:
        if cls.docstring is not None and any(str(each.value).startswith("dataclass") for each in cls.decorators):
            fields = [each for each in cls.attributes.values() if each.annotation is not None and each.is_public]
            lines = "".join(f"\n- `{each.name}: {each.annotation}`" for each in fields)
            cls.docstring.value += f"\n\nFields:\n{lines}"


def _block(match: re.Match[str]) -> str:
    text = re.sub(r"  # doctest: .*$", "", match[0], flags=re.MULTILINE)
    return f"\n```pycon\n{text}\n```\n"
