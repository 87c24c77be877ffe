"""Text from tokens as they come: a piece is given out when its characters are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a decoder gives for a part of a character


def text_pieces(
    decode: Callable[[Sequence[int]], str], ids: Iterable[int], before: Sequence[int] = ()
) -> Iterator[str]:
    """The text of ``ids`` in pieces, which join to what ``decode`` makes of all that follows ``before``.

    A few tokens are decoded again and again, because a token's text may depend on those around it; the rest never is.

    >>> list(text_pieces(lambda ids: bytes(ids).decode(errors="replace"), [72, 105, 0xC3, 0xA4]))
    ['H', 'i', 'ä']
    """
    held = list(before)[-4:]
    shown = decode(held)
    for token in ids:
        held.append(token)
        whole = decode(held)
        if whole.endswith(_BROKEN) or len(whole) <= len(shown):
            continue
        yield whole[len(shown) :]
        held = held[-4:]
        shown = decode(held)
    rest = decode(held)[len(shown) :]
    if rest:
        yield rest
