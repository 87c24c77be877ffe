"""What the figures of a comparison mean for a merge, in sentences. Every sentence contains its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from lbrx.jobs.compare.diff import ModelDiff
from lbrx.jobs.compare.ranks import SHARE
from lbrx.ops.difference import Sums

EQUAL, TINY, UNRELATED = 0.0, 1e-3, 0.5
OPPOSITE, ALIGNED, INDEPENDENT = -0.5, 0.3, 0.1
UNBALANCED = 2.0
_MOST_SHARE = 0.75  # of a change that is in a few layers
_MOST_LAYERS = 3
_LOW_RANK = 1 / 8  # of the directions of a matrix


def advice(difference: ModelDiff) -> list[str]:
    """Return sentences about a comparison of two models, with a base or without.

    >>> import lbrx
    >>> from lbrx.jobs.compare.diff import diff_models
    >>> base, a, b = ({"w": lbrx.tensor(values, "f32")} for values in ([1.0, 1.0], [1.5, 1.0], [0.5, 1.0]))
    >>> advice(diff_models(a, b, base))  # doctest: +ELLIPSIS
    ['The changes point in opposite directions (task cosine -1.00): their sum cancels most. Try ties, ...']
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
    yield from _low_ranks(difference)


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
            f"Give {small} more weight, or use nuslerp or multislerp, which merge directions."
        )
    conflicts = sorted(
        (sums.task_cosine, layer)
        for (_, layer), sums in difference.layers().items()
        if sums.task_cosine < min(-INDEPENDENT, total.task_cosine - INDEPENDENT)
    )
    if conflicts:
        worst = [f"{layer} ({cosine:.2f})" for cosine, layer in conflicts[:_MOST_LAYERS]]
        yield (
            f"They conflict most in {_counted('layer', worst)}: "
            "search other weights there, with a gradient or a filter."
        )
    yield from _changed_by_one(difference)
    yield from _concentration(difference, lambda sums: sums.task_squares_a + sums.task_squares_b, "change")
    yield from _low_ranks(difference)


def _direction(cosine: float) -> str:
    remedy = "Try ties, which keeps the larger change where signs conflict, or a smaller weight for one."
    if cosine <= OPPOSITE:
        return f"The changes point in opposite directions (task cosine {cosine:.2f}): their sum cancels most. {remedy}"
    if cosine <= -INDEPENDENT:
        return f"The changes partly oppose each other (task cosine {cosine:.2f}): their sum cancels some. {remedy}"
    if cosine < INDEPENDENT:
        return (
            f"The changes are nearly independent (task cosine {cosine:.2f}): neither cancels the other, but each can "
            "disturb what the other does. Try task_arithmetic, and search its weights from 0 to 1."
        )
    if cosine < ALIGNED:
        return (
            f"The changes partly agree (task cosine {cosine:.2f}): their sum exaggerates what they share. "
            "Try task_arithmetic with weights below 1, or ties, which removes conflicts."
        )
    return (
        f"The changes agree in much (task cosine {cosine:.2f}): their sum exaggerates what they share. "
        "Average them: linear, slerp, or task_arithmetic with weights that sum to 1."
    )


def _changed_by_one(difference: ModelDiff) -> Iterator[str]:
    """Name the layers that one model left as they are in the base."""
    changes = {
        layer: (sums.task_squares_a, sums.task_squares_b)
        for (_, layer), sums in difference.layers().items()
        if sums.has_tasks
    }
    for number, (one, other) in enumerate((("A", "B"), ("B", "A"))):
        found = [layer for layer, sizes in changes.items() if sizes[number] > 0 and sizes[1 - number] == 0]
        if found:
            yield (
                f"Only {one} changes {_layers_text(found)} (change of {other} 0): an average halves that change, "
                "task_arithmetic keeps it."
            )


def _concentration(difference: ModelDiff, measure: Callable[[Sums], float], noun: str) -> Iterator[str]:
    """Name the layers, or the tensors outside of layers, that contain most of the change, if these are few."""
    layers = {layer: measure(sums) for (_, layer), sums in difference.layers().items()}
    outside = {tensor.position.module: measure(tensor.sums) for tensor in difference.outside_layers()}
    whole = sum(layers.values()) + sum(outside.values())
    if not whole:
        return
    share, name = max(((size / whole, name) for name, size in outside.items()), default=(0.0, ""))
    if share > 0.5:
        yield f"{share:.0%} of the squared {noun} is in {name}, outside the layers."
        return
    ranked = sorted(layers, key=lambda layer: -layers[layer])
    for count in range(1, len(ranked) // 2 + 1):
        share = sum(layers[layer] for layer in ranked[:count]) / whole
        chosen = sorted(ranked[:count])
        is_range = chosen[-1] - chosen[0] == count - 1
        if share > _MOST_SHARE and (is_range or count <= _MOST_LAYERS):
            yield (
                f"{share:.0%} of the squared {noun} is in {_layers_text(chosen)} of {len(ranked)}: "
                "the weights there matter most."
            )
            return


def _low_ranks(difference: ModelDiff) -> Iterator[str]:
    for rank in difference.ranks:
        if rank.directions <= _LOW_RANK * rank.size:
            what = "The difference" if rank.of == "difference" else f"The change of {rank.of}"
            directions = "1 direction has" if rank.directions == 1 else f"{rank.directions} directions have"
            yield (
                f"{what} is low rank: in {rank.module} of {_layers_text(rank.layers)}, {directions} {SHARE:.0%} of "
                f"the square, of {rank.size:,} possible. "
                f"lbrx lora extract --rank {rank.directions} makes an adapter of it."
            )


def _layers_text(layers: Sequence[int]) -> str:
    """Return numbers of layers as text.

    >>> _layers_text([3]), _layers_text([1, 2, 3, 4]), _layers_text([0, 2])
    ('layer 3', 'layers 1 to 4', 'layers 0 and 2')
    """
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"layers {layers[0]} to {layers[-1]}"
    return _counted("layer", [str(layer) for layer in layers])


def _counted(noun: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{noun}s {', '.join(names[:-1])} and {names[-1]}"
