"""Rotary position embeddings in config.json and in GGUF."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import FormatError
from lbrx.models.architectures.config import Config

Floats = npt.NDArray[np.float32]
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
ROPE_FREQUENCIES = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)
# Key in config.json of a YaRN value, and suffix of its GGUF key.
_YARN_KEYS = (
    (("extrapolation_factor",), "yarn_ext_factor"),
    (("attention_factor", "attn_factor"), "yarn_attn_factor"),
    (("beta_fast",), "yarn_beta_fast"),
    (("beta_slow",), "yarn_beta_slow"),
)
_LLAMA3_DEFAULTS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_TRAINED_LENGTHS = tuple(1 << power for power in range(5, 21))


def rope_section(config: Config, layer_type: str = FULL_ATTENTION) -> Config:
    """Return all rope settings of a config.json for one type of layers.

    Transformers 5 stores them in ``rope_parameters``, by layer type if layers differ. Older versions have
    ``rope_theta``, ``rope_local_base_freq`` (windows) and ``partial_rotary_factor`` next to ``rope_scaling``.

    >>> old = Config({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    >>> new = Config({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}})
    >>> [(rope.get("rope_type"), rope.number("rope_theta")) for rope in map(rope_section, (old, new))]
    [('linear', 500000.0), ('linear', 500000.0)]
    """
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    given = config.get(key)
    section = {} if given is None else given
    if not isinstance(section, Mapping):
        raise FormatError(f"{config.where}: {key!r} is {section!r}; expected an object")
    local_theta, is_local = config.get("rope_local_base_freq"), layer_type == SLIDING_ATTENTION
    if FULL_ATTENTION in section:
        for name in (FULL_ATTENTION, SLIDING_ATTENTION):
            if not isinstance(section.get(name, {}), Mapping):
                raise FormatError(f"{config.where}: {name!r} of {key!r} is {section[name]!r:.60}; expected an object")
        local_theta = section.get(SLIDING_ATTENTION, {}).get("rope_theta", local_theta)
        section = section.get(layer_type, {})
    elif is_local and local_theta is not None and key == "rope_scaling":
        section = {}  # only full attention is scaled
    rope_type = str(section.get("rope_type") or section.get("type") or "default").lower()
    values = {
        "rope_theta": local_theta if is_local and local_theta is not None else config.get("rope_theta"),
        "rope_local_base_freq": local_theta,
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **{name: value for name, value in section.items() if value is not None},
        "rope_type": {"su": "longrope", "mrope": "default"}.get(rope_type, rope_type),
    }
    return Config(values, where=f"{config.where}: {key}" if given else config.where, error_class=config.error_class)


def longrope_factors(rope: Config, key: str, count: int) -> Floats:
    """Return one of the two lists of factors of longrope."""
    factors = rope.get(key)
    if not isinstance(factors, Sequence) or len(factors) != count:
        size = len(factors) if isinstance(factors, Sequence) else "no"
        raise rope.wrong(f"{key!r} has {size} values; expected {count}")
    return np.array(factors, np.float32)


def scaling_metadata(rope: Config, context_length: int) -> dict[str, Any]:
    """Return the suffixes of the keys ``{arch}.rope.scaling.*`` for linear scaling and YaRN, with their values.

    >>> scaling_metadata(Config({"rope_type": "linear", "factor": 4}), 4096)
    {'type': 'linear', 'factor': 4.0}
    """
    rope_type = rope.get("rope_type")
    if rope_type not in ("linear", "yarn"):
        return {}
    values: dict[str, Any] = {"type": rope_type, "factor": rope.number("factor")}
    if rope_type == "yarn":
        values["original_context_length"] = int(rope.number("original_max_position_embeddings", default=context_length))
        for keys, end in _YARN_KEYS:
            if rope.get(*keys) is not None:
                values[end] = rope.number(*keys)
    return values


def scaling_config(values: Config, prefix: str) -> dict[str, Any] | None:
    """Return the ``rope_scaling`` of a config.json for linear scaling and YaRN, None without them.

    >>> scaling_config(Config({"a.rope.scaling.type": "linear", "a.rope.scaling.factor": 4.0}), "a.rope.scaling.")
    {'rope_type': 'linear', 'factor': 4.0}
    """
    rope_type = values.get(f"{prefix}type")
    if rope_type not in ("linear", "yarn"):
        return None
    section = {"rope_type": rope_type, "factor": plain_float(values.number(f"{prefix}factor", default=1.0))}
    if rope_type == "yarn":
        if values.get(f"{prefix}original_context_length") is not None:
            section["original_max_position_embeddings"] = values.count(f"{prefix}original_context_length")
        for keys, end in _YARN_KEYS:
            if values.get(f"{prefix}{end}") is not None:
                section[keys[0]] = plain_float(values.number(f"{prefix}{end}"))
    return section


def llama3_factors(rope: Config, head: int) -> Floats:
    """Return the factor that divides the frequency of each pair (``rope_type`` llama3).

    Short wavelengths are unchanged, long ones are stretched by ``factor``, those between are interpolated.

    >>> llama3_factors(Config({"rope_theta": 5e5, "factor": 8.0}), 8).round(2).tolist()
    [1.0, 1.0, 2.690000057220459, 8.0]
    """
    frequencies = 1.0 / rope.number("rope_theta") ** (np.arange(0, head, 2, dtype=np.float64) / head)
    waves = 2 * math.pi / frequencies
    factor = rope.number("factor", default=8.0)
    low, high, length = (rope.number(key, default=value) for key, value in _LLAMA3_DEFAULTS.items())
    smooth = (length / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves < length / high, 1.0, np.where(waves > length / low, factor, between))
    return factors.astype(np.float32)


def llama3_config(factors: Floats, theta: float, head: int) -> dict[str, Any] | None:
    """Return the ``rope_scaling`` with these factors; None if they are not the frequency factors of Llama 3.

    >>> rope = Config({"rope_theta": 5e5, "factor": 32.0})
    >>> llama3_config(llama3_factors(rope, 64), 5e5, 64)["factor"]
    32.0
    """
    usual = _LLAMA3_DEFAULTS["original_max_position_embeddings"]
    for length in (usual, *_TRAINED_LENGTHS):
        known = {**_LLAMA3_DEFAULTS, "original_max_position_embeddings": length}
        section = {"rope_type": "llama3", "factor": float(factors.max()), **known}
        expected = llama3_factors(Config({**section, "rope_theta": theta}), head)
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-4):
            return section
    return None


def proportional_factors(rope: Config, head: int) -> Floats:
    """Return divisors of frequencies with which only the first pairs of a head turn.

    >>> proportional_factors(Config({"partial_rotary_factor": 0.25}), 16).round(1).tolist()[:3]
    [1.0, 1.0, 1.0000000150474662e+30]
    """
    turning = int(head * rope.number("partial_rotary_factor", default=1.0) / 2)
    return np.where(np.arange(head // 2) < turning, 1.0, 1e30).astype(np.float32)


def longrope_attention_factor(context_length: int, original_length: int) -> float:
    """Return the factor by which longrope scales queries and keys.

    >>> round(longrope_attention_factor(131072, 4096), 4)
    1.1902
    """
    scale = context_length / original_length
    return math.sqrt(1 + math.log(scale) / math.log(original_length)) if scale > 1 else 1.0


def plain_float(value: float) -> float:
    """Return the shortest decimal number that rounds to an f32.

    >>> plain_float(float(np.float32(1e-6)))
    1e-06
    """
    return float(str(np.float32(value)))
