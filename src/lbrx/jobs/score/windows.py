"""The windows of a text: how many tokens a model sees at a time, and which of them are scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from lbrx.errors import UsageError

WindowLayout = Literal["overlapping", "llama.cpp"]


class Window(NamedTuple):
    """Tokens ``start`` to ``stop``, of which those from ``first_scored`` on are predicted."""

    start: int
    stop: int
    first_scored: int


def windows_of(layout: WindowLayout, tokens: int, context: int, stride: int | None) -> tuple[Window, ...]:
    """Return the windows of a text of so many tokens. The default of ``stride`` is half of ``context``."""
    if layout == "overlapping":
        step = stride or max(context // 2, 1)
        if not 1 <= step < context:
            raise UsageError(f"windows of {context} tokens, one every {step}: expected a stride of 1 to {context - 1}")
        return tuple(overlapping_windows(tokens, context, step))
    if layout != "llama.cpp":
        raise UsageError(f"unknown windows {layout!r}; expected overlapping or llama.cpp")
    if stride is not None:
        raise UsageError("windows like those of llama.cpp do not overlap; expected no stride")
    if context < 3:
        raise UsageError(f"windows of {context} tokens like those of llama.cpp score nothing; expected at least 3")
    if tokens < context:
        raise UsageError(
            f"the text has {tokens:,} tokens, but windows like those of llama.cpp have {context:,}; "
            "expected a longer text or a smaller context"
        )
    return tuple(separate_windows(tokens, context))


def overlapping_windows(tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Yield windows that score every token but the first once, in the first window that contains it.

    >>> [tuple(window) for window in overlapping_windows(10, context=6, stride=3)]
    [(0, 6, 1), (3, 9, 6), (6, 10, 9)]
    """
    start, scored = 0, 1
    while scored < tokens:
        stop = min(start + context, tokens)
        yield Window(start, stop, scored)
        start, scored = start + stride, stop


def separate_windows(tokens: int, context: int) -> Iterator[Window]:
    """Yield the windows of llama-perplexity: whole ones, one after the other, of which the second half is scored.

    >>> [tuple(window) for window in separate_windows(20, context=8)]
    [(0, 8, 5), (8, 16, 13)]
    """
    for start in range(0, tokens - context + 1, context):
        yield Window(start, start + context, start + context // 2 + 1)


def with_first_tokens(ids: Sequence[int], windows: Sequence[Window], first: int) -> list[int]:
    """Return tokens with the first one of every window replaced, as llama-perplexity does if texts begin with one.

    >>> with_first_tokens([1, 10, 11, 12, 13, 14], [Window(0, 3, 2), Window(3, 6, 5)], 1)
    [1, 10, 11, 1, 13, 14]
    """
    changed = list(ids)
    for window in windows:
        changed[window.start] = first
    return changed
