"""Shader text, written line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ShaderLines:
    """Lines of Metal at the current depth.

    >>> out = ShaderLines()
    >>> with out.block("if (x)"):
    ...     out.add("y();")
    >>> out.lines
    ['if (x) {', '  y();', '}']
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def add(self, *lines: str) -> None:
        self.lines += ["  " * self._depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines within braces after ``head``."""
        self.add(f"{head} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")
