"""Consoles, tables and text formatting for the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

PIPED_WIDTH = 10_000  # never cut or wrap output that a program reads
_LEAST_NAME_WIDTH = 24
_COUNT_UNITS = ("", " K", " M", " B", " T")


def output_console() -> Console:
    """Return a console for standard output: styled on a terminal, plain text of any width in a pipe."""
    return _console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def error_console() -> Console:
    """Return a console for standard error that never wraps messages."""
    return _console(stderr=True, soft_wrap=True)


def _console(**settings: Any) -> Console:
    """Return a console that prints text as it is, without styles if ``NO_COLOR`` is set (rich would keep bold)."""
    colors: dict[str, Any] = {"color_system": None} if os.environ.get("NO_COLOR") else {}
    return Console(highlight=False, markup=False, emoji=False, **colors, **settings)


def printable(text: str) -> str:
    """Return the text as one line, escaping control characters.

    >>> printable("a\\nb \\x1b[31m"), printable("größe")
    ('a\\\\nb \\\\x1b[31m', 'größe')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str, width: int) -> str:
    """Return at most ``width`` characters of the text, ending with its full length if it was cut.

    >>> shortened("a chat template of many lines", 24)
    'a ... (29 characters)'
    >>> shortened("llama", 24)
    'llama'
    """
    clean = printable(text)
    if len(clean) <= width:
        return clean
    ending = f"... ({len(text):,} characters)"
    return clean[: max(width - len(ending), 0)] + ending


def count_text(count: int) -> str:
    """Format a count with three significant digits.

    >>> count_text(999), count_text(1_100_048_384), count_text(25_600), count_text(999_999)
    ('999', '1.10 B', '25.6 K', '1.00 M')
    """
    power, value = 0, float(count)
    while value >= 999.5 and power + 1 < len(_COUNT_UNITS):
        power, value = power + 1, value / 1000
    if power == 0:
        return str(count)
    return f"{value:#.3g}".rstrip(".") + _COUNT_UNITS[power]


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Format a count with its noun.

    >>> plural(1, "file"), plural(1200, "tensor"), plural(2, "entry", "entries")
    ('1 file', '1,200 tensors', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape.

    >>> shape_text((32000, 2048)), shape_text(())
    ('32000 x 2048', 'scalar')
    """
    return " x ".join(map(str, shape)) if shape else "scalar"


def facts(rows: Iterable[tuple[str, str]]) -> Table | str:
    """Return a two-column table with dimmed names, or plain lines if standard output is a pipe."""
    if not sys.stdout.isatty():
        listed = list(rows)
        width = max((len(name) for name, _ in listed), default=0) + 2
        return "\n".join(f"{name:<{width}}{value}".rstrip() for name, value in listed)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


class FittedTable(Table):
    """A table that never cuts numbers: it shortens names first, then drops the columns in ``dropped_first``."""

    def __init__(self, left: Sequence[str], dropped_first: Sequence[str]) -> None:
        super().__init__(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        self.left, self.dropped_first = left, dropped_first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            if column.header not in self.left:
                column.min_width = _width(column)
        dropped = []
        for heading in self.dropped_first:
            if self._least_width() <= options.max_width:
                break
            dropped.append(heading)
            self.columns = [column for column in self.columns if column.header != heading]
            for index, column in enumerate(self.columns):
                column._index = index  # rich pads the last column by this number
        for column in self.columns:
            if column.header in self.left and column.no_wrap:
                self._cut(column, options.max_width)
        yield from super().__rich_console__(console, options)
        if dropped:
            yield Text(f"(hidden columns, shown with --json or in a wider window: {', '.join(dropped)})", style="dim")

    def _least_width(self) -> int:
        """Return the width with all names shortened as much as allowed."""
        widths = [
            min(_width(column), _LEAST_NAME_WIDTH) if column.header in self.left else _width(column)
            for column in self.columns
        ]
        return sum(widths) + 2 * len(widths)

    def _cut(self, column: Column, width: int) -> None:
        """Cut names from the left, since most share a prefix, so that the column fits."""
        others = sum(_width(other) + 2 for other in self.columns if other is not column)
        most = max(width - others - 2, min(_LEAST_NAME_WIDTH, _width(column)))
        column._cells = [
            f"\u2026{cell[1 - most :]}" if isinstance(cell, str) and cell_len(cell) > most else cell
            for cell in column._cells
        ]


def _width(column: Column) -> int:
    cells = [cell.plain if isinstance(cell, Text) else str(cell) for cell in (column.header, *column._cells)]
    return max(map(cell_len, cells))


def columns(*headings: str, left: Sequence[str] = (), dropped_first: Sequence[str] = ()) -> FittedTable:
    """Return an empty table of right-aligned columns. Columns in ``left`` hold names and are left-aligned.

    On a narrow terminal, names are shortened first. Then the columns in ``dropped_first`` are dropped, in this order.
    """
    table = FittedTable(left, dropped_first)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table
