"""Products with activations of 8 bits: bounds, equal bytes, and what the setting does not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.build.native import MULTIPLIES_PAIRS
from lbrx.devices.cpu.ops.coded_groups import CODED_GROUPS
from lbrx.devices.cpu.ops.gemm_i16 import FORMS, WORDS
from lbrx.devices.cpu.simd.processor import MULTIPLIES_BF16
from lbrx.engine.device import device
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import Recorder
from lbrx.errors import UsageError
from lbrx.ops import linear, matmul
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage
from support.references import THREADS, coded_bound, normal, product_bound, weight_of, wide

Floats = npt.NDArray[np.float32]


def _in_8_bits(x: Any, weight: lbrx.Tensor) -> Floats:
    with lbrx.using(activation_bits=8):
        return linear(x, weight)


def _check(x: Floats, weight: lbrx.Tensor) -> None:
    rows, vectors = wide(weight), wide(x)
    bound = 2 * product_bound(vectors, rows) + coded_bound(vectors, rows, 8)  # twice: offsets are terms of their own
    error = abs(_in_8_bits(x, weight) - vectors @ rows.T)
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


@pytest.mark.parametrize("vectors", [1, 4, 5, 33])
@pytest.mark.parametrize("type_name", CODED_GROUPS)
def test_every_codec_keeps_the_bound(type_name: str, vectors: int) -> None:
    weight, x = weight_of(type_name, 11, 768), normal(vectors, 768)
    _check(x, weight)
    if vectors < 5 or MULTIPLIES_PAIRS:
        assert not np.array_equal(_in_8_bits(x, weight), linear(x, weight))


@pytest.mark.parametrize("vectors", [2, 40])
@pytest.mark.parametrize("blocks", [1, 7, 17])
@pytest.mark.parametrize("type_name", [name for name in CODED_GROUPS if codec(name).block_elements < 256])
def test_rows_that_are_no_whole_groups(type_name: str, blocks: int, vectors: int) -> None:
    columns = codec(type_name).block_elements * blocks
    _check(normal(vectors, columns), weight_of(type_name, 70, columns))


@pytest.mark.skipif(not MULTIPLIES_PAIRS, reason="on this processor BLAS multiplies many vectors")
@pytest.mark.parametrize("type_name", CODED_GROUPS)
def test_products_of_bytes_have_the_bits_of_products_of_words(type_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weight_of(type_name, 70, 768), normal(37, 768)
    in_bytes = _in_8_bits(x, weight)
    monkeypatch.setitem(FORMS, 8, WORDS._replace(suffix="_in_8_bits"))
    np.testing.assert_array_equal(_in_8_bits(x, weight), in_bytes)


def _adversarial(columns: int) -> Floats:
    """A large number in each block whose others are half a step; all at the limit; alternating; and one number."""
    half_steps = np.full(columns, 0.5 / 127, np.float32)
    half_steps[::32] = 1
    limits = np.full(columns, 1e35, np.float32)
    signs = np.where(np.arange(columns) % 2, np.float32(-1), np.float32(1))
    single = np.zeros(columns, np.float32)
    single[5] = -7
    return np.stack([half_steps, limits, -limits, signs, -half_steps, single, np.float32(1e-20) * signs])


@pytest.mark.parametrize("count", [4, 7])
@pytest.mark.parametrize("type_name", CODED_GROUPS)
def test_numbers_that_round_worst(type_name: str, count: int) -> None:
    weight = weight_of(type_name, 9, 512)
    x = _adversarial(512)
    _check(x[:count], weight)
    _check(np.ascontiguousarray(x[-count:]), weight)


@pytest.mark.parametrize("vectors", [1, 20])
def test_the_smallest_and_the_largest_codes(vectors: int) -> None:
    """Blocks of Q8_0 of codes -128 and 127 only, whose sums are the largest."""
    block = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    codes = [np.full(32, code, np.int8).view(np.uint8) for code in (-128, 127)]
    content = np.concatenate([np.concatenate([block, each]) for each in codes for _ in range(16)])
    weight = lbrx.Tensor(Blocks(CpuStorage(content), "q8_0", (2, 512)))
    for x in (np.ones((vectors, 512), np.float32), -np.ones((vectors, 512), np.float32)):
        np.testing.assert_array_equal(_in_8_bits(x, weight), x @ wide(weight).T)


@pytest.mark.parametrize("vectors", [3, 37, 600])
@pytest.mark.parametrize("type_name", ["q4_0", "q4_k", "q6_k", "iq3_s", "bf16"])
def test_the_same_bytes_on_any_number_of_threads(type_name: str, vectors: int) -> None:
    weight, x = weight_of(type_name, 200, 256), normal(vectors, 256)
    results = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            results.append(_in_8_bits(x, weight))
    for result in results[1:]:
        np.testing.assert_array_equal(results[0], result)


@pytest.mark.parametrize("type_name", CODED_GROUPS)
def test_a_recorded_step_has_the_bits_of_the_operation(type_name: str) -> None:
    weight, x = weight_of(type_name, 40, 512), normal(2, 512)
    recorder = Recorder(2)
    with lbrx.using(activation_bits=8):
        step = device("cpu").compile_step(recorder.finish(linear(recorder.input(x.shape), weight)))  # type: ignore[arg-type]
    assert step is not None
    for given in (x, np.where(np.arange(512) == 3, np.float32(np.inf), x)):
        step.inputs[0][...] = given
        np.testing.assert_array_equal(step.run(KeyValueCache([])), _in_8_bits(given, weight))


@pytest.mark.parametrize("vectors", [2, 20])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("type_name", ["q4_0", "iq4_nl", "q6_k", "bf16"])
def test_activations_that_are_not_finite(type_name: str, number: float, vectors: int) -> None:
    weight, x = weight_of(type_name, 30, 256), normal(vectors, 256)
    x[1, 70] = number
    np.testing.assert_array_equal(_in_8_bits(x, weight), linear(x, weight))


@pytest.mark.skipif(not MULTIPLIES_BF16, reason="this processor does not multiply bf16")
def test_bf16_weights_take_many_vectors_rounded_to_bf16() -> None:
    weight, x = weight_of("bf16", 70, 320), normal(40, 320)
    error = abs(_in_8_bits(x, weight) - wide(x) @ wide(weight).T)
    assert (error <= product_bound(wide(x), wide(weight)) + 2.0**-8 * (abs(wide(x)) @ abs(wide(weight)).T)).all()
    rounded = lbrx.tensor(x).to("bf16").to("f32").numpy()
    np.testing.assert_array_equal(_in_8_bits(x, weight), _in_8_bits(rounded, weight))
    assert not np.array_equal(_in_8_bits(x, weight), linear(x, weight))
    x[3, 4] = 3.4e38  # rounds to infinity
    np.testing.assert_array_equal(_in_8_bits(x, weight), linear(x, weight))


@pytest.mark.parametrize("type_name", ["q4_0", "f32", "f16", "bf16"])
def test_products_that_are_no_activations_are_not_coded(type_name: str) -> None:
    weight, x = weight_of(type_name, 30, 256), normal(20, 256)
    expected = matmul(x, weight, transpose_b=True)
    with lbrx.using(activation_bits=8):
        np.testing.assert_array_equal(matmul(x, weight, transpose_b=True), expected)


@pytest.mark.parametrize("bits", [np.int64(8), 8.0])
def test_the_setting_is_a_plain_integer_in_files(bits: int) -> None:
    from lbrx.settings import arithmetic_version

    with lbrx.using(activation_bits=8):
        expected = arithmetic_version()
    with lbrx.using(activation_bits=bits) as current:
        assert type(current.activation_bits) is int
        assert arithmetic_version() == expected


def test_the_setting_is_restored_and_checked() -> None:
    from lbrx.settings import settings

    assert settings.activation_bits == 16
    with lbrx.using(activation_bits=8), lbrx.using(threads=1):
        assert settings.activation_bits == 8
    assert settings.activation_bits == 16
    with pytest.raises(UsageError, match="activation_bits is 4; expected 16 or 8"), lbrx.using(activation_bits=4):
        pass
