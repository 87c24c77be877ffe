"""Decode tokens incrementally: a piece of text is emitted when its characters are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete character


def text_pieces(
    decode: Callable[[Sequence[int]], str], ids: Iterable[int], before: Sequence[int] = ()
) -> Iterator[str]:
    """Yield the text of ``ids`` in pieces; joined, they equal the part of ``decode`` of everything after ``before``.

    Only the last few tokens are decoded repeatedly, because the text of a token may depend on its neighbors.

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
