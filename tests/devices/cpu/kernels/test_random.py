"""The counter-based generator: bit for bit against NumPy, then statistically.

Everything here is deterministic: the keys are fixed. A statistic counts as ordinary within 5 standard
deviations of what independent uniform words would give.
"""

from __future__ import annotations

import platform
import re
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numba import njit

from lbrx.devices.cpu.kernels.random import normal_f32, random_word, stream_key, uniform_f32

Array = np.ndarray[Any, np.dtype[Any]]
SAMPLES = 1 << 22
SIGMAS = 5.0
KEYS = [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), stream_key(0, "a"), stream_key(1, "model.layers.0.mlp.up_proj.weight")]
STARTS = [0, 2**32 - SAMPLES // 2, 2**40 - SAMPLES]


def _word_loop(key0: Any, key1: Any, start: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = random_word(key0, key1, start + i)


def _uniform_loop(key0: Any, key1: Any, start: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = uniform_f32(key0, key1, start + i)


def _normal_loop(key0: Any, key1: Any, start: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = normal_f32(key0, key1, start + i)


def _mask_loop(key0: Any, key1: Any, start: Any, density: Any, values: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = values[i] if uniform_f32(key0, key1, start + i) < density else np.float32(0)


WORDS, UNIFORMS, NORMALS, MASK = (
    njit(loop, nogil=True, error_model="numpy") for loop in (_word_loop, _uniform_loop, _normal_loop, _mask_loop)
)


@cache
def words(key: tuple[int, int], start: int = 0, samples: int = SAMPLES) -> Array:
    out = np.empty(samples, dtype=np.uint32)
    WORDS(np.uint32(key[0]), np.uint32(key[1]), start, out)
    out.flags.writeable = False
    return out


def uniforms(key: tuple[int, int], start: int = 0, samples: int = SAMPLES) -> Array:
    out = np.empty(samples, dtype=np.float32)
    UNIFORMS(np.uint32(key[0]), np.uint32(key[1]), start, out)
    return out


def normals(key: tuple[int, int], start: int = 0, samples: int = SAMPLES) -> Array:
    out = np.empty(samples, dtype=np.float32)
    NORMALS(np.uint32(key[0]), np.uint32(key[1]), start, out)
    return out


def words_numpy(key0: int, key1: int, indices: Array) -> Array:
    """The generator written a second time, in 64-bit arithmetic that is cut to 32 bits."""
    mask = 0xFFFFFFFF

    def fold(x: Any, shift: int) -> Any:
        return x ^ x >> shift

    def scramble(x: int) -> int:
        x = fold(fold(x, 16) * 0x7FEB352D & mask, 15) * 0x846CA68B & mask
        return x ^ x >> 16

    low, high = indices & mask, indices >> 32
    key1 = key1 + 0xB7E15162 & mask
    with np.errstate(over="ignore"):  # int64 wraps, and the low 32 bits of the product stay right
        x = fold(low ^ key0, 16) * 0x7FEB352D + key1 + high * 0x9E3779B9 & mask
        halfway = fold(x, 15) * 0x846CA68B + scramble(key0 + scramble(key1) & mask) & mask
        x = fold(halfway, 17) * 0xED5AD4BB & mask
        x = fold(x, 11) * 0xAC4C1B51 & mask
    result: Array = (fold(x, 15) + halfway & mask).astype(np.uint32)
    return result


def uniform_numpy(key0: int, key1: int, indices: Array) -> Array:
    return (words_numpy(key0, key1, indices) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def sigmas_of_chi_square(counts: Array) -> float:
    """How many standard deviations the chi-square of equally likely cells lies from its mean."""
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    return (chi_square - degrees) / float(np.sqrt(2 * degrees))


def centred(sample: Array) -> Array:
    """Words as float64 in [-1/2, 1/2)."""
    return sample * 2.0**-32 - 0.5


def sigmas_of_correlation(a: Array, b: Array) -> float:
    """The correlation of two centred uniform samples in standard deviations."""
    return float(np.dot(a, b)) * 12.0 / float(np.sqrt(a.size))


def sigmas_of_equal_bits(a: Array, b: Array) -> float:
    """The largest deviation, over the 32 bit positions, of how often two word sequences differ from one half."""
    bytes_of_words = (a ^ b).view(np.uint8).reshape(-1, 4)
    bits_of_byte = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    counts = np.stack([np.bincount(bytes_of_words[:, i], minlength=256) for i in range(4)]) @ bits_of_byte
    return float(np.abs(counts - a.size / 2).max() / np.sqrt(a.size / 4))


def sigmas_of_joint_cells(a: Array, b: Array) -> float:
    """The larger chi-square deviation of the pairs of the top six and of the lowest six bits."""
    top = (a >> np.uint32(26)) << np.uint32(6) | b >> np.uint32(26)
    lowest = (a & np.uint32(63)) << np.uint32(6) | b & np.uint32(63)
    return max(abs(sigmas_of_chi_square(np.bincount(cells, minlength=4096))) for cells in (top, lowest))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("start", STARTS)
def test_words_and_uniforms_equal_the_numpy_reference(key: tuple[int, int], start: int) -> None:
    indices = np.arange(start, start + SAMPLES, dtype=np.int64)
    np.testing.assert_array_equal(words(key, start), words_numpy(*key, indices))
    np.testing.assert_array_equal(uniforms(key, start), uniform_numpy(*key, indices))


def test_an_element_does_not_depend_on_where_a_pass_starts() -> None:
    key = KEYS[3]
    whole = words(key)
    for start, stop in ((0, 1), (1, 8), (1000, 1013), (SAMPLES - 5, SAMPLES)):
        np.testing.assert_array_equal(words(key, start, stop - start), whole[start:stop])
        assert random_word(*key, start) == whole[start]


def test_uniforms_lie_in_the_half_open_interval_with_24_bits() -> None:
    values = uniforms(KEYS[2])
    assert values.min() >= 0.0
    assert values.max() < 1.0
    np.testing.assert_array_equal(values * np.float32(2**24) % 1, 0)
    assert (values * np.float32(2**24)).astype(np.int64).max() > 2**24 - 100


@pytest.mark.parametrize("key", KEYS)
def test_every_bit_is_one_half_of_the_time(key: tuple[int, int]) -> None:
    assert sigmas_of_equal_bits(words(key), np.zeros(SAMPLES, dtype=np.uint32)) < SIGMAS


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shift", [0, 8, 16, 20])
def test_cells_are_equally_filled(key: tuple[int, int], shift: int) -> None:
    cells = words(key) >> np.uint32(shift) & np.uint32(0xFFF)
    assert abs(sigmas_of_chi_square(np.bincount(cells, minlength=4096))) < SIGMAS


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("dimensions", "bits"), [(2, 7), (3, 5), (4, 4), (8, 2)])
def test_consecutive_outputs_fill_a_hypercube_evenly(key: tuple[int, int], dimensions: int, bits: int) -> None:
    top = (words(key) >> np.uint32(32 - bits)).astype(np.int64)
    points = top[: top.size // dimensions * dimensions].reshape(-1, dimensions)
    cells = points @ (1 << (bits * np.arange(dimensions)))
    assert abs(sigmas_of_chi_square(np.bincount(cells, minlength=1 << (bits * dimensions)))) < SIGMAS


@pytest.mark.parametrize("key", KEYS)
def test_no_serial_correlation(key: tuple[int, int]) -> None:
    values = centred(words(key))
    for lag in [*range(1, 65), *(1 << power for power in range(7, 22))]:
        assert abs(sigmas_of_correlation(values[:-lag], values[lag:])) < SIGMAS, f"lag {lag}"


@pytest.mark.parametrize("lag", [1, 2, 3, 1 << 8, 1 << 16, 1 << 20])
def test_no_bit_follows_the_same_bit_at_a_lag(lag: int) -> None:
    sequence = words(KEYS[3])
    assert sigmas_of_equal_bits(sequence[:-lag], sequence[lag:]) < SIGMAS


def test_no_frequency_stands_out() -> None:
    blocks = centred(words(KEYS[3])).reshape(-1, 4096)
    power = (np.abs(np.fft.rfft(blocks, axis=1)[:, 1:-1]) ** 2).mean(axis=0)
    # The power of one block at one frequency is exponential: its deviation equals its mean, 4096 / 12.
    assert np.abs(power / (4096 / 12) - 1).max() * np.sqrt(blocks.shape[0]) < SIGMAS


@pytest.mark.parametrize(
    "other",
    [(5, 8), (6, 7), (4, 7), (7, 5), (5 ^ 1 << 31, 7), (5, 7 ^ 1 << 31), (5, 7 + 0x9E3779B9 & 0xFFFFFFFF)],
)
def test_neighbouring_keys_are_independent(other: tuple[int, int]) -> None:
    # A shift lines up the equal inputs that an additive key would give.
    for shift in (0, 1, 3):
        a, b = words((5, 7))[: SAMPLES - shift], words(other)[shift:]
        assert sigmas_of_equal_bits(a, b) < SIGMAS
        assert sigmas_of_joint_cells(a, b) < SIGMAS
        assert abs(sigmas_of_correlation(centred(a), centred(b))) < SIGMAS


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, "a"), (1, "a")), ((0, "a"), (0, "b")), ((0, "layers.1.w"), (0, "layers.2.w"))],
)
def test_neighbouring_seeds_and_names_are_independent(first: tuple[int, str], second: tuple[int, str]) -> None:
    a, b = words(stream_key(*first)), words(stream_key(*second))
    assert sigmas_of_equal_bits(a, b) < SIGMAS
    assert sigmas_of_joint_cells(a, b) < SIGMAS


def test_blocks_of_two_to_the_32_are_independent() -> None:
    first = words(KEYS[3])
    for block in (1, 2, 255):
        other = words(KEYS[3], block << 32)
        assert sigmas_of_equal_bits(first, other) < SIGMAS
        assert sigmas_of_joint_cells(first, other) < SIGMAS


@pytest.mark.parametrize("bit", range(0, 40, 3))
def test_one_bit_of_the_index_changes_half_of_the_output(bit: int) -> None:
    samples = 1 << 16
    start = 1 << bit if bit >= 16 else 0
    index = np.arange(start, start + samples)
    a, b = words_numpy(*KEYS[2], index), words_numpy(*KEYS[2], index ^ 1 << bit)
    # Indices come in pairs when the bit lies inside the range, which doubles the variance of the count.
    assert sigmas_of_equal_bits(a, b) < SIGMAS * (np.sqrt(2) if bit < 16 else 1)


@pytest.mark.parametrize("word", [0, 1])
@pytest.mark.parametrize("bit", range(0, 32, 3))
def test_one_bit_of_the_key_changes_half_of_the_output(word: int, bit: int) -> None:
    key = list(KEYS[2])
    key[word] ^= 1 << bit
    indices = np.arange(1 << 18)
    assert sigmas_of_equal_bits(words_numpy(*KEYS[2], indices), words_numpy(key[0], key[1], indices)) < SIGMAS


def test_24_bit_outputs_collide_as_often_as_random_ones() -> None:
    cells = 2**24
    for key in KEYS:
        seen = np.zeros(cells, dtype=np.bool_)
        seen[words(key) >> np.uint32(8)] = True
        hit = int(seen.sum())
        empty_share = (1 - 1 / cells) ** SAMPLES
        load = SAMPLES / cells
        deviation = np.sqrt(cells * (empty_share - (1 + load) * empty_share**2))
        assert abs(hit - cells * (1 - empty_share)) < SIGMAS * deviation


def test_a_mask_keeps_the_density() -> None:
    values = np.ones(SAMPLES, dtype=np.float32)
    out = np.empty_like(values)
    for density in (0.01, 0.3, 0.9):
        MASK(np.uint32(3), np.uint32(4), 0, np.float32(density), values, out)
        deviation = np.sqrt(SAMPLES * density * (1 - density))
        assert abs(float(out.sum(dtype=np.float64)) - SAMPLES * density) < SIGMAS * deviation


def test_normals_are_the_quantiles_of_their_words() -> None:
    samples = 20_000
    for key in KEYS:
        magnitude = words(key, 0, samples).astype(np.int64)
        tail = ((magnitude & 0x7FFFFFFF) + 0.5) * 2.0**-32
        quantile = np.array([-NormalDist().inv_cdf(float(t)) for t in tail])
        expected = np.where(magnitude >> 31, quantile, -quantile)
        np.testing.assert_allclose(normals(key, 0, samples), expected, rtol=1e-6, atol=2e-7)


def test_normals_have_the_moments_of_the_normal_distribution() -> None:
    values = normals(KEYS[3]).astype(np.float64)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (5, 0), (6, 15)):
        variance = float(np.prod(np.arange(2 * power - 1, 0, -2))) - moment**2
        assert abs((values**power).mean() - moment) < SIGMAS * np.sqrt(variance / SAMPLES), f"moment {power}"


def test_normals_fill_equally_likely_cells() -> None:
    edges = [NormalDist().inv_cdf(i / 512) for i in range(1, 512)]
    counts = np.bincount(np.searchsorted(edges, normals(KEYS[2])), minlength=512)
    assert abs(sigmas_of_chi_square(counts)) < SIGMAS


def test_normals_of_neighbouring_indices_are_uncorrelated() -> None:
    values = normals(KEYS[3]).astype(np.float64)
    for lag in (1, 2, 3, 64, 4096):
        assert abs(np.dot(values[:-lag], values[lag:])) / np.sqrt(SAMPLES - lag) < SIGMAS, f"lag {lag}"


def test_stream_keys_are_stable_and_distinct() -> None:
    assert stream_key(42, "lm_head.weight") == (3591731233, 2718635145)
    names = [f"model.layers.{layer}.weight" for layer in range(1000)]
    assert len({stream_key(seed, name) for seed in (-1, 0, 1) for name in names}) == 3000
    assert stream_key(1, "2:x") != stream_key(12, ":x")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86 instructions by name")
def test_masks_multiply_32_bit_lanes() -> None:
    values = np.ones(64, dtype=np.float32)
    MASK(np.uint32(3), np.uint32(4), 0, np.float32(0.5), values, np.empty_like(values))
    assembly = "".join(MASK.inspect_asm().values())
    assert re.search(r"pmulld", assembly)
    assert not re.search(r"pmuludq", assembly)
