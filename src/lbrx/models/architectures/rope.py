"""Rotary position embeddings: how config.json describes them, and how GGUF does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.models.architectures.dimensions import Settings

Floats = npt.NDArray[np.float32]
ROPE_FREQUENCIES = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
# What config.json calls a value of YaRN, and the end of its key in GGUF.
_YARN_KEYS = (
    (("extrapolation_factor",), "yarn_ext_factor"),
    (("attention_factor", "attn_factor"), "yarn_attn_factor"),
    (("beta_fast",), "yarn_beta_fast"),
    (("beta_slow",), "yarn_beta_slow"),
)
_LLAMA3_DEFAULTS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_TRAINED_LENGTHS = tuple(1 << power for power in range(5, 21))


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotation of a model: ``kind`` is the rope_type of transformers, ``values`` what belongs to it."""

    kind: str
    theta: float
    local_theta: float | None  # of layers with a sliding window, if it is another one
    rotated_share: float  # of each head
    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, settings: Settings) -> Rope:
        """The rotation that a config describes, in any of the ways of transformers.

        >>> old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
        >>> new = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
        >>> [(rope.kind, rope.theta) for rope in (Rope.of(Settings(c, {}, "a model")) for c in (old, new))]
        [('linear', 500000.0), ('linear', 500000.0)]
        """
        given = settings.get("rope_parameters", "rope_scaling") or {}
        local = settings.get("rope_local_base_freq")
        if "full_attention" in given:
            local = given.get("sliding_attention", {}).get("rope_theta", local)
            given = given["full_attention"]
        kind = str(given.get("rope_type", given.get("type", "default")) or "default").lower()
        outer = Settings(given, {}, settings.where)
        share = given.get("partial_rotary_factor", settings.get("partial_rotary_factor"))
        return cls(
            {"su": "longrope"}.get(kind, kind),
            outer.number("rope_theta") if "rope_theta" in given else settings.number("rope_theta"),
            None if local is None else float(local),
            1.0 if share is None else float(share),
            given,
            settings.where,
        )

    def number(self, *keys: str, default: float | None = None) -> float:
        """A value that belongs to this kind of rotation."""
        value = next((self.values[key] for key in keys if self.values.get(key) is not None), default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{self.where}: rope type {self.kind!r} of config.json has no number {keys[0]!r}")
        return float(value)

    def factors(self, key: str, count: int) -> Floats:
        """The list of factors of longrope."""
        found = self.values.get(key)
        if not isinstance(found, Sequence) or len(found) != count:
            size = len(found) if isinstance(found, Sequence) else "no"
            raise UsageError(f"{self.where}: {key!r} of config.json has {size} values; expected {count}")
        return np.array(found, np.float32)


def scaling_metadata(rope: Rope, context_length: int) -> dict[str, Any]:
    """The ends of the keys ``{arch}.rope.scaling.*`` for linear scaling and YaRN.

    >>> scaling_metadata(Rope("linear", 1e4, None, 1.0, {"factor": 4}, "a model"), 4096)
    {'type': 'linear', 'factor': 4.0}
    """
    if rope.kind not in ("linear", "yarn"):
        return {}
    found: dict[str, Any] = {"type": rope.kind, "factor": rope.number("factor")}
    if rope.kind == "yarn":
        found["original_context_length"] = int(rope.number("original_max_position_embeddings", default=context_length))
        for keys, end in _YARN_KEYS:
            if any(rope.values.get(key) is not None for key in keys):
                found[end] = rope.number(*keys)
    return found


def scaling_config(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any] | None:
    """The ``rope_scaling`` of a config.json for linear scaling and YaRN, None without them.

    >>> scaling_config({"a.rope.scaling.type": "linear", "a.rope.scaling.factor": 4.0}, "a.rope.scaling.")
    {'rope_type': 'linear', 'factor': 4.0}
    """
    kind = metadata.get(f"{prefix}type")
    if kind not in ("linear", "yarn"):
        return None
    found = {"rope_type": kind, "factor": plain_float(metadata.get(f"{prefix}factor", 1.0))}
    if kind == "yarn":
        length = metadata.get(f"{prefix}original_context_length")
        if length is not None:
            found["original_max_position_embeddings"] = int(length)
        for keys, end in _YARN_KEYS:
            if f"{prefix}{end}" in metadata:
                found[keys[0]] = plain_float(metadata[f"{prefix}{end}"])
    return found


def llama3_factors(rope: Rope, head: int) -> Floats:
    """By how much the rotation of each pair is slowed down (``rope_type`` llama3).

    Short waves keep their length, long ones are stretched by ``factor``, those between by something between.

    >>> llama3_factors(Rope("llama3", 5e5, None, 1.0, {"factor": 8.0}, "a model"), 8).round(2).tolist()
    [1.0, 1.0, 2.690000057220459, 8.0]
    """
    frequencies = 1.0 / rope.theta ** (np.arange(0, head, 2, dtype=np.float64) / head)
    waves = 2 * math.pi / frequencies
    factor = rope.number("factor", default=8.0)
    low, high, length = (rope.number(key, default=value) for key, value in _LLAMA3_DEFAULTS.items())
    smooth = (length / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves < length / high, 1.0, np.where(waves > length / low, factor, between))
    return factors.astype(np.float32)


def llama3_config(factors: Floats, theta: float, head: int) -> dict[str, Any] | None:
    """The ``rope_scaling`` of which these are the factors; None if it has not the frequency factors of Llama 3.

    >>> rope = Rope("llama3", 5e5, None, 1.0, {"factor": 32.0}, "a model")
    >>> llama3_config(llama3_factors(rope, 64), 5e5, 64)["factor"]
    32.0
    """
    usual = _LLAMA3_DEFAULTS["original_max_position_embeddings"]
    for length in (usual, *_TRAINED_LENGTHS):
        known = {**_LLAMA3_DEFAULTS, "original_max_position_embeddings": length}
        found = {"rope_type": "llama3", "factor": float(factors.max()), **known}
        expected = llama3_factors(Rope("llama3", theta, None, 1.0, found, ""), head)
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-4):
            return found
    return None


def longrope_attention_factor(context_length: int, original_length: int) -> float:
    """By how much longrope scales what it rotates.

    >>> round(longrope_attention_factor(131072, 4096), 4)
    1.1902
    """
    scale = context_length / original_length
    return math.sqrt(1 + math.log(scale) / math.log(original_length)) if scale > 1 else 1.0


def plain_float(value: float) -> float:
    """An f32 as the shortest decimal number that it stands for.

    >>> plain_float(float(np.float32(1e-6)))
    1e-06
    """
    return float(str(np.float32(value)))
