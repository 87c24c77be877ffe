"""A line on the terminal that tells how far a command is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown_progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A callback for items done, items in all, and a name; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.text import Text

    from lbrx.cli.console import error_console, printable

    with error_console().status("reading") as status:  # a Text, for a string would be read as markup
        yield lambda done, total, name: status.update(Text(f"{done} of {total}: {printable(name)}"))
