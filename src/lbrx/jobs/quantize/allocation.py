"""The choice of a coding for each of many tensors that together must not exceed a size: a knapsack, solved exactly.

A good choice is found first. Every tensor begins with its smallest coding. Steps to larger ones are taken in the order
of how much error they save for each unit of size, along the lower convex hull of a tensor's codings, and the remaining
bytes go to the steps that help most. The price of size at the last step bounds what any choice can save. Codings that
no better choice can have are left out, and the rest is solved by dynamic programming over sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass

_MOST_CELLS = 1 << 28  # of the table, a byte each; with more, sizes are rounded up
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Coding:
    """One way to code a tensor: how many bytes it takes, and how much error it makes."""

    name: str
    size: int
    error: float


def allocate(tensors: Sequence[Sequence[Coding]], limit: int) -> list[Coding] | None:
    """The codings of least total error whose sizes sum up to at most ``limit``; None if even the smallest exceed it.

    If the table of sizes would need more than 256 MiB, the result is that of sizes that are rounded up a little.

    >>> small, large = Coding("a", 10, 1.0), Coding("b", 20, 0.1)
    >>> bad = Coding("b", 20, 0.9)
    >>> [coding.name for coding in allocate([[small, large], [small, bad]], 30)]
    ['b', 'a']
    """
    smallest = [min(codings, key=lambda coding: (coding.size, coding.error)) for codings in tensors]
    if _size(smallest) > limit:
        return None
    steps, price = _climbed(tensors, smallest, limit)
    uniform = [choice for choice in _uniform_choices(tensors) if _size(choice) <= limit]
    good = min([_filled(tensors, steps, limit), *uniform], key=_error)
    return good if price == 0.0 else min([good, _best(tensors, good, price, limit)], key=_error)


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


def front(tensors: Sequence[Sequence[Coding]]) -> list[tuple[int, float]]:
    """Size and error of the best choices for rising sizes: those at the corners of the convex hull.

    >>> small, large = Coding("a", 10, 1.0), Coding("b", 20, 0.25)
    >>> front([[small, large], [small]])
    [(20, 2.0), (30, 1.25)]
    """
    corners = [hull(codings) for codings in tensors]
    size, error = sum(row[0].size for row in corners), sum(row[0].error for row in corners)
    steps = [(-_gain(*pair), number, pair) for number, row in enumerate(corners) for pair in pairwise(row)]
    points = [(size, error)]
    for _, _, (smaller, larger) in sorted(steps, key=lambda step: step[:2]):
        size, error = size + larger.size - smaller.size, error + larger.error - smaller.error
        points.append((size, error))
    return points


def _gain(smaller: Coding, larger: Coding) -> float:
    """Error saved for each unit of size."""
    return (smaller.error - larger.error) / (larger.size - smaller.size)


def _climbed(tensors: Sequence[Sequence[Coding]], smallest: Sequence[Coding], limit: int) -> tuple[list[Coding], float]:
    """A choice, and the error saved for each unit of size by the first step that did not fit; 0 if all did."""
    choice, price = list(smallest), 0.0
    steps = []
    for number, codings in enumerate(tensors):
        corners = hull(codings)
        choice[number] = corners[0]
        for rank, (smaller, larger) in enumerate(pairwise(corners)):
            steps.append((-_gain(smaller, larger), number, rank, larger))
    left = limit - _size(choice)
    stopped = set()
    for negative_gain, number, _, larger in sorted(steps, key=lambda step: step[:3]):
        needed = larger.size - choice[number].size
        if number in stopped or needed > left:
            price = price or -negative_gain
            stopped.add(number)
            continue
        choice[number] = larger
        left -= needed
    return choice, price


def _best(tensors: Sequence[Sequence[Coding]], good: Sequence[Coding], price: float, limit: int) -> list[Coding]:
    """The best choice. A choice that is better than ``good`` has only codings whose costs are near the least."""
    costs = [[coding.error + price * coding.size for coding in codings] for codings in tensors]
    bound = sum(map(min, costs)) - price * limit  # no choice has less error
    slack = _error(good) - bound
    slack += _ROUNDING * (abs(bound) + _error(good) + price * limit)
    rows = [
        _undominated([coding for coding, cost in zip(codings, own, strict=True) if cost - min(own) <= slack])
        for codings, own in zip(tensors, costs, strict=True)
    ]
    choice = [row[0] for row in rows]  # the smallest ones
    open_rows = [number for number, row in enumerate(rows) if len(row) > 1]
    left = limit - _size(choice)
    if left < 0:  # by rounding
        return list(good)
    extra = [[coding.size - rows[number][0].size for coding in rows[number]] for number in open_rows]
    left = min(left, sum(row[-1] for row in extra))
    unit = max(gcd(*(size for row in extra for size in row)), 1) if extra else 1
    unit *= -(-(left // unit + 1) * max(len(open_rows), 1) // _MOST_CELLS)
    sizes = [[-(-size // unit) for size in row] for row in extra]
    errors = [[coding.error for coding in rows[number]] for number in open_rows]
    for number, picked in zip(open_rows, _least_errors(sizes, errors, left // unit), strict=True):
        choice[number] = rows[number][picked]
    return choice


def _undominated(codings: Sequence[Coding]) -> list[Coding]:
    """By size, without those that are no better than a smaller one."""
    kept: list[Coding] = []
    for coding in sorted(codings, key=lambda coding: (coding.size, coding.error)):
        if not kept or coding.error < kept[-1].error:
            kept.append(coding)
    return kept


def _least_errors(sizes: Sequence[Sequence[int]], errors: Sequence[Sequence[float]], limit: int) -> list[int]:
    """For each row the index of an entry, such that sizes sum up to at most ``limit`` and errors to the least.

    The first size of each row is 0.
    """
    least = np.zeros(limit + 1)  # of the rows so far, by the size that they may take
    picked: list[npt.NDArray[np.uint8]] = []
    for row_sizes, row_errors in zip(sizes, errors, strict=True):
        best, choice = least + row_errors[0], np.zeros(limit + 1, np.uint8)
        for index, (size, error) in enumerate(zip(row_sizes[1:], row_errors[1:], strict=True), 1):
            if size > limit:
                break
            total = least[: limit + 1 - size] + error
            is_better = total < best[size:]
            best[size:][is_better] = total[is_better]
            choice[size:][is_better] = index
        least = best
        picked.append(choice)
    result, room = [], limit
    for row_sizes, choice in zip(reversed(sizes), reversed(picked), strict=True):
        index = int(choice[room])
        result.append(index)
        room -= row_sizes[index]
    return result[::-1]


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
