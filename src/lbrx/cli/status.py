"""Progress of all commands: a bar with verb, percentage, amount, speed, time left and item name, or lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from lbrx.base.system import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LEAST_SECONDS = 0.5  # measured before the time left is shown
_SECONDS_BETWEEN_LINES = 60.0


def time_left(seconds: float) -> str:
    """Format the time left.

    >>> time_left(2.2), time_left(75), time_left(7500)
    ('3 s left', '1:15 min left', '2:05 h left')
    """
    whole = int(seconds) + 1 if seconds < 60 else round(seconds)
    if whole < 60:
        return f"{whole} s left"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min left"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h left"


class ProgressBar:
    """A progress bar on standard error, removed at the end. Counts bytes, or items if ``in_bytes`` is false."""

    def __init__(self, verb: str, *, in_bytes: bool) -> None:
        self._verb, self._in_bytes = verb, in_bytes
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._started = monotonic()
        self._first: int | None = None

    def start(self) -> None:
        """Show the bar. It has no end until the total is known."""
        if self._bar is None:
            self._bar = _new_bar()
            self._task = self._bar.add_task(self._verb, total=None, amount="", speed="", left="", item="")
            self._bar.start()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int, item: str) -> None:
        """Show how much is done. The speed is measured from the first call."""
        from lbrx.cli.console import printable

        self.start()
        assert self._bar is not None
        assert self._task is not None
        if self._first is None:
            self._first, self._started = done, monotonic()
        seconds = monotonic() - self._started
        rate = (done - self._first) / seconds if seconds >= _LEAST_SECONDS else 0.0
        left = time_left((total - done) / rate) if rate > 0 and done < total else ""
        if self._in_bytes:
            amount, speed = f"{format_bytes(done)} of {format_bytes(total)}", f"{format_bytes(int(rate))}/s"
        else:
            amount, speed = f"{done:,} of {total:,}", ""
        shown: dict[str, Any] = {
            "amount": amount,
            "speed": speed if rate > 0 else "",
            "left": left,
            "item": _end_of(printable(item)),
        }
        self._bar.update(self._task, completed=done, total=total, **shown)


class ProgressLines:
    """Progress as lines on standard error, for log files; short jobs print none."""

    def __init__(self, verb: str, seconds_between: float = _SECONDS_BETWEEN_LINES) -> None:
        self._verb, self._seconds_between = verb, seconds_between
        self._started = self._printed = monotonic()

    def __call__(self, done: int, total: int, item: str) -> None:
        """Print a line if the last one is old enough."""
        now = monotonic()
        if now - self._printed < self._seconds_between or done >= total:
            return
        from lbrx.cli.console import printable

        self._printed = now
        left = f", {time_left((now - self._started) / done * (total - done))}" if done else ""
        sys.stderr.write(f"{self._verb}: {done:,} of {total:,}{left} ({printable(item)})\n")
        sys.stderr.flush()


def _end_of(name: str) -> str:
    """Return the end of a tensor's name, which is more specific than its beginning.

    >>> _end_of("model.layers.11.self_attn.q_proj.weight")
    '11.self_attn.q_proj'
    """
    return ".".join(name.removesuffix(".weight").split(".")[-3:]) if "/" not in name else name


def _new_bar() -> Bar:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    from lbrx.cli.console import error_console

    def text(field: str, style: str = "none", *, is_flexible: bool = False) -> TextColumn:
        column = Column(no_wrap=True, ratio=1 if is_flexible else None)
        return TextColumn(f"{{task.fields[{field}]}}", style=style, markup=False, table_column=column)

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        TaskProgressColumn(),
        BarColumn(bar_width=None, table_column=Column(min_width=8, ratio=1)),
        text("amount"),
        text("speed"),
        text("left"),
        text("item", "dim", is_flexible=True),
        console=error_console(),
        transient=True,
        expand=True,
    )


@contextmanager
def shown_progress(verb: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a callback for (items done, total items, item name). Without a terminal, it prints a line a minute."""
    if not sys.stderr.isatty():
        yield ProgressLines(verb)
        return
    bar = ProgressBar(verb, in_bytes=False)
    bar.start()
    try:
        yield bar.update
    finally:
        bar.stop()


def announce_compiling() -> None:
    """On a terminal, announce kernel compilation, because it takes several seconds on the first run."""
    from lbrx.settings import compile_listeners

    def compiling() -> None:
        if not said:
            said.append(True)
            sys.stderr.write("compiling kernels for this machine (first run only; later runs use a cache)\n")
            sys.stderr.flush()

    said: list[bool] = []
    if sys.stderr.isatty() and not compile_listeners:
        compile_listeners.append(compiling)
