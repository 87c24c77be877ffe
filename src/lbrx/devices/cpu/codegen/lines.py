"""Python source, written line by line."""

from __future__ import annotations


class SourceLines:
    """Lines of Python at the current depth."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self._depth + line for line in lines]

    def open(self, line: str) -> None:
        self.add(line)
        self._depth += 1

    def close(self) -> None:
        self._depth -= 1
