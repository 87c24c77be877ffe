"""Rotary position embedding: the record of a model's rotation, and its frequencies in f64."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError

RopeStyle = Literal["neox", "interleaved"]
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions rotate the first ``dims`` elements of queries and keys.

    ``rope_type`` is one of ``ROPE_TYPES``. The fields after it belong to types that extend a model to longer contexts,
    or turn only some pairs. ``truncate``: yarn blends between whole pairs.
    """

    theta: float
    dims: int
    rope_type: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    rotated_pairs: int = 0  # of proportional: the pairs after these do not turn
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def depends_on_length(self, tokens: int) -> int:
        """Return a number that is equal for two lengths of a text if they have the same frequencies."""
        if self.rope_type == "longrope":
            return int(tokens > self.original_context)
        return max(tokens, self.original_context) if self.rope_type == "dynamic" else 0


@dataclass(frozen=True, slots=True)
class RopeFrequencies:
    """Radians per position for each pair of elements, and the factor of cosines and sines."""

    radians: npt.NDArray[np.float64]
    scale: float = 1.0


def rope_tables(
    shape: tuple[int, ...], positions: npt.ArrayLike, frequencies: RopeFrequencies, style: RopeStyle
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return cosines and sines [n, pairs] for values of shape [..., n, d]. Raise if the arguments do not match."""
    rows = np.asarray(positions, np.float64)
    pairs = frequencies.radians.size
    if len(shape) < 2 or rows.shape != shape[-2:-1] or 2 * pairs > shape[-1]:
        raise ShapeError(
            f"rope: values of shape {shape}, positions of shape {rows.shape} and {pairs} frequencies do not match; "
            "expected [..., n, d], [n], and at most d / 2"
        )
    if style not in ("neox", "interleaved"):
        raise UsageError(f"unknown rope style {style!r}; expected 'neox' or 'interleaved'")
    return turns(rows, frequencies)


def turns(
    positions: npt.ArrayLike, frequencies: RopeFrequencies
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return cosines and sines [n, pairs] for n positions.

    >>> [table.shape for table in turns([0, 1, 2], RopeFrequencies(np.array([1.0, 0.5])))]
    [(3, 2), (3, 2)]
    """
    angles = np.asarray(positions, np.float64)[:, None] * frequencies.radians
    cosines, sines = np.cos(angles) * frequencies.scale, np.sin(angles) * frequencies.scale
    return cosines.astype(np.float32), sines.astype(np.float32)


def rope_frequencies(config: RopeConfig, factors: npt.ArrayLike | None = None, tokens: int = 0) -> RopeFrequencies:
    """Return the frequencies of a model, divided one by one by ``factors`` (of longrope, or from the file).

    ``tokens`` is the length of the text so far, on which those of longrope and dynamic depend.

    >>> rope_frequencies(RopeConfig(theta=10_000.0, dims=4)).radians
    array([1.  , 0.01])
    >>> rope_frequencies(RopeConfig(theta=10_000.0, dims=4, rope_type="linear", factor=4.0)).radians
    array([0.25  , 0.0025])
    """
    if config.dims < 2 or config.dims % 2:
        raise ShapeError(f"rope rotates pairs, so cannot rotate {config.dims} elements of a head; expected 2, 4, ...")
    theta = _dynamic_theta(config, tokens) if config.rope_type == "dynamic" else config.theta
    if factors is None and config.rope_type == "longrope":
        factors = (config.long_factors if tokens > config.original_context else config.short_factors) or None
    radians = np.float64(theta) ** (-np.arange(0, config.dims, 2, dtype=np.float64) / config.dims)
    if factors is not None:
        divisors = np.asarray(factors, np.float64)
        if divisors.shape != radians.shape:
            raise ShapeError(f"rope factors have shape {divisors.shape}; expected {radians.shape}, one for each pair")
        radians = radians / divisors
    elif config.rope_type == "longrope":
        raise UsageError("longrope needs its factors, one for each pair of elements")
    if config.rope_type in ("default", "dynamic", "longrope"):
        return RopeFrequencies(radians, _longrope_scale(config) if config.rope_type == "longrope" else 1.0)
    if config.rope_type == "proportional":
        return RopeFrequencies(np.where(np.arange(radians.size) < config.rotated_pairs, radians / config.factor, 0.0))
    if config.rope_type == "linear":
        return RopeFrequencies(radians / config.factor)
    if config.rope_type == "llama3":
        return RopeFrequencies(_llama3(radians, config))
    if config.rope_type == "yarn":
        return RopeFrequencies(_yarn(radians, config), _yarn_scale(config))
    raise UsageError(f"unknown rope type {config.rope_type!r}; expected one of {', '.join(ROPE_TYPES)}")


def _original_context(config: RopeConfig) -> int:
    if config.original_context < 1:
        raise UsageError(f"rope of type {config.rope_type!r} needs the original context length of the model")
    return config.original_context


def _llama3(radians: npt.NDArray[np.float64], config: RopeConfig) -> npt.NDArray[np.float64]:
    """Stretch slow pairs, keep fast pairs, and blend between them by the number of turns."""
    turns = _original_context(config) * radians / (2 * math.pi)
    low, high = config.low_frequency_factor, config.high_frequency_factor
    unscaled = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return radians * (unscaled + (1 - unscaled) / config.factor)


def _yarn(radians: npt.NDArray[np.float64], config: RopeConfig) -> npt.NDArray[np.float64]:
    """Like llama3, but blend by the index of the pair."""
    context = _original_context(config)

    def pair_with_turns(turns: float) -> float:
        return config.dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    first, last = pair_with_turns(config.beta_fast), pair_with_turns(config.beta_slow)
    if config.truncate:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, config.dims - 1)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(radians.size) - low) / width, 0.0, 1.0)
    scaled: npt.NDArray[np.float64] = radians * ((1 - stretched) + stretched / config.factor)
    return scaled


def _dynamic_theta(config: RopeConfig, tokens: int) -> float:
    """Raise the base so far that the slowest pair does not turn further than in training."""
    context = _original_context(config)
    if config.dims < 4:
        raise ShapeError(f"dynamic positions cannot rotate {config.dims} elements of a head; expected 4 or more")
    stretch = config.factor * max(tokens, context) / context - (config.factor - 1)
    return float(config.theta * stretch ** (config.dims / (config.dims - 2)))


def _yarn_scale(config: RopeConfig) -> float:
    if config.attention_factor is not None:
        return config.attention_factor
    return 0.1 * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0


def _longrope_scale(config: RopeConfig) -> float:
    if config.attention_factor is not None:
        return config.attention_factor
    if config.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(config.factor) / math.log(_original_context(config)))
