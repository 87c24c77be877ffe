"""Finding the fastest variants of the kernels that have some, for the shapes of a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.tuning import Tuning, tune
from lbrx.devices.metal.ops.arrays import DeviceArray, DeviceWeight, empty, upload, weight_bytes
from lbrx.devices.metal.ops.attention import PARTS, attention, attention_question, block_names, vector_question
from lbrx.devices.metal.ops.linear import VECTOR_VARIANTS, linear, linear_question
from lbrx.devices.metal.ops.matmul import VARIANTS, product_question
from lbrx.engine.attention_options import AttentionOptions
from lbrx.errors import UsageError
from lbrx.jobs.bench.cases import WIDTHS

_CODINGS = ("f16", "bf16", "q4_0", "q8_0", "q4_k", "q6_k")
_ACTIVATIONS = {"f32": np.float32, "f16": np.float16}  # what models compute with, and what they store between
_HEAD_SIZES = (64, 128)
_HEADS = 8


class Question(NamedTuple):
    """What is asked, what the answers can be, and how one of them is run."""

    name: str
    variants: tuple[str, ...]
    run: Callable[[str], DeviceArray]


def tune_all(
    context: MetalContext,
    size: str,
    *,
    tuning: Tuning | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Measure variants of products and of attention, and remember the best: seconds by question and variant."""
    if size not in WIDTHS:
        raise UsageError(f"unknown size {size!r}; expected one of {', '.join(WIDTHS)}")
    seconds: dict[str, dict[str, float]] = {}
    for question in _questions(context, WIDTHS[size]):
        if progress is not None:
            progress(f"tuning {question.name}")
        seconds[question.name] = tune(context, question.name, question.variants, question.run, tuning=tuning)
    return seconds


def _questions(context: MetalContext, width: int) -> Iterator[Question]:
    for coding in _CODINGS:
        shape = (width, width)
        weight = DeviceWeight(coding, shape, empty(context, "u8", (weight_bytes(coding, shape),)))
        yield _vector(context, weight)
        for dtype in _ACTIVATIONS:
            yield _product(context, weight, width // 4, dtype)
    for size in _HEAD_SIZES:
        for dtype in _ACTIVATIONS:
            yield _attention(context, size, width // 2, dtype)
        yield _one_query(context, size, 4 * width)


def _ones(context: MetalContext, dtype: str, *shape: int) -> DeviceArray:
    return upload(context, np.ones(shape, _ACTIVATIONS[dtype]))


def _vector(context: MetalContext, weight: DeviceWeight) -> Question:
    x = _ones(context, "f32", 1, weight.shape[1])
    return Question(
        linear_question(weight, 1), VECTOR_VARIANTS, lambda variant: linear(context, x, weight, variant=variant)
    )


def _product(context: MetalContext, weight: DeviceWeight, vectors: int, dtype: str) -> Question:
    x = _ones(context, dtype, vectors, weight.shape[1])
    name = product_question(context, dtype, weight.coding, (vectors, *weight.shape))
    return Question(name, VARIANTS, lambda variant: linear(context, x, weight, variant=variant))


def _attention(context: MetalContext, size: int, queries: int, dtype: str) -> Question:
    q, k = _ones(context, dtype, _HEADS, queries, size), _ones(context, dtype, _HEADS, queries, size)
    return Question(
        attention_question(dtype, size, size, queries),
        block_names(context, dtype, size, size),
        lambda variant: attention(context, q, k, k, kernel="long", variant=variant),
    )


def _one_query(context: MetalContext, size: int, keys: int) -> Question:
    q, k = _ones(context, "f32", _HEADS, 1, size), _ones(context, "f32", _HEADS, keys, size)
    return Question(
        vector_question(_HEADS, keys, size),
        PARTS,
        lambda variant: attention(context, q, k, k, AttentionOptions(causal=False), kernel="vector", variant=variant),
    )
