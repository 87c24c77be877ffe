"""What the figures of a comparison mean for a merge, in sentences. Every sentence contains its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from lbrx.jobs.compare.diff import ModelDiff
from lbrx.ops.difference import Sums

EQUAL, TINY, UNRELATED = 0.0, 1e-3, 0.5
ALIGNED, INDEPENDENT = 0.3, 0.1
UNBALANCED = 2.0
_MOST_LAYERS = 3


def advice(difference: ModelDiff) -> list[str]:
    """Return sentences about a comparison of two models, with a base or without.

    >>> import lbrx
    >>> from lbrx.jobs.compare.diff import diff_models
    >>> base, a, b = ({"w": lbrx.tensor(values, "f32")} for values in ([1.0, 1.0], [1.5, 1.0], [0.5, 1.0]))
    >>> advice(diff_models(a, b, base))  # doctest: +ELLIPSIS
    ['The changes point in opposite directions (task cosine -1.00): adding them cancels both. Try ties, ...']
    """
    total = difference.total
    return list(_of_tasks(difference, total) if total.has_tasks else _of_models(difference, total))


def _of_models(difference: ModelDiff, total: Sums) -> Iterator[str]:
    if total.relative_change == EQUAL:
        yield "All compared tensors are equal (relative change 0): there is nothing to merge."
        return
    if total.cosine < UNRELATED:
        yield (
            f"The models are unrelated (cosine {total.cosine:.2f}): no common base, or neurons in another order. "
            "Averaging their weights will most likely destroy both; stack layers with passthrough instead."
        )
        return
    if total.relative_change < TINY:
        yield f"The models are nearly equal (relative change {total.relative_change:.1e}): merging changes little."
    yield from _concentration(difference, lambda sums: sums.squares_difference, "difference")


def _of_tasks(difference: ModelDiff, total: Sums) -> Iterator[str]:
    sizes = {"A": math.sqrt(total.task_squares_a), "B": math.sqrt(total.task_squares_b)}
    unchanged = [name for name, size in sizes.items() if size == 0]
    if unchanged:
        yield f"{' and '.join(unchanged)} equals the base (change 0): there is nothing to merge from it."
        return
    yield _direction(total.task_cosine)
    large, small = sorted(sizes, key=lambda name: -sizes[name])
    ratio = sizes[large] / sizes[small]
    if ratio >= UNBALANCED:
        yield (
            f"The change of {large} is {ratio:.1f} times as large as that of {small}, which it outweighs. "
            f"Give {small} more weight, or normalize with nuslerp or model_stock."
        )
    conflicts = sorted(
        (sums.task_cosine, layer)
        for (_, layer), sums in difference.layers().items()
        if sums.task_cosine < min(-INDEPENDENT, total.task_cosine - INDEPENDENT)
    )
    if conflicts:
        worst = ", ".join(f"{layer} ({cosine:.2f})" for cosine, layer in conflicts[:_MOST_LAYERS])
        yield (
            f"They conflict most in {'layer' if len(conflicts) == 1 else 'layers'} {worst}: "
            "search the weights of these layers apart, with a gradient or a filter."
        )
    yield from _concentration(difference, lambda sums: sums.task_squares_a + sums.task_squares_b, "change")


def _direction(cosine: float) -> str:
    if cosine <= -INDEPENDENT:
        return (
            f"The changes point in opposite directions (task cosine {cosine:.2f}): adding them cancels both. "
            "Try ties, which keeps the larger change where signs conflict, or a smaller weight for one."
        )
    if cosine < INDEPENDENT:
        return (
            f"The changes are nearly independent (task cosine {cosine:.2f}): they add up without much conflict. "
            "Try task_arithmetic with weights up to 1 each."
        )
    if cosine < ALIGNED:
        return (
            f"The changes partly agree (task cosine {cosine:.2f}): ties removes what conflicts; "
            "task_arithmetic works with weights below 1."
        )
    return (
        f"The changes agree in much (task cosine {cosine:.2f}): their sum exaggerates what they share. "
        "Average them: linear, slerp, or task_arithmetic with weights that sum to 1."
    )


def _concentration(difference: ModelDiff, measure: Callable[[Sums], float], noun: str) -> Iterator[str]:
    """Name the layers that contain most of the change, if these are few."""
    layers = difference.layers()
    if len(layers) < 4:
        return
    sizes = [measure(sums) for sums in layers.values()]
    whole = sum(sizes) + sum(measure(tensor.sums) for tensor in difference.outside_layers())
    numbers = [layer for _, layer in layers]
    half = len(sizes) // 2
    for name, first, last in (("first", 0, half), ("last", len(sizes) - half, len(sizes))):
        share = sum(sizes[first:last]) / whole if whole else 0.0
        if share > 0.75:
            yield (
                f"{share:.0%} of the squared {noun} is in the {name} half of the layers ({numbers[first]} to "
                f"{numbers[last - 1]}): their weights matter most."
            )
