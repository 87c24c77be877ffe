"""rope: frequencies of every kind, and rotations, against float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.errors import ShapeError, UsageError
from lbrx.ops import RopeConfig, RopeFrequencies, apply_rope, rope_frequencies
from support.references import THREADS, Array, normal, wide


def turned(x: Array, positions: Array, frequencies: RopeFrequencies, style: str) -> Array:
    """Pairs as complex numbers, times e**(i angle)."""
    pairs = frequencies.radians.size
    values, out = wide(x), wide(x).copy()
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        if style == "interleaved"
        else (
            slice(0, pairs),
            slice(pairs, 2 * pairs),
        )
    )
    factor = np.exp(1j * np.asarray(positions, np.float64)[:, None] * frequencies.radians) * frequencies.scale
    product = (values[..., first] + 1j * values[..., second]) * factor
    out[..., first], out[..., second] = product.real, product.imag
    return out


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rotations(data: st.DataObject) -> None:
    heads, count, pairs = (data.draw(st.integers(low, 6)) for low in (0, 0, 1))
    rest = data.draw(st.integers(0, 3))
    positions = data.draw(st.lists(st.integers(0, 1 << 20), min_size=count, max_size=count))
    style: Any = data.draw(st.sampled_from(["neox", "interleaved"]))
    frequencies = rope_frequencies(RopeConfig(theta=1e4, dims=2 * pairs))
    x = normal(heads, count, 2 * pairs + rest)
    got = apply_rope(x, positions, frequencies, style)
    assert got.shape == x.shape
    assert (abs(got - turned(x, np.array(positions), frequencies, style)) <= 2.0**-21 * 5).all()
    np.testing.assert_array_equal(got[..., 2 * pairs :], x[..., 2 * pairs :])


def test_linear_scaling_is_that_of_positions() -> None:
    plain, slow = (rope_frequencies(RopeConfig(1e4, 8, rope_type, 4.0)) for rope_type in ("default", "linear"))
    x = normal(1, 3, 8)
    np.testing.assert_array_equal(apply_rope(x, [4, 8, 12], slow), apply_rope(x, [1, 2, 3], plain))


def test_llama3_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    config = RopeConfig(500_000.0, 128, "llama3", 8.0, 8192, 1.0, 4.0)
    found, plain = rope_frequencies(config).radians, rope_frequencies(RopeConfig(500_000.0, 128)).radians
    lengths = 2 * math.pi / plain
    np.testing.assert_array_equal(found[lengths < 8192 / 4], plain[lengths < 8192 / 4])
    np.testing.assert_allclose(found[lengths > 8192], plain[lengths > 8192] / 8, rtol=1e-15)
    between = (lengths >= 8192 / 4) & (lengths <= 8192)
    smooth = (8192 / lengths - 1) / 3
    np.testing.assert_allclose(found[between], ((1 - smooth) * plain / 8 + smooth * plain)[between], rtol=1e-14)
    assert between.any()


def test_yarn() -> None:
    """Values of transformers for the same numbers."""
    config = RopeConfig(10_000.0, 16, "yarn", 4.0, 64)
    found, plain = rope_frequencies(config), rope_frequencies(RopeConfig(10_000.0, 16)).radians
    low = math.floor(16 * math.log(64 / (32 * 2 * math.pi)) / (2 * math.log(10_000.0)))
    high = math.ceil(16 * math.log(64 / (2 * math.pi)) / (2 * math.log(10_000.0)))
    assert (max(low, 0), high) == (0, 3)
    np.testing.assert_allclose(found.radians[[0, 1, 3, 7]], plain[[0, 1, 3, 7]] * [1, 0.75, 0.25, 0.25], rtol=1e-14)
    assert found.scale == pytest.approx(0.1 * math.log(4) + 1)
    assert rope_frequencies(RopeConfig(1e4, 16, "yarn", 4.0, 64, attention_factor=1.5)).scale == 1.5


def test_longrope_and_factors_of_a_file() -> None:
    factors = np.array([1.0, 2.0, 4.0, 8.0])
    plain = rope_frequencies(RopeConfig(1e4, 8)).radians
    found = rope_frequencies(RopeConfig(1e4, 8, "longrope", 16.0, 4096), factors)
    np.testing.assert_array_equal(found.radians, plain / factors)
    assert found.scale == pytest.approx(math.sqrt(1 + math.log(16) / math.log(4096)))
    np.testing.assert_array_equal(rope_frequencies(RopeConfig(1e4, 8), factors).radians, plain / factors)


def test_the_same_bytes_on_any_number_of_threads() -> None:
    x, frequencies = normal(9, 400, 64), rope_frequencies(RopeConfig(1e4, 64))
    found = []
    for threads in THREADS:
        with lbrx.using(threads=threads):
            found.append(apply_rope(x, np.arange(400), frequencies).tobytes())
    assert found[0] == found[1] == found[2]


def test_bad_input() -> None:
    frequencies = rope_frequencies(RopeConfig(1e4, 8))
    with pytest.raises(ShapeError, match=r"positions of shape \(4,\)"):
        apply_rope(normal(2, 3, 8), range(4), frequencies)
    with pytest.raises(ShapeError, match="4 frequencies"):
        apply_rope(normal(2, 3, 6), range(3), frequencies)
    with pytest.raises(UsageError, match="'neox' or 'interleaved'"):
        apply_rope(normal(2, 3, 8), range(3), frequencies, "other")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="cannot rotate 7 elements of a head"):
        rope_frequencies(RopeConfig(1e4, 7))
    with pytest.raises(UsageError, match="unknown rope type 'new'"):
        rope_frequencies(RopeConfig(1e4, 8, "new"))
    with pytest.raises(UsageError, match="needs the original context"):
        rope_frequencies(RopeConfig(1e4, 8, "llama3", 8.0))
    with pytest.raises(UsageError, match="longrope needs its factors"):
        rope_frequencies(RopeConfig(1e4, 8, "longrope"))
    with pytest.raises(ShapeError, match=r"rope factors have shape \(3,\); expected \(4,\)"):
        rope_frequencies(RopeConfig(1e4, 8), [1, 2, 3])


def test_dynamic_positions_change_beyond_the_trained_length() -> None:
    config, plain = RopeConfig(1e4, 8, "dynamic", 2.0, 16), rope_frequencies(RopeConfig(1e4, 8))
    np.testing.assert_array_equal(rope_frequencies(config, tokens=16).radians, plain.radians)
    theta = 1e4 * (2.0 * 40 / 16 - 1.0) ** (8 / 6)
    expected = rope_frequencies(RopeConfig(theta, 8)).radians
    np.testing.assert_allclose(rope_frequencies(config, tokens=40).radians, expected, rtol=1e-12)
    assert [config.depends_on_length(tokens) for tokens in (3, 16, 40)] == [16, 16, 40]


def test_longrope_has_other_factors_beyond_the_trained_length() -> None:
    config = RopeConfig(1e4, 4, "longrope", 4.0, 16, short_factors=(1.0, 2.0), long_factors=(3.0, 4.0))
    short, long = (rope_frequencies(config, tokens=tokens) for tokens in (16, 17))
    np.testing.assert_allclose(short.radians, [1.0, 0.01 / 2.0])
    np.testing.assert_allclose(long.radians, [1 / 3.0, 0.01 / 4.0])
    assert short.scale == long.scale == math.sqrt(1 + math.log(4) / math.log(16))


def test_yarn_may_blend_between_fractions_of_pairs() -> None:
    whole, exact = (
        rope_frequencies(RopeConfig(1e4, 64, "yarn", 4.0, 512, truncate=truncate)).radians for truncate in (True, False)
    )
    assert not np.array_equal(whole, exact)
    np.testing.assert_array_equal(whole[[0, -1]], exact[[0, -1]])


def test_proportional_positions_turn_the_first_pairs_only() -> None:
    config = RopeConfig(1e4, 8, "proportional", rotated_pairs=1)
    np.testing.assert_array_equal(rope_frequencies(config).radians, [1.0, 0.0, 0.0, 0.0])
