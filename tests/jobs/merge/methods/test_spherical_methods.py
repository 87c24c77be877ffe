"""Methods over angles against NumPy in float64, also where angles do not exist."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lbrx import tensor
from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.karcher import karcher
from lbrx.jobs.merge.methods.model_stock import model_stock
from lbrx.jobs.merge.methods.multislerp import multislerp
from lbrx.jobs.merge.methods.nuslerp import nuslerp
from lbrx.jobs.merge.methods.slerp import slerp

Array = npt.NDArray[Any]


def random_arrays(count: int, shape: tuple[int, ...], seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(np.float32) for _ in range(count)]


def arc(first: Array, second: Array, t: float) -> Array:
    """The point at t of the arc between two vectors."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    angle = math.acos(float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())))
    return np.asarray((math.sin((1 - t) * angle) * a + math.sin(t * angle) * b) / math.sin(angle))


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 1.5])
def test_slerp(t: float) -> None:
    a, b = random_arrays(2, (9, 7))
    np.testing.assert_allclose(slerp(tensor(a), [tensor(b)], t=t).numpy(), arc(a, b, t), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", [2.0, -2.0])
def test_slerp_goes_straight_between_parallel_tensors(factor: float) -> None:
    (a,) = random_arrays(1, (9, 7))
    got = slerp(tensor(a), [tensor(a * np.float32(factor))], t=0.25).numpy()
    np.testing.assert_allclose(got, a * (0.75 + 0.25 * factor), rtol=1e-6)


def test_slerp_with_zeros_is_at_a_right_angle() -> None:
    (a,) = random_arrays(1, (9, 7))
    got = slerp(tensor(np.zeros_like(a)), [tensor(a)], t=0.25).numpy()
    np.testing.assert_allclose(got, math.sin(math.pi / 8) * a, rtol=1e-6)


def test_nuslerp_takes_its_place_on_the_arc_from_the_weights() -> None:
    a, b = random_arrays(2, (5, 8))
    got = nuslerp([tensor(a), tensor(b)], weight=[1.0, 3.0]).numpy()
    np.testing.assert_allclose(got, arc(a, b, 0.75), rtol=1e-5, atol=1e-6)
    halfway = nuslerp([tensor(a), tensor(b)], weight=[1.0, -1.0]).numpy()
    np.testing.assert_allclose(halfway, arc(a, b, 0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (5, 8), (3, 4, 5)])
@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("has_base", [False, True])
def test_nuslerp_of_every_vector_along_an_axis(shape: tuple[int, ...], row_wise: bool, has_base: bool) -> None:
    a, b, base = random_arrays(3, shape)
    origin = base if has_base else np.zeros_like(base)
    axis = 0 if row_wise else len(shape) - 1
    expected = np.empty(shape)
    for location in np.ndindex(*shape[:axis], *shape[axis + 1 :]):
        line = (*location[:axis], slice(None), *location[axis:])
        expected[line] = origin[line] + arc(a[line] - origin[line], b[line] - origin[line], 0.25)
    got = nuslerp(
        [tensor(a), tensor(b)],
        tensor(base) if has_base else None,
        weight=[3.0, 1.0],
        nuslerp_flatten=False,
        nuslerp_row_wise=row_wise,
    )
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_nuslerp_goes_straight_along_equal_and_zero_rows() -> None:
    a = np.array([[1, 2], [0, 0], [0, 0]], np.float32)
    b = np.array([[1, 2], [0, 0], [4, 0]], np.float32)
    got = nuslerp([tensor(a), tensor(b)], weight=[1.0, 1.0], nuslerp_flatten=False).numpy()
    np.testing.assert_allclose(got, np.array([[1.0, 2.0], [0.0, 0.0], [math.sqrt(8), 0.0]]), rtol=1e-6)


def test_multislerp_is_the_mean_direction_with_the_mean_length() -> None:
    arrays = random_arrays(4, (6, 5))
    weight = np.array([0.2, 0.5, 0.1, 0.4])
    shares = weight / weight.sum()
    norms = np.array([np.linalg.norm(array.astype(np.float64)) for array in arrays])
    mean = sum(share * array / norm for share, array, norm in zip(shares, arrays, norms, strict=True))
    expected = mean / np.linalg.norm(np.asarray(mean)) * (shares * norms).sum()
    got = multislerp([tensor(array) for array in arrays], weight=weight.tolist()).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_multislerp_of_directions_that_cancel_is_the_weighted_sum() -> None:
    (a,) = random_arrays(1, (6, 5))
    got = multislerp([tensor(a), tensor(-a)], weight=[1.0, 1.0], eps=1e-6).numpy()
    np.testing.assert_allclose(got, np.zeros_like(a), atol=1e-6)


def test_multislerp_needs_weights_that_do_not_cancel() -> None:
    with pytest.raises(UsageError, match=r"multislerp: the weights \[1.0, -1.0\] sum to zero"):
        multislerp([tensor([1.0]), tensor([2.0])], weight=[1.0, -1.0])


def reference_karcher(arrays: list[Array], steps: int) -> Array:
    """The spherical mean by many steps along the mean tangent, on the vectors themselves."""
    units = [array.astype(np.float64) / np.linalg.norm(array.astype(np.float64)) for array in arrays]
    mean = np.mean(units, axis=0)
    mean /= np.linalg.norm(mean)
    for _ in range(steps):
        tangents = []
        for unit in units:
            angle = math.acos(np.clip((unit * mean).sum(), -1, 1))
            tangents.append(angle / math.sin(angle) * (unit - math.cos(angle) * mean))
        tangent = np.mean(tangents, axis=0)
        length = np.linalg.norm(tangent)
        if length < 1e-12:
            break
        mean = math.cos(length) * mean + math.sin(length) * tangent / length
    return np.asarray(mean)


def test_karcher_is_the_mean_on_the_sphere() -> None:
    arrays = [array + np.float32(0.5 * k) for k, array in enumerate(random_arrays(3, (6, 5)))]
    scale = np.mean([np.linalg.norm(array) for array in arrays])
    got = karcher([tensor(array) for array in arrays], max_iter=100, tol=1e-9).numpy()
    np.testing.assert_allclose(got, scale * reference_karcher(arrays, 100), rtol=1e-4, atol=1e-5)


def test_karcher_without_steps_is_the_normalised_mean_direction() -> None:
    a, b = np.array([3, 0], np.float32), np.array([0, 1], np.float32)
    got = karcher([tensor(a), tensor(b)], max_iter=0).numpy()
    np.testing.assert_allclose(got, [math.sqrt(2), math.sqrt(2)], rtol=1e-6)


def test_karcher_of_zeros_counts_in_the_length_only() -> None:
    a, zero = np.array([3, 4], np.float32), np.zeros(2, np.float32)
    np.testing.assert_allclose(karcher([tensor(a), tensor(zero)]).numpy(), a / 2, rtol=1e-6)
    np.testing.assert_array_equal(karcher([tensor(zero), tensor(zero)]).numpy(), zero)


def test_karcher_of_opposite_directions_takes_the_first() -> None:
    a = np.array([3, 4], np.float32)
    np.testing.assert_allclose(karcher([tensor(a), tensor(-a)], max_iter=0).numpy(), a, rtol=1e-6)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 3, 4)])
