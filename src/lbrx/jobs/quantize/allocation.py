"""The choice of a coding for each of many tensors that together must not exceed a size.

Every tensor begins with its smallest coding. Steps to larger ones are taken in the order of how much error they save
for each unit of size, along the lower convex hull of a tensor's codings. The remaining bytes go to the steps that
help most. The result is never worse than the best choice of one rank for all, and does not depend on anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lbrx.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Coding:
    """One way to code a tensor: how many bytes it takes, and how much error it makes."""

    name: str
    size: int
    error: float


def allocate(tensors: Sequence[Sequence[Coding]], limit: int) -> list[Coding] | None:
    """A coding for each tensor with sizes that sum up to at most ``limit``; None if even the smallest exceed it.

    >>> small, large = Coding("a", 10, 1.0), Coding("b", 20, 0.1)
    >>> bad = Coding("b", 20, 0.9)
    >>> [coding.name for coding in allocate([[small, large], [small, bad]], 30)]
    ['b', 'a']
    """
    smallest = [min(codings, key=lambda coding: (coding.size, coding.error)) for codings in tensors]
    if _size(smallest) > limit:
        return None
    climbed = _filled(tensors, _climbed(tensors, smallest, limit), limit)
    uniform = [choice for choice in _uniform_choices(tensors) if _size(choice) <= limit]
    return min([climbed, *uniform], key=_error)


def _size(choice: Sequence[Coding]) -> int:
    return sum(coding.size for coding in choice)


def _error(choice: Sequence[Coding]) -> float:
    return sum(coding.error for coding in choice)


def hull(codings: Sequence[Coding]) -> list[Coding]:
    """The codings that are best for some price of size, from the smallest to the one of least error.

    >>> [coding.size for coding in hull([Coding("a", 1, 9.0), Coding("b", 2, 8.9), Coding("c", 3, 1.0)])]
    [1, 3]
    """
    corners: list[Coding] = []
    for coding in sorted(codings, key=lambda coding: (coding.size, coding.error)):
        if corners and coding.error >= corners[-1].error:
            continue
        while len(corners) > 1 and _gain(corners[-1], coding) >= _gain(corners[-2], corners[-1]):
            corners.pop()
        corners.append(coding)
    return corners


def _gain(smaller: Coding, larger: Coding) -> float:
    """Error saved for each unit of size."""
    return (smaller.error - larger.error) / (larger.size - smaller.size)


def _climbed(tensors: Sequence[Sequence[Coding]], smallest: Sequence[Coding], limit: int) -> list[Coding]:
    choice = list(smallest)
    steps = []
    for number, codings in enumerate(tensors):
        corners = hull(codings)
        choice[number] = corners[0]
        for rank, (smaller, larger) in enumerate(pairwise(corners)):
            steps.append((-_gain(smaller, larger), number, rank, larger))
    left = limit - _size(choice)
    stopped = set()
    for _, number, _, larger in sorted(steps, key=lambda step: step[:3]):
        needed = larger.size - choice[number].size
        if number in stopped or needed > left:
            stopped.add(number)
            continue
        choice[number] = larger
        left -= needed
    return choice


def _filled(tensors: Sequence[Sequence[Coding]], choice: list[Coding], limit: int) -> list[Coding]:
    """Use the remaining bytes, each time for the change that reduces the error most."""
    left = limit - _size(choice)
    while True:
        best = max(
            (
                (choice[number].error - coding.error, -number, coding)
                for number, codings in enumerate(tensors)
                for coding in codings
                if coding.size - choice[number].size <= left and coding.error < choice[number].error
            ),
            key=lambda change: change[:2],
            default=None,
        )
        if best is None:
            return choice
        _, negative, coding = best
        left -= coding.size - choice[-negative].size
        choice[-negative] = coding


def _uniform_choices(tensors: Sequence[Sequence[Coding]]) -> list[list[Coding]]:
    """The same index in every tensor's list, or the last one of a shorter list."""
    longest = max((len(codings) for codings in tensors), default=0)
    return [[codings[min(rank, len(codings) - 1)] for codings in tensors] for rank in range(longest)]
