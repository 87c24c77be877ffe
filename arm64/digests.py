"""Digests of results, one line for each: ``python -m arm64.digests``. Lines of two processors can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import lbrx
from lbrx.jobs.merge.methods import MergeContext
from lbrx.jobs.merge.methods.model_stock import model_stock
from lbrx.jobs.merge.methods.slerp import slerp
from lbrx.jobs.merge.methods.task_arithmetic import breadcrumbs, dare_ties, ties
from lbrx.ops import attention, linear, rms_norm, silu, softmax
from lbrx.registry import CODECS
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.codec import codec

SHAPE = (64, 512)
Result = Callable[[], Any]


def _digest(value: Any) -> str:
    array = value.to("f32").numpy() if isinstance(value, lbrx.Tensor) else np.asarray(value)
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).tobytes()).hexdigest()[:12]


def _inputs() -> tuple[np.ndarray[Any, Any], ...]:
    generator = np.random.default_rng(7)
    first, third = (generator.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    second = generator.standard_normal(SHAPE) * np.exp(generator.uniform(-20, 20, SHAPE))
    first[3, 5], first[4, 6], first[5, 7], first[6, 8] = np.nan, np.inf, -np.inf, 1e-41
    return first, second.astype(np.float32), third


def results() -> Iterator[tuple[str, Result]]:
    """The name of each result, and the function that computes it."""
    first, second, third = _inputs()
    for dtype in ("bf16", "f16", "f8_e4m3", "f8_e5m2", "i32", "i8"):
        yield f"cast {dtype}", lambda dtype=dtype: lbrx.tensor(first).to(dtype)
    for dtype in ("f32", "bf16", "f16"):
        yield from _of_dtype(dtype, *(lbrx.tensor(values).to(dtype).realize() for values in (first, second, third)))
    yield "uniform", lambda: lbrx.uniform(SHAPE, seed=3)
    yield "normal", lambda: lbrx.normal(SHAPE, seed=3)
    yield from _merges(third)
    yield from _products(third)
    yield "silu", lambda: silu(third)
    yield "softmax", lambda: softmax(third)
    yield "rms_norm", lambda: rms_norm(third, second[0])
    heads = third.reshape(4, 128, 64)
    yield "attention", lambda: attention(heads, heads, heads)


def _of_dtype(dtype: str, first: Any, second: Any, third: Any) -> Iterator[tuple[str, Result]]:
    yield f"linear merge {dtype}", lambda: (0.3 * first + 0.7 * second).to(dtype)
    for name in ("exp", "log", "sin", "cos", "acos", "sqrt", "tanh"):
        yield f"{name} {dtype}", lambda name=name: getattr(third * 0.3, name)()
    yield f"inf - inf {dtype}", lambda: (first - first).to(dtype)
    for name in ("sum", "norm", "max", "min", "mean", "argmax"):
        yield f"{name} {dtype}", lambda name=name: float(getattr(third, name)())
    yield f"sum of rows {dtype}", lambda: third.sum(axis=1)
    yield f"k-th largest {dtype}", lambda: float(abs(third).kth_largest(3000))


def _merges(values: Any) -> Iterator[tuple[str, Result]]:
    base, *models = (lbrx.tensor(values * factor + factor).to("bf16").realize() for factor in (1.0, 0.5, -0.7))
    two: Any = {"weight": [1.0, 0.5], "density": [0.5, 0.4]}
    yield "ties", lambda: ties(base, models, **two)
    yield "dare_ties", lambda: dare_ties(base, models, context=MergeContext("w"), **two)
    yield "breadcrumbs", lambda: breadcrumbs(base, models, gamma=[0.01, 0.02], **two)
    yield "slerp", lambda: slerp(base, models[:1], t=0.3)
    yield "model_stock", lambda: model_stock(base, models)


def _products(values: Any) -> Iterator[tuple[str, Result]]:
    weight = lbrx.tensor(values)
    one, many = (np.random.default_rng(8).standard_normal((count, SHAPE[1])).astype(np.float32) for count in (1, 9))
    for name in (*CODECS, "int8", "int4", "int2"):
        if name in CODECS and not codec(name).can_encode:
            continue
        needs_imatrix = name in CODECS and codec(name).needs_imatrix
        blocks = weight.quantize(name, imatrix=np.ones(SHAPE[1]) if needs_imatrix else None).realize()
        yield f"encode {name}", lambda blocks=blocks: blocks.raw()
        yield f"decode {name}", lambda blocks=blocks: blocks * 1
        yield f"linear {name}, one vector", lambda blocks=blocks: linear(one, blocks)
    for bits in (2, 3, 4, 5, 6, 8):
        mode = mlx.MlxMode("affine", bits, 64)
        coded = mlx.encoded_mlx(weight.to("bf16"), mode)
        decoded = mlx.dequantize(coded.weight.realize(), coded.scales.realize(), coded.biases.realize(), mode)
        yield f"encode MLX {bits} bit", lambda coded=coded: coded.weight.raw()
        yield f"linear MLX {bits} bit, one vector", lambda decoded=decoded: linear(one, decoded)
    for dtype in ("f32", "bf16", "f16"):
        stored = weight.to(dtype).realize()
        yield f"linear {dtype}, one vector", lambda stored=stored: linear(one, stored)
        yield f"linear {dtype}, nine vectors", lambda stored=stored: linear(many, stored)


def main() -> None:
    """Print the digests."""
    for name, result in results():
        print(f"{name}: {_digest(result())}", flush=True)


if __name__ == "__main__":
    main()