@pytest.mark.parametrize("filter_wise", [False, True])
def test_model_stock(shape: tuple[int, ...], filter_wise: bool) -> None:
    base, *models = random_arrays(4, shape)
    shared = random_arrays(1, shape, seed=9)[0]
    models = [model * np.float32(0.3) + shared for model in models]
    axes = -1 if filter_wise else tuple(range(len(shape)))
    deltas = [model.astype(np.float64) - base for model in models]
    norms = [np.sqrt((delta * delta).sum(axes, keepdims=True)) for delta in deltas]
    pairs = [(0, 1), (0, 2), (1, 2)]
    cosine = sum((deltas[i] * deltas[j]).sum(axes, keepdims=True) / (norms[i] * norms[j]) for i, j in pairs) / 3
    t = 3 * cosine / (1 + 2 * cosine)
    expected = t * np.mean(models, axis=0) + (1 - t) * base
    got = model_stock(tensor(base), [tensor(model) for model in models], filter_wise=filter_wise).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_model_stock_of_opposite_rows_is_the_base() -> None:
    base = np.array([[1], [2]], np.float32)
    models = [tensor(base + np.array([[1], [3]], np.float32)), tensor(base - np.array([[1], [-3]], np.float32))]
    np.testing.assert_array_equal(model_stock(tensor(base), models, filter_wise=True).numpy(), [[1], [5]])


def test_model_stock_needs_two_models() -> None:
    with pytest.raises(UsageError, match="takes at least 2 models besides the base, found 1"):
        model_stock(tensor([1.0]), [tensor([1.0])])


def test_one_model_is_returned_as_it_is() -> None:
    tiny = np.full((4, 4), 1e-7, np.float32)
    np.testing.assert_array_equal(karcher([tensor(tiny)]).numpy(), tiny)
    (values,) = random_arrays(1, (5, 7))
    np.testing.assert_array_equal(multislerp([tensor(values)], weight=[0.0]).numpy(), values)


def test_karcher_of_models_without_a_direction_is_zero() -> None:
    tiny = np.full((4,), 1e-7, np.float32)
    np.testing.assert_array_equal(karcher([tensor(tiny), tensor(tiny)]).numpy(), np.zeros(4, np.float32))
