"""``lbrx.shuffle``: a model whose layers come from several models at random."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from itertools import groupby
from typing import Unpack

from lbrx.errors import UsageError
from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.run import RunResult
from lbrx.jobs.merge.inline import yaml_scalar
from lbrx.jobs.merge.merge import merge
from lbrx.jobs.merge.plan.models import open_model
from lbrx.jobs.merge.recipe.reading import parse_reference

Layer = tuple[str, int]


def shuffle_recipe(
    models: Sequence[str],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    full_random: bool = False,
    dtype: str | None = None,
) -> str:
    """Return the recipe of a shuffle: each layer of the output is that of one of the models, chosen by weight.

    With ``full_random`` the weights are the shares of their layers that models contribute, and layers are repeated and
    in any order. Choices are those of mergekit-layershuffle after
    ``random.seed(seed)``.

    >>> from lbrx.demo.models import demo_models
    >>> print(shuffle_recipe([str(demo_models().code)]))  # doctest: +ELLIPSIS
    merge_method: passthrough
    slices:
      - sources: [{model: ..., layer_range: [0, ...]}]
    <BLANKLINE>
    """
    shares = [1.0] * len(models) if weights is None else list(weights)
    if not models or len(shares) != len(models):
        raise UsageError(f"{len(models)} models and {len(shares)} weights; expected as many")
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not any(shares):
        raise UsageError(f"weights are {shares}; expected numbers of at least 0, and not only zeros")
    counts = [open_model(parse_reference(model)).layer_count for model in models]
    generator = random.Random(seed)
    if full_random:
        layers = _any_layers(generator, models, counts, shares)
    else:
        layers = [(generator.choices(models, weights=shares, k=1)[0], layer) for layer in range(counts[0])]
        for model, layer in layers:
            if layer >= counts[models.index(model)]:
                raise UsageError(f"{model} has {counts[models.index(model)]} layers, but {models[0]} has {counts[0]}")
    if not layers:
        raise UsageError("no layer was chosen; expected larger weights")
    lines = ["merge_method: passthrough", *([] if dtype is None else [f"dtype: {dtype}"]), "slices:"]
    for model, start, end in _runs(layers, joined=not full_random):
        lines.append(f"  - sources: [{{model: {yaml_scalar(model)}, layer_range: [{start}, {end}]}}]")
    return "\n".join(lines) + "\n"


def _any_layers(
    generator: random.Random, models: Sequence[str], counts: Sequence[int], shares: Sequence[float]
) -> list[Layer]:
    layers = []
    for model, count, share in zip(models, counts, shares, strict=True):
        taken = int(count * share)
        if taken > count:
            raise UsageError(f"the weight of {model} is {share}; expected the share of its layers, at most 1")
        layers += [(model, generator.randrange(taken)) for _ in range(taken)]
    generator.shuffle(layers)
    return layers


def _runs(layers: Sequence[Layer], *, joined: bool) -> list[tuple[str, int, int]]:
    """Return slices; ``joined`` makes consecutive layers of one model one slice."""
    if not joined:
        return [(model, layer, layer + 1) for model, layer in layers]
    groups = [(model, [layer for _, layer in group]) for model, group in groupby(layers, key=lambda each: each[0])]
    return [(model, numbers[0], numbers[-1] + 1) for model, numbers in groups]


@takes_run_options
def shuffle(
    models: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    full_random: bool = False,
    dtype: str | None = None,
    seed: int = 0,
    max_shard_bytes: int | str | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Write a model whose layers come from several models at random; see `lbrx.jobs.merge.shuffle.shuffle_recipe`.

    Embedding and final tensors are those of the models of the first and the last layer. The recipe is in the model
    card. The other options are those of `lbrx.merge`.

    >>> import tempfile
    >>> from lbrx.demo.models import demo_models
    >>> models = demo_models()
    >>> shuffle([models.code, models.prose], tempfile.mkdtemp() + "/out", weights=[0.5, 0.5], seed=3).tensors
    29
    """
    recipe = shuffle_recipe(
        [os.fspath(model) for model in models], weights, seed=seed, full_random=full_random, dtype=dtype
    )
    return merge(recipe, out, max_shard_bytes=max_shard_bytes, **options)
