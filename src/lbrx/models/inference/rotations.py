"""How the positions of a layer rotate queries and keys, as its config says."""

from __future__ import annotations

import math
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import Rope
from lbrx.models.architectures.rope import FULL_ATTENTION, SLIDING_ATTENTION, longrope_factors, rope_section
from lbrx.tensors.rope import RopeConfig

_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")


def rope_of_layer(config: Config, rope: Rope, local: dict[str, Any]) -> RopeConfig:
    """Return the rotary embedding of a layer."""
    section = rope_section(config, SLIDING_ATTENTION if local["layer_type"] == SLIDING_ATTENTION else FULL_ATTENTION)
    theta, dims = section.number("rope_theta"), _dims(config, section, rope, local)
    rope_type = section.get("rope_type")
    if rope_type not in _ROPE_TYPES:
        known = ", ".join(_ROPE_TYPES)
        raise UsageError(f"{section.where}: positions of type {rope_type!r} are not known; expected one of {known}")
    if rope_type == "default":
        return RopeConfig(theta, dims)
    if (
        rope_type == "dynamic" and section.get("alpha") is not None and dims > 2
    ):  # a base for longer texts, whatever their length
        return RopeConfig(theta * section.number("alpha") ** (dims / (dims - 2)), dims)
    if rope_type == "proportional":
        pairs = int(section.number("partial_rotary_factor", default=1.0) * dims // 2)
        factor = section.number("factor", default=1.0)
        return RopeConfig(theta, dims, rope_type, factor=factor, rotated_pairs=pairs)
    context = config.count("max_position_embeddings")
    given = section.get("original_max_position_embeddings")
    original = config.get("original_max_position_embeddings") if given is None else given
    if original is None:
        original = context
    if isinstance(original, bool) or not isinstance(original, int | float) or not 1 <= original < 1 << 40:
        raise FormatError(f"{section.where}: the original length is {original!r:.60}; expected a number above zero")
    if rope_type == "longrope":
        return _longrope(section, theta, dims, context, int(original))
    return RopeConfig(
        theta,
        dims,
        rope_type,
        factor=section.number("factor"),
        original_context=context if rope_type == "dynamic" else int(original),
        low_frequency_factor=section.number("low_freq_factor", default=1.0),
        high_frequency_factor=section.number("high_freq_factor", default=4.0),
        beta_fast=section.number("beta_fast", default=32.0),
        beta_slow=section.number("beta_slow", default=1.0),
        attention_factor=_attention_factor(section),
        truncate=section.flag("truncate", default=True),
    )


def _dims(config: Config, section: Config, rope: Rope, local: dict[str, Any]) -> int:
    if rope.size is not None:
        return config.size(rope.size, **local)
    return int(config.size("head_dim", **local) * section.number("partial_rotary_factor", default=1.0))


def _attention_factor(section: Config) -> float | None:
    if section.get("attention_factor") is not None:
        return section.number("attention_factor")
    if not section.get("mscale") or not section.get("mscale_all_dim"):
        return None
    factor = section.number("factor")
    return _yarn_scale(factor, section.number("mscale")) / _yarn_scale(factor, section.number("mscale_all_dim"))


def _yarn_scale(factor: float, multiplier: float) -> float:
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(section: Config, theta: float, dims: int, context: int, original: int) -> RopeConfig:
    short, long = (longrope_factors(section, key, dims // 2) for key in ("short_factor", "long_factor"))
    factor = section.number("factor", default=context / original)
    return RopeConfig(
        theta,
        dims,
        "longrope",
        factor=factor,
        original_context=original,
        attention_factor=_attention_factor(section),
        short_factors=tuple(map(float, short)),
        long_factors=tuple(map(float, long)),
    )
