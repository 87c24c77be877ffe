"""Rotary position embedding: the frequencies of a model, and queries or keys turned by them.

Angles are computed in f64, and their cosines and sines rounded to f32 once.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.cpu.native import Floats, address, run
from lbrx.devices.cpu.ops.arrays import Values, floats
from lbrx.devices.cpu.ops.blas import in_ranges
from lbrx.errors import ShapeError, UsageError

RopeStyle = Literal["neox", "interleaved"]
_KINDS = ("default", "linear", "llama3", "yarn", "longrope")
_CHUNK_ELEMENTS = 32 << 10


class RopeRecord(Protocol):
    """What the frequencies depend on; ``factor`` and what follows it count for some kinds only."""

    @property
    def theta(self) -> float: ...
    @property
    def dims(self) -> int:
        """How many elements of a head are turned: all, or the first so many."""

    @property
    def kind(self) -> str: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_context(self) -> int: ...
    @property
    def low_frequency_factor(self) -> float: ...
    @property
    def high_frequency_factor(self) -> float: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def attention_factor(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A record for `rope_frequencies`: ``kind`` is default, linear, llama3, yarn or longrope."""

    theta: float
    dims: int
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True, slots=True)
class RopeFrequencies:
    """Radians per position of every pair of elements, and what cosines and sines are multiplied by."""

    radians: npt.NDArray[np.float64]
    scale: float = 1.0


def rope_frequencies(config: RopeRecord, factors: npt.ArrayLike | None = None) -> RopeFrequencies:
    """The frequencies of a model. ``factors`` divide them one by one: those of longrope, or a file's own.

    >>> rope_frequencies(RopeConfig(theta=10_000.0, dims=4)).radians
    array([1.  , 0.01])
    >>> rope_frequencies(RopeConfig(theta=10_000.0, dims=4, kind="linear", factor=4.0)).radians
    array([0.25  , 0.0025])
    """
    if config.dims < 2 or config.dims % 2:
        raise ShapeError(f"rope turns pairs, so {config.dims} elements of a head cannot be turned; expected 2, 4, ...")
    radians = np.float64(config.theta) ** (-np.arange(0, config.dims, 2, dtype=np.float64) / config.dims)
    if factors is not None:
        divisors = np.asarray(factors, np.float64)
        if divisors.shape != radians.shape:
            raise ShapeError(f"rope factors have shape {divisors.shape}; expected {radians.shape}, one for every pair")
        radians = radians / divisors
    elif config.kind == "longrope":
        raise UsageError("longrope needs its factors, one for every pair of elements")
    if config.kind in ("default", "longrope"):
        return RopeFrequencies(radians, _longrope_scale(config) if config.kind == "longrope" else 1.0)
    if config.kind == "linear":
        return RopeFrequencies(radians / config.factor)
    if config.kind == "llama3":
        return RopeFrequencies(_llama3(radians, config))
    if config.kind == "yarn":
        return RopeFrequencies(_yarn(radians, config), _yarn_scale(config))
    raise UsageError(f"{config.kind!r} is not a known kind of rope; expected one of {', '.join(_KINDS)}")


def _original_context(config: RopeRecord) -> int:
    if config.original_context < 1:
        raise UsageError(f"rope of kind {config.kind!r} needs the original context of the model, in positions")
    return config.original_context


def _llama3(radians: npt.NDArray[np.float64], config: RopeRecord) -> npt.NDArray[np.float64]:
    """Slow pairs are stretched, fast ones kept, and those between blended by how many turns they make."""
    turns = _original_context(config) * radians / (2 * math.pi)
    low, high = config.low_frequency_factor, config.high_frequency_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return radians * (kept + (1 - kept) / config.factor)


def _yarn(radians: npt.NDArray[np.float64], config: RopeRecord) -> npt.NDArray[np.float64]:
    """As llama3, but the blend goes by the number of the pair."""
    context = _original_context(config)

    def pair_with_turns(turns: float) -> float:
        return config.dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low = max(math.floor(pair_with_turns(config.beta_fast)), 0)
    high = min(math.ceil(pair_with_turns(config.beta_slow)), config.dims - 1)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(radians.size) - low) / width, 0.0, 1.0)
    return radians * ((1 - stretched) + stretched / config.factor)


def _yarn_scale(config: RopeRecord) -> float:
    if config.attention_factor is not None:
        return config.attention_factor
    return 0.1 * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0


def _longrope_scale(config: RopeRecord) -> float:
    if config.attention_factor is not None:
        return config.attention_factor
    if config.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(config.factor) / math.log(_original_context(config)))


def apply_rope(x: Values, positions: npt.ArrayLike, frequencies: RopeFrequencies, style: RopeStyle = "neox") -> Floats:
    """Turn queries or keys of shape [..., n, d], where position i of ``positions`` [n] belongs to row i.

    ``"neox"`` pairs elements i and i + dims / 2 of a head, ``"interleaved"`` elements 2 i and 2 i + 1. Elements
    beyond the frequencies' are left as they are.

    >>> quarter = RopeFrequencies(np.array([np.pi / 2]))
    >>> apply_rope(np.array([[1.0, 0.0], [1.0, 0.0]], np.float32), [0, 1], quarter).round(6)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    values = floats(x)
    places = np.asarray(positions, np.float64)
    pairs = frequencies.radians.size
    if values.ndim < 2 or places.shape != values.shape[-2:-1] or 2 * pairs > values.shape[-1]:
        raise ShapeError(
            f"rope: values of shape {values.shape}, positions of shape {places.shape} and {pairs} frequencies do not "
            "fit; expected [..., n, d], [n], and at most d / 2"
        )
    if style not in ("neox", "interleaved"):
        raise UsageError(f"{style!r} is not a style of rope; expected 'neox' or 'interleaved'")
    angles = places[:, None] * frequencies.radians
    cosines = (np.cos(angles) * frequencies.scale).astype(np.float32)
    sines = (np.sin(angles) * frequencies.scale).astype(np.float32)
    return _turned(values, cosines, sines, style == "interleaved")


def _turned(values: Floats, cosines: Floats, sines: Floats, near: bool) -> Floats:
    out = np.empty_like(values)
    if not values.size:
        return out
    rows, columns = values.shape[-2:]
    pairs = cosines.shape[1]
    source, target = address(values), address(out)

    def work(first: int, stop: int) -> None:
        for matrix in range(first, stop):
            at = 4 * rows * columns * matrix
            tables = address(cosines), address(sines)
            run("elementwise", "rope", source + at, target + at, rows, columns, pairs, *tables, int(near))

    in_ranges(values.size // (rows * columns), max(1, _CHUNK_ELEMENTS // (rows * columns)), work)
    return out
