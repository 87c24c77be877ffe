"""Encoding with error feedback: codes in blocks, the kernel against NumPy, and errors of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.kernels.codecs.nonlinear import VALUES
from lbrx.errors import ShapeError
from lbrx.ops.feedback import decoded, encode_with_feedback
from lbrx.ops.feedback_factors import column_order, feedback_factors
from lbrx.tensors.codecs.code_bits import block_fields, code_bits
from lbrx.tensors.codecs.codec import codec
from support.references import THREADS, normal

LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl")
CODED = (*LEGACY, "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
OTHERS = ("iq2_s", "iq3_s", "iq1_m", "mxfp4")
COLUMNS = 512
MOST_ERROR = {"iq2_s": 0.8, "iq3_s": 0.75, "q4_0": 0.75, "iq4_nl": 0.75, "q2_k": 0.8, "q4_k": 0.85, "q3_k": 0.75}


@pytest.fixture(scope="module")
def inputs() -> npt.NDArray[np.float32]:
    """Inputs whose columns depend on each other and differ in size."""
    random = np.random.default_rng(3)
    mixing = random.standard_normal((COLUMNS, COLUMNS)) * np.exp(random.standard_normal(COLUMNS))
    return (random.standard_normal((1024, COLUMNS)) @ mixing * 0.05).astype(np.float32)


def blocks_of(values: Any, name: str, importance: Any = None) -> npt.NDArray[np.uint8]:
    storage = lbrx.tensor(values).quantize(name, importance).realize().storage
    assert storage is not None
    blocks: npt.NDArray[np.uint8] = storage.read_at(0, storage.nbytes).reshape(-1, codec(name).block_bytes).copy()
    return blocks


@pytest.mark.parametrize("name", CODED)
def test_codes_are_where_decoders_find_them(name: str) -> None:
    record, bits = codec(name), code_bits(name)
    assert bits is not None
    blocks = blocks_of(normal(9, record.block_elements), name)
    codes = np.random.default_rng(1).integers(0, bits.top + 1, (9, record.block_elements)).astype(np.uint8)
    whole = blocks.copy()
    bits.put(whole, codes)
    probes = []
    for code in (0, 1, 8):
        probes.append(blocks.copy())
        bits.put(probes[-1], np.full_like(codes, min(code, bits.top)))
    low, next_level, eighth = (decoded(probe, name) for probe in probes)
    expected = np.array(VALUES)[codes] * eighth if bits.is_table else low + codes * (next_level - low)
    np.testing.assert_allclose(decoded(whole, name), expected, rtol=1e-5, atol=1e-5)


def test_factors_are_those_of_the_inverse() -> None:
    gram = np.cov(normal(8, 64))
    damped = gram + 0.005 * np.diag(gram.diagonal()) + 0.0001 * gram.diagonal().mean() * np.eye(8)
    order, upper = feedback_factors(gram, 0.0).ordered((4, 2))
    factors = upper.astype(np.float64)
    expected = np.linalg.inv(damped)[np.ix_(order, order)]
    np.testing.assert_allclose(factors.T @ factors, expected, rtol=1e-4, atol=1e-6)
    assert not np.tril(factors, -1).any()
    only_diagonal = feedback_factors(gram, 1.0).in_order(np.arange(8))
    assert np.count_nonzero(only_diagonal) == 8
    with pytest.raises(ShapeError, match="expected a square"):
        feedback_factors(gram[:4])


@pytest.mark.parametrize("widths", [(256, 32), (256, 16), (32,), (256, 32, 4)])
def test_columns_are_ordered_in_blocks(widths: tuple[int, ...]) -> None:
    sizes = np.square(normal(512))
    order = column_order(sizes, widths)
    assert sorted(order.tolist()) == list(range(512))
    largest = sizes[order]
    for outer, width in zip((512, *widths), (*widths, 1), strict=True):
        blocks = order.reshape(-1, width)
        assert (blocks // width == blocks[:, :1] // width).all()
        assert (np.diff(largest.reshape(-1, width).max(axis=1).reshape(-1, outer // width), axis=1) <= 0).all()
    kept = column_order(sizes, widths, inner=False).reshape(-1, widths[-1])
    assert (np.diff(kept, axis=1) == 1).all()
    np.testing.assert_array_equal(kept.min(axis=1), order.reshape(-1, widths[-1]).min(axis=1))


def by_columns(values: Any, lows: Any, steps: Any, order: Any, factors: Any, levels: Any) -> npt.NDArray[np.float64]:
    """Columns rounded one after the other, in an order, to the nearest of low + level step, in float64."""
    left, rounded = values.astype(np.float64), np.empty(values.shape)
    for place, column in enumerate(order):
        candidates = lows[:, column, None] + steps[:, column, None] * levels
        nearest = np.abs(candidates - left[:, column, None]).argmin(axis=1)
        rounded[:, column] = candidates[np.arange(len(values)), nearest]
        error = (left[:, column] - rounded[:, column]) / factors[place, place]
        left[:, order] -= error[:, None] * factors[place]
    return rounded


@pytest.mark.parametrize("name", CODED)
def test_columns_are_rounded_one_by_one_with_the_scales_that_are_stored(name: str) -> None:
    columns = codec(name).block_elements
    values, gram = normal(50, columns, scale=0.1), np.cov(normal(columns, 300))
    factors, importance = feedback_factors(gram), gram.diagonal().astype(np.float32)
    blocks, bits = encode_with_feedback(values, name, importance, factors), code_bits(name)
    assert bits is not None
    probes = []
    for code in (0, 1, 8):
        probes.append(blocks.copy())
        bits.put(probes[-1], np.full((50, columns), min(code, bits.top), np.uint8))
    low, high, eighth = (decoded(probe, name) for probe in probes)
    levels = np.array(VALUES) if bits.is_table else np.arange(bits.top + 1)
    lows, steps = (0 * low, eighth) if bits.is_table else (low, high - low)
    widths = sorted({field.elements for field in block_fields(name)}, reverse=True)
    expected = by_columns(values, lows, steps, *factors.ordered(widths), levels)
    assert np.isclose(decoded(blocks, name), expected, rtol=1e-3, atol=1e-5).mean() > 0.98


@pytest.mark.parametrize("name", CODED)
def test_scales_are_better_than_without_feedback(name: str, inputs: npt.NDArray[np.float32]) -> None:
    """With a Gram matrix that is drawn to its diagonal, only the search for scales counts."""
    weight, importance = normal(40, COLUMNS, scale=0.02), np.square(inputs).mean(axis=0)
    blocks = encode_with_feedback(weight, name, importance, feedback_factors(np.diag(importance)))
    found = decoded(blocks.reshape(-1, codec(name).block_bytes), name).reshape(weight.shape)
    plain = lbrx.tensor(weight).quantize(name, importance if codec(name).takes_imatrix else None).numpy()
    errors = [float((np.square(each - weight) * importance).sum()) for each in (found, plain)]
    assert errors[0] < 1.02 * errors[1]


@pytest.mark.parametrize("name", [*CODED, *OTHERS])
def test_errors_of_products_become_smaller(name: str, inputs: npt.NDArray[np.float32]) -> None:
    weight, gram = normal(24, COLUMNS, scale=0.02), inputs.T @ inputs
    importance = gram.diagonal() / np.float32(len(inputs))
    plain = lbrx.tensor(weight).quantize(name, importance if codec(name).takes_imatrix else None).numpy()
    blocks = encode_with_feedback(weight, name, importance, feedback_factors(gram))
    assert blocks.nbytes == codec(name).nbytes(weight.shape)
    found = decoded(blocks.reshape(-1, codec(name).block_bytes), name).reshape(weight.shape)
    errors = [float(np.square((each - weight) @ inputs.T).sum()) for each in (found, plain)]
    assert errors[0] < MOST_ERROR.get(name, 0.9) * errors[1]


def test_blocks_do_not_depend_on_threads_or_other_rows(inputs: npt.NDArray[np.float32]) -> None:
    weight, gram = normal(70, COLUMNS, scale=0.02), inputs.T @ inputs
    importance, factors = gram.diagonal() / np.float32(len(inputs)), feedback_factors(gram)
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(encode_with_feedback(weight, "q4_k", importance, factors).tobytes())
    assert len(set(found)) == 1
    assert encode_with_feedback(weight[:9], "q4_k", importance, factors).tobytes() == found[0][: 9 * 288]


def test_columns_without_inputs_are_rounded_to_near_values() -> None:
    weight, gram = normal(8, 64, scale=0.02), np.zeros((64, 64), np.float32)
    blocks = encode_with_feedback(weight, "q8_0", np.zeros(64, np.float32), feedback_factors(gram))
    found = decoded(blocks.reshape(-1, 34), "q8_0").reshape(8, 64)
    plain = lbrx.tensor(weight).quantize("q8_0").numpy()
    assert np.square(found - weight).sum() < np.square(plain - weight).sum()
