"""Fused passes on emulated Metal: what the operations' contracts ask of the CPU, bit for bit the same."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.devices.explain import explain
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.context.profiler import ProfiledContext
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from lbrx.engine.device import CpuFallback, fallbacks
from support.metal_passes import assert_same_bits, check, device, on_both, on_metal
from support.metal_shaders import needs_clang
from support.strategies import numpy_type, special_values

pytestmark = needs_clang
RANDOM = np.random.default_rng(11)
REVERSED = EmulatorSettings(order="reverse")


def any_bits(name: str, count: int) -> Any:
    numpy_dtype = numpy_type(name)
    if name in ("i4", "i2", "bool"):
        low, high = {"i4": (-8, 8), "i2": (-2, 2), "bool": (0, 2)}[name]
        return RANDOM.integers(low, high, count).astype(numpy_dtype)
    return RANDOM.integers(0, 256, (count, numpy_dtype.itemsize), np.uint8).view(numpy_dtype).reshape(-1)


def pairs(left: str, right: str) -> tuple[Any, Any]:
    """Every pair of special values, and pairs of any bits whatever."""
    one, other = special_values(left), special_values(right)
    first = np.concatenate([np.repeat(one, other.size), any_bits(left, 2001)])
    return first, np.concatenate([np.tile(other, one.size), any_bits(right, 2001)])


@pytest.mark.parametrize(("left", "right"), [("f32", "f32"), ("bf16", "f16"), ("f8_e4m3", "f8_e5m2"), ("i16", "bf16")])
def test_arithmetic_of_floats(left: str, right: str) -> None:
    a, b = pairs(left, right)
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    dispatches = check(lambda: (x + y, x - y, x * y, x / y, x.minimum(y), x.maximum(y), x < y, x >= y, x == y, x != y))
    assert dispatches == 1


@pytest.mark.parametrize(
    ("left", "right"), [("i64", "i64"), ("i32", "i32"), ("i8", "u8"), ("i16", "i16"), ("i4", "i2")]
)
def test_arithmetic_of_integers_wraps(left: str, right: str) -> None:
    a, b = pairs(left, right)
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    assert check(lambda: (x + y, x - y, x * y, x.minimum(y), -x, abs(x), x.sign(), x > y, x & y, x ^ y, ~x | y)) == 1


def test_bools() -> None:
    x, y = (lbrx.tensor(values) for values in pairs("bool", "bool"))
    check(lambda: (x + y, x * y, x & y, x | y, x ^ y, ~x, abs(x), lbrx.where(x, y.to("f32"), -2.0)))


def test_functions_and_rounding_of_floats() -> None:
    everyday = np.linspace(-100, 100, 20_001).astype(np.float32)
    x = lbrx.tensor(np.concatenate([special_values("f32"), any_bits("f32", 3000), everyday]))
    check(lambda: (-x, abs(x), x.sign(), x.floor(), x.round(), abs(x).sqrt(), x.isnan(), x.exp(), x.log(), x.acos()))


def test_sine_and_cosine_are_within_four_units_in_the_last_place() -> None:
    x = lbrx.tensor(np.linspace(-50, 50, 4001).astype(np.float32))
    got, expected, _ = on_both(lambda: (x.sin(), x.cos()))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * 2.0**-24)


TARGETS = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i64", "i32", "i16", "i8", "u8", "bool")


@pytest.mark.parametrize("source", ["f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i64", "i32", "i8", "i4"])
def test_casts_between_all_types_that_a_gpu_has(source: str) -> None:
    bits = np.arange(65536, dtype=np.uint32)
    everything = {"f16": bits.astype(np.uint16), "bf16": bits.astype(np.uint16)}.get(source)
    values = any_bits(source, 6000) if everything is None else everything.view(numpy_type(source))
    if source == "f32":
        halves = bits[:0x7C00:5].astype(np.uint16).view(np.float16).astype(np.float32)
        values = np.concatenate([values, halves, np.nextafter(halves, np.float32(0)), halves * np.float32(1.0003)])
    if source in ("i64", "i32"):
        values = np.concatenate([values, (1 << np.arange(0, 31)) + np.arange(31)]).astype(values.dtype)
    x = lbrx.tensor(np.concatenate([special_values(source), values]))
    assert check(lambda: (*(x.to(name) for name in TARGETS), x.to("i4").to("i8"), x.to("i2").to("i8"))) == 1


def test_packed_results() -> None:
    x = lbrx.tensor(RANDOM.standard_normal(1003).astype(np.float32) * 4)
    check(lambda: (x.to("i4").to("f32"),))
    with on_metal() as counts:
        packed = x.to("i4").realize()
    assert counts.dispatches == 1
    assert_same_bits(packed.numpy(), x.to("i4").numpy().view(packed.numpy().dtype))


def test_random_numbers_are_those_of_the_cpu() -> None:
    check(
        lambda: (
            lbrx.uniform((300, 7), 42, "lm_head.weight") * 1,
            lbrx.normal((300, 7), 42, "noise") * 1,
            lbrx.arange(2100).reshape(300, 7) * 3,
        )
    )
    check(lambda: (lbrx.uniform((40, 50), 1, "s")[3:, ::7] * 2, lbrx.normal((40, 50), 1, "s").T * 1))


@pytest.mark.parametrize("count", [1, 17, 1023, 65_536, 200_001])
def test_reductions_of_whole_tensors(count: int) -> None:
    a = RANDOM.standard_normal(count).astype(np.float32)
    x, y = lbrx.tensor(a, "bf16"), lbrx.tensor(a[::-1].copy())
    assert check(lambda: (x.sum(), y.sum(), x.dot(y), x.norm(), (x * y).min(), x.max(), y.argmax(), x.mean())) == 1


def test_sums_beyond_the_range_of_f32() -> None:
    huge, tiny = lbrx.tensor(np.full(5000, 3e38, np.float32)), lbrx.tensor(np.full(5000, 1e-40, np.float32))
    check(lambda: (huge.sum(), huge.norm(), tiny.sum(), tiny.norm(), (-huge).dot(huge), tiny.dot(huge)))


def test_reductions_with_nan_and_infinities() -> None:
    values = RANDOM.standard_normal((6, 3000)).astype(np.float32)
    values[1, 700], values[2, 5], values[3, 2999] = np.nan, np.inf, -np.inf
    values[4, 10:12] = np.inf, -np.inf
    values[5, 1500:1502] = np.nan
    for row in values:
        x = lbrx.tensor(row)
        check(lambda x=x: (x.sum(), x.dot(x), x.min(), x.max(), x.argmax()))  # type: ignore[misc]


def test_reductions_of_integers() -> None:
    for name in ("i64", "i8"):
        x = lbrx.tensor(any_bits(name, 70_001))
        check(lambda x=x: (x.sum(), x.dot(x), x.min(), x.max(), x.argmax()))  # type: ignore[misc]


def test_strided_views_gathers_and_broadcasts() -> None:
    a = RANDOM.standard_normal((40, 30, 11)).astype(np.float32)
    x, row, packed = lbrx.tensor(a), lbrx.tensor(a[0, 0], "bf16"), lbrx.tensor(any_bits("i4", 600))
    check(
        lambda: (
            x.T * 2,
            x[::-2, 3:, ::3] + 1,
            x[:, :1] - x * row,
            x[:, 1].rows([3, 2, 39, 3]) + row,
            x.transpose(1, 0, 2)[:5].to("i8"),
            packed.reshape(30, 20).T[1:] * 1,
        )
    )


@pytest.mark.parametrize("shape", [(3, 70_000), (300, 1100), (5000, 17), (70_000, 1)])
def test_reductions_of_strided_views(shape: tuple[int, int]) -> None:
    x = lbrx.tensor(RANDOM.standard_normal((shape[0], shape[1] + 3)).astype(np.float32))[:, 2:-1]
    check(lambda: (x.sum(), (x * x).sum(), x.min(), x.argmax()))


@pytest.mark.parametrize("columns", [1, 16, 1025, 3000])
def test_rows(columns: int) -> None:
    a = RANDOM.standard_normal((9, columns)).astype(np.float32)
    x, y = lbrx.tensor(a), lbrx.tensor(a, "bf16")

    def softmax(values: lbrx.Tensor) -> lbrx.Tensor:
        shifted = (values - values.max(axis=-1, keepdims=True)).exp()
        return shifted / shifted.sum(axis=-1, keepdims=True)

    make = lambda: (softmax(x), y.sum(axis=-1), x.dot(y, axis=-1), y.min(axis=-1), x.argmax(axis=-1), softmax(y).sum())  # noqa: E731
    check(make)
    check(make, REVERSED)


def test_the_k_th_largest() -> None:
    few, many = RANDOM.standard_normal(5000).astype(np.float32), RANDOM.standard_normal(1_200_000).astype(np.float32)
    few[:50:2], few[1:50:2] = np.nan, np.copysign(np.nan, -1)
    few[50:2000] = 0.5
    x, y, whole = lbrx.tensor(few), lbrx.tensor(many, "bf16"), lbrx.tensor(any_bits("i64", 3000))
    check(lambda: (x.kth_largest(10), x.kth_largest(1000), x.kth_largest(4999), whole.kth_largest(77)))
    check(lambda: (abs(y).kth_largest(300_000), abs(y) >= abs(y).kth_largest(1000)))


@pytest.mark.parametrize(
    "settings", [REVERSED, EmulatorSettings(find_races=True, strict_simdgroups=True)], ids=["reversed", "races"]
)
def test_other_schedules_and_the_race_detector(settings: EmulatorSettings) -> None:
    x = lbrx.tensor(RANDOM.standard_normal((150, 900)).astype(np.float32))
    check(lambda: (x.sum(), x.argmax(), x * 2), settings)
    check(lambda: (x - x.sum(axis=-1, keepdims=True), x.kth_largest(5000)), settings)


def test_large_passes_are_cut_into_chunks_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.devices.metal.run.CHUNK_BYTES", 1 << 20)
    x = lbrx.tensor(RANDOM.standard_normal((700, 1001)).astype(np.float32))
    assert check(lambda: ((x * 2).to("bf16"), x.sum(), x.to("i4").to("i8"), x.argmax())) > 1
    check(lambda: (x.T * 2, x.sum(axis=-1), x.kth_largest(90_000)))


def test_spaces_that_need_64_bit_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.devices.metal.run._LARGE_SPACE", 0)
    x = lbrx.tensor(RANDOM.standard_normal((70, 1200)).astype(np.float32))
    check(lambda: (x[:, 1:].T * 2, x[:, 1:].sum(), x - x.max(axis=-1, keepdims=True)))


def test_passes_can_be_profiled() -> None:
    context = ProfiledContext(device())
    x = lbrx.tensor(np.ones((30, 40), np.float32))
    with using_metal(context), lbrx.using(device="metal"):
        (x * 3 + 0.5).numpy()
    (line,) = context.profile().summaries()
    assert line.kernel.startswith("pass_")
    assert (line.calls, line.nbytes, line.flops) == (1, 2 * 4800, 2 * 1200)


def test_empty_tensors_need_no_gpu() -> None:
    x = lbrx.tensor(np.zeros((3, 0), np.float32))
    with on_metal() as counts:
        assert (x * 2).numpy().shape == (3, 0)
        assert float(x.sum()) == 0.0
    assert counts.dispatches == 0


def test_what_a_gpu_cannot_do_runs_on_the_cpu_with_one_warning() -> None:
    x = lbrx.tensor(np.arange(6, dtype=np.float64))
    with on_metal() as counts, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_same_bits((x * 2).numpy(), np.arange(6) * 2.0)
    assert counts.dispatches == 0
    assert len(warned) <= 1
    assert all(issubclass(each.category, CpuFallback) for each in warned)
    assert "a GPU has no f64" in fallbacks()


def test_a_pass_is_compiled_once_for_all_shapes_and_constants() -> None:
    statistics = device().shaders.statistics
    x, y = lbrx.tensor(np.ones((4, 8), np.float32)), lbrx.tensor(np.ones(33, np.float32))
    check(lambda: (x * 3 + 0.5,))
    before = statistics.compiled + statistics.loaded
    check(lambda: (y * 7 + 4,))
    assert statistics.compiled + statistics.loaded == before


def test_what_was_fused_can_be_printed() -> None:
    x = lbrx.tensor(np.ones((4, 8), np.float32), "bf16")
    text = explain((x * 2 - x).to("bf16"), with_shaders=True)
    assert text.startswith("pass 1 over (4, 8): one kernel, reads 64 B, stores 1 result\nv0 = source bf16 (unit)\n")
    assert "const float v2 = v0 * v1;" in text
    assert "sink0[j] = encode_bf16(v4);" in text
    assert "pass 2" not in text
    assert "on the CPU only, because a GPU has no f64" in explain(x.to("f64") * 2)
