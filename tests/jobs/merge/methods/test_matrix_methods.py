"""Methods that decompose matrices, consensus and checkpoint averaging, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lbrx import tensor, using
from lbrx.errors import UsageError
from lbrx.jobs.merge.methods import MergeContext
from lbrx.jobs.merge.methods.checkpoint_average import checkpoint_average
from lbrx.jobs.merge.methods.consensus import consensus_ta
from lbrx.jobs.merge.methods.iso_c import iso_c
from lbrx.jobs.merge.methods.tsv_m import tsv_m
from lbrx.jobs.merge.methods.wudi import wudi

Array = npt.NDArray[Any]
LAYER = MergeContext("model.layers.0.mlp.up_proj.weight")


def models(count: int, shape: tuple[int, ...] = (9, 6)) -> tuple[Array, list[Array]]:
    random = np.random.default_rng(4)
    base = random.standard_normal(shape).astype(np.float32)
    return base, [base + 0.1 * random.standard_normal(shape).astype(np.float32) for _ in range(count)]


def deltas_of(base: Array, others: list[Array]) -> list[Array]:
    return [(other - base).astype(np.float64) for other in others]


def close(got: Any, expected: Array) -> None:
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_checkpoint_average_weights_are_differences_of_the_decay() -> None:
    _, arrays = models(4)
    cosine = [(math.cos(math.pi * k / 4) - math.cos(math.pi * (k + 1) / 4)) / 2 for k in range(4)]
    close(checkpoint_average([tensor(a) for a in arrays]), np.mean(arrays, axis=0))
    expected = sum(share * array for share, array in zip(cosine, arrays, strict=True))
    close(checkpoint_average([tensor(a) for a in arrays], decay="cosine"), expected)
    with pytest.raises(UsageError, match="decay is 'step'; expected one of linear, cosine, sqrt"):
        checkpoint_average([tensor(a) for a in arrays], decay="step")


@pytest.mark.parametrize("least", [1, 2, 3])
def test_consensus_keeps_elements_that_enough_models_need(least: int) -> None:
    base, arrays = models(3)
    weight, threshold = [1.0, 0.5, 2.0], [0.4, 0.6, 0.2]
    deltas = [share * delta for share, delta in zip(weight, deltas_of(base, arrays), strict=True)]
    whole = sum(deltas)
    needs = [np.abs(d) >= t * np.abs(whole - d) for d, t in zip(deltas, threshold, strict=True)]
    expected = base + 0.7 * whole * (np.sum(needs, axis=0) >= least)
    got = consensus_ta(
        tensor(base), [tensor(a) for a in arrays], weight=weight, threshold=threshold, least=least, lambda_=0.7
    )
    close(got, expected)


def test_iso_c_gives_all_directions_the_mean_singular_value() -> None:
    base, arrays = models(3)
    left, values, right = np.linalg.svd(sum(deltas_of(base, arrays)), full_matrices=False)
    expected = base + 0.5 * values.mean() * left @ right
    close(iso_c(tensor(base), [tensor(a) for a in arrays], weight=[1.0] * 3, lambda_=0.5, context=LAYER), expected)


def test_tsv_m_keeps_leading_directions_and_makes_them_orthogonal() -> None:
    base, arrays = models(2)
    parts = [np.linalg.svd(delta, full_matrices=False) for delta in deltas_of(base, arrays)]
    left, right = np.hstack([u[:, :3] for u, _, _ in parts]), np.vstack([v[:3] for _, _, v in parts])
    (a, _, b), (c, _, d) = (np.linalg.svd(each, full_matrices=False) for each in (left, right))
    values = np.concatenate([s[:3] for _, s, _ in parts])
    expected = base + (a @ b) @ np.diag(values) @ (c @ d)
    close(tsv_m(tensor(base), [tensor(a) for a in arrays], weight=[1.0, 1.0], context=LAYER), expected)


def test_wudi_has_the_least_interference() -> None:
    base, arrays = models(3, (4, 6))
    deltas = deltas_of(base, arrays)

    def interference(change: Array) -> float:
        return sum(float((((change - d) @ d.T) ** 2).sum() / (d**2).sum()) for d in deltas)

    merged = wudi(tensor(base), [tensor(a) for a in arrays], weight=[1.0] * 3, ridge=1e-12, context=LAYER)
    best = interference(merged.numpy().astype(np.float64) - base)
    random = np.random.default_rng(0)
    found = merged.numpy().astype(np.float64) - base
    for _ in range(20):
        assert interference(found + 0.01 * random.standard_normal(found.shape)) > best
    assert best < interference(sum(deltas))
    assert best < interference(sum(deltas) / 3)


@pytest.mark.parametrize("method", [iso_c, tsv_m, wudi])
@pytest.mark.parametrize(
    ("shape", "name"), [((7,), "w"), ((9, 6), "model.embed_tokens.weight"), ((9, 6), "lm_head.weight")]
)
def test_other_tensors_get_the_mean_of_the_differences(method: Any, shape: tuple[int, ...], name: str) -> None:
    base, arrays = models(2, shape)
    got = method(tensor(base), [tensor(a) for a in arrays], weight=[1.0, 1.0], context=MergeContext(name))
    close(got, base + sum(deltas_of(base, arrays)) / 2)


@pytest.mark.parametrize("method", [iso_c, tsv_m, wudi])
def test_bytes_do_not_depend_on_threads(method: Any) -> None:
    base, arrays = models(2, (80, 60))
    results = []
    for threads in (1, 2):
        with using(threads=threads):
            merged = method(tensor(base), [tensor(a) for a in arrays], weight=[1.0, 0.5], context=LAYER)
            results.append(merged.numpy().tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("method", [iso_c, tsv_m, wudi])
def test_models_that_equal_the_base_change_nothing(method: Any) -> None:
    base, _ = models(1)
    close(method(tensor(base), [tensor(base)] * 2, weight=[1.0, 1.0], context=LAYER), base)


def test_the_head_is_averaged_and_other_outputs_are_not() -> None:
    base, others = models(2)
    given = tensor(base), [tensor(other) for other in others]
    mean = base + sum(deltas_of(base, others)) / 2
    close(iso_c(*given, weight=[1.0, 1.0], context=MergeContext("output.weight")), mean)
    layer = iso_c(*given, weight=[1.0, 1.0], context=LAYER).numpy()
    for name in ("blk.0.attn_output.weight", "model.layers.0.self_attn.output.weight"):
        np.testing.assert_array_equal(iso_c(*given, weight=[1.0, 1.0], context=MergeContext(name)).numpy(), layer)
