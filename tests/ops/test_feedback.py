"""Encoding with error feedback: codes in blocks, the kernel against NumPy, and errors of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.kernels.codecs.nonlinear import VALUES
from lbrx.errors import ShapeError
from lbrx.ops.feedback import decoded, encode_with_feedback, feedback_factors
from lbrx.tensors.codecs.code_bits import code_bits
from lbrx.tensors.codecs.codec import codec
from support.references import THREADS, normal

LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl")
CODED = (*LEGACY, "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
OTHERS = ("iq2_s", "iq3_s", "iq1_m", "mxfp4")
COLUMNS = 512


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
    damped = gram + 0.01 * gram.diagonal().mean() * np.eye(8)
    factors = feedback_factors(gram, 0.0).astype(np.float64)
    np.testing.assert_allclose(factors.T @ factors, np.linalg.inv(damped), rtol=1e-4, atol=1e-6)
    assert not np.tril(factors, -1).any()
    only_diagonal = feedback_factors(gram, 1.0)
    assert np.count_nonzero(only_diagonal) == 8
    with pytest.raises(ShapeError, match="expected a square"):
        feedback_factors(gram[:4])


def by_columns(values: Any, lows: Any, steps: Any, factors: Any, top: int) -> npt.NDArray[np.float64]:
    """Columns rounded one after the other, in float64."""
    left, rounded = values.astype(np.float64), np.empty(values.shape)
    for column in range(values.shape[1]):
        codes = np.clip(np.rint((left[:, column] - lows[:, column]) / steps[:, column]), 0, top)
        rounded[:, column] = lows[:, column] + codes * steps[:, column]
        error = (left[:, column] - rounded[:, column]) / factors[column, column]
        left -= error[:, None] * factors[column]
    return rounded


def test_a_block_is_rounded_column_by_column() -> None:
    values, gram = normal(50, 32, scale=0.1), np.cov(normal(32, 80))
    factors, importance = feedback_factors(gram), gram.diagonal().astype(np.float32)
    blocks = blocks_of(values, "q4_1", importance)
    bits = code_bits("q4_1")
    assert bits is not None
    found = decoded(encode_with_feedback(values, "q4_1", importance, factors), "q4_1")
    low, high = blocks.copy(), blocks.copy()
    bits.put(low, np.zeros((50, 32), np.uint8))
    bits.put(high, np.ones((50, 32), np.uint8))
    lows = decoded(low, "q4_1")
    expected = by_columns(values, lows, decoded(high, "q4_1") - lows, factors, 15)
    assert np.isclose(found, expected, rtol=1e-4, atol=1e-5).mean() > 0.99


@pytest.mark.parametrize("name", [*CODED, *OTHERS])
def test_errors_of_products_become_smaller(name: str, inputs: npt.NDArray[np.float32]) -> None:
    weight, gram = normal(24, COLUMNS, scale=0.02), inputs.T @ inputs
    importance = gram.diagonal() / np.float32(len(inputs))
    plain = lbrx.tensor(weight).quantize(name, importance if codec(name).takes_imatrix else None).numpy()
    blocks = encode_with_feedback(weight, name, importance, feedback_factors(gram))
    assert blocks.nbytes == codec(name).nbytes(weight.shape)
    found = decoded(blocks.reshape(-1, codec(name).block_bytes), name).reshape(weight.shape)
    errors = [float(np.square((each - weight) @ inputs.T).sum()) for each in (found, plain)]
    assert errors[0] < 0.95 * errors[1]


def test_blocks_do_not_depend_on_threads_or_other_rows(inputs: npt.NDArray[np.float32]) -> None:
    weight, gram = normal(70, COLUMNS, scale=0.02), inputs.T @ inputs
    importance, factors = gram.diagonal() / np.float32(len(inputs)), feedback_factors(gram)
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(encode_with_feedback(weight, "q4_k", importance, factors).tobytes())
    assert len(set(found)) == 1
    assert encode_with_feedback(weight[:9], "q4_k", importance, factors).tobytes() == found[0][: 9 * 288]


def test_columns_without_inputs_are_rounded_as_usual() -> None:
    weight, gram = normal(8, 64, scale=0.02), np.zeros((64, 64), np.float32)
    found = decoded(encode_with_feedback(weight, "q8_0", np.zeros(64, np.float32), feedback_factors(gram)), "q8_0")
    assert np.isclose(found.reshape(8, 64), lbrx.tensor(weight).quantize("q8_0").numpy(), atol=1e-7).mean() > 0.99
