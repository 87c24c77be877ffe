"""State spaces: Mamba and Mamba 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.recording import run_on_state
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.mixer_records import Mamba, Mamba2
from lbrx.models.inference.functions import softplus
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.short_conv import conv_memory, read_conv
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, NormWeights, Reader, normalized, times
from lbrx.ops import causal_conv, rms_norm, selective_scan, silu_mul, state_space


def read_decay(reader: Reader, layer: int) -> Floats:
    """Return the logarithms of decays for a time step of 1, all below zero. GGUF files have them, others ``A_log``."""
    stored = reader.vector("ssm_a", layer)
    return stored if reader.spec.is_gguf else -np.exp(stored.astype(np.float64)).astype(np.float32)


# -- Mamba -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MambaWeights:
    joined: Matrix  # values and gate
    conv: Floats
    bias: Floats | None
    dynamic: Matrix  # time steps, b and c
    steps: Matrix
    a: Floats
    d: Floats
    norms: tuple[NormWeights | None, ...]  # of time steps, b and c
    output: Matrix


def mamba_memory(part: Mamba, config: Config, local: dict[str, Any]) -> Memory:
    inner, size = config.size(part.inner, **local), config.size(part.size, **local)
    return Memory(states=(conv_memory(part.taps, part.inner, config, local), ("ssm", (inner, size))))


def read_mamba(reader: Reader, part: Mamba, layer: LayerSpec) -> MambaWeights:
    number, config = layer.number, reader.spec.config
    conv, bias = read_conv(reader, "ssm_conv1d", number)
    norms: list[NormWeights | None] = [None] * 3
    if part.norms != "none":
        plain = NormWeights("rms", config.real(part.norm_epsilon))
        has_weights = part.norms == "weights"
        norms = [reader.norm(f"ssm_{each}_norm", number, "rms") if has_weights else plain for each in ("dt", "b", "c")]
    return MambaWeights(
        joined=reader.matrix("ssm_in", number),
        conv=conv,
        bias=bias,
        dynamic=reader.matrix("ssm_x", number),
        steps=reader.matrix("ssm_dt", number),
        a=read_decay(reader, number),
        d=reader.vector("ssm_d", number),
        norms=tuple(norms),
        output=reader.matrix("ssm_out", number),
    )


def run_mamba(values: Floats, weights: MambaWeights, run: LayerRun) -> Floats:
    inner, size = weights.a.shape
    state = run.cache.states[run.layer.number]
    joined = times(values, weights.joined)

    def convolve(arrays: Mapping[str, Floats], given: Floats) -> Floats:
        return causal_conv(given, weights.conv, arrays["conv"], weights.bias)

    def scan(arrays: Mapping[str, Floats], x: Floats, steps: Floats, b: Floats, c: Floats) -> Floats:
        return selective_scan(x, softplus(steps), weights.a, b, c, arrays["ssm"]) + x * weights.d

    shape = len(values), inner
    x = run_on_state(convolve, state, joined[:, :inner], shape=shape)
    dynamic = times(x, weights.dynamic)
    rank = dynamic.shape[1] - 2 * size
    parts = (dynamic[:, :rank], dynamic[:, rank : rank + size], dynamic[:, rank + size :])
    steps, b, c = (_normed(each, norm) for each, norm in zip(parts, weights.norms, strict=True))
    mixed = run_on_state(scan, state, x, times(steps, weights.steps), b, c, shape=shape)
    return times(silu_mul(joined[:, inner:], mixed), weights.output)


def _normed(values: Floats, norm: NormWeights | None) -> Floats:
    return values if norm is None else normalized(values, norm)


MAMBA = PartCode(read_mamba, run_mamba, mamba_memory)


# -- Mamba 2 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mamba2Weights:
    joined: Matrix  # gate, values, b, c and time steps
    scales: Floats | None  # of their columns
    conv: Floats
    bias: Floats | None
    step_bias: Floats
    a: Floats
    d: Floats
    norm: Floats | None  # [groups, elements]
    epsilon: float
    gates_last: bool  # the gate is applied after the norm
    limits: tuple[float, float]
    heads: int
    width: int
    groups: int
    size: int
    output: Matrix
    input_scale: float | None
    output_scale: float | None


def _sizes(part: Mamba2, config: Config, local: dict[str, Any]) -> tuple[int, int, int, int]:
    names = part.heads, part.width, part.groups, part.size
    heads, width, groups, size = (config.size(each, **local) for each in names)
    if groups < 1 or heads % groups:
        raise config.wrong(f"{part.groups!r} is {groups}; expected a divisor of {part.heads!r}, which is {heads}")
    return heads, width, groups, size


def mamba2_memory(part: Mamba2, config: Config, local: dict[str, Any]) -> Memory:
    heads, width, groups, size = _sizes(part, config, local)
    name, (rows, _) = conv_memory(part.taps, part.heads, config, local)
    return Memory(states=((name, (rows, heads * width + 2 * groups * size)), ("ssm", (heads, width, size))))


def read_mamba2(reader: Reader, part: Mamba2, layer: LayerSpec) -> Mamba2Weights:
    number, config = layer.number, reader.spec.config
    heads, width, groups, size = _sizes(part, config, layer.local)
    conv, bias = read_conv(reader, "ssm_conv1d", number)
    has_norm = bool(config.evaluate(part.norm_when))
    return Mamba2Weights(
        joined=reader.matrix("ssm_in", number),
        scales=_column_scales(part, config, heads * width, groups * size, heads),
        conv=conv,
        bias=bias,
        step_bias=reader.vector("ssm_dt.bias", number),
        a=read_decay(reader, number).reshape(heads),
        d=reader.vector("ssm_d", number).reshape(heads, 1),
        norm=reader.vector("ssm_norm.weight", number).reshape(groups, -1) if has_norm else None,
        epsilon=config.real(part.epsilon),
        gates_last=bool(config.evaluate(part.norm_before_gate)),
        limits=_limits(part, config),
        heads=heads,
        width=width,
        groups=groups,
        size=size,
        output=reader.matrix("ssm_out", number),
        input_scale=_scale(part.input_scale, config),
        output_scale=_scale(part.output_scale, config),
    )


def _scale(expression: str | None, config: Config) -> float | None:
    value = None if expression is None else config.real(expression)
    return None if value == 1 else value


def _column_scales(part: Mamba2, config: Config, inner: int, vectors: int, heads: int) -> Floats | None:
    if part.scales is None or config.evaluate(part.scales) is None:
        return None
    factors = [config.real(f"{part.scales}[{number}]") for number in range(5)]
    return np.repeat(np.array(factors, np.float32), (inner, inner, vectors, vectors, heads))


def _limits(part: Mamba2, config: Config) -> tuple[float, float]:
    """Return the smallest and the largest time step."""
    given = config.get(part.limits)
    if not isinstance(given, list | tuple):
        return 0.0, math.inf
    # transformers writes {"__float__": "Infinity"}, because JSON has no infinite numbers.
    limits = [each.get("__float__") if isinstance(each, Mapping) else each for each in given]
    match [math.inf if each in ("Infinity", math.inf) else each for each in limits]:
        case [int() | float() as least, int() | float() as most] if 0 <= least <= most:
            return float(least), float(most)
    raise config.wrong(f"{part.limits!r} is {given!r:.60}; expected the smallest and the largest time step")


def run_mamba2(values: Floats, weights: Mamba2Weights, run: LayerRun) -> Floats:
    inner, vectors = weights.heads * weights.width, weights.groups * weights.size
    channels = inner + 2 * vectors
    inputs = values if weights.input_scale is None else values * np.float32(weights.input_scale)
    joined = times(inputs, weights.joined)
    if weights.scales is not None:
        joined = joined * weights.scales
    gate, x, steps = joined[:, :inner], joined[:, inner : inner + channels], joined[:, inner + channels :]
    group_of = np.arange(weights.heads) // (weights.heads // weights.groups)
    limits = weights.limits

    def mix(arrays: Mapping[str, Floats], given: Floats, raw_steps: Floats) -> Floats:
        tokens = len(given)
        mixed = causal_conv(given, weights.conv, arrays["conv"], weights.bias)
        heads = np.ascontiguousarray(mixed[:, :inner]).reshape(tokens, weights.heads, weights.width)
        b, c = (mixed[:, at : at + vectors].reshape(tokens, weights.groups, -1) for at in (inner, inner + vectors))
        dt = np.clip(softplus(raw_steps + weights.step_bias), np.float32(limits[0]), np.float32(limits[1]))
        result = state_space(heads, np.exp(dt * weights.a), dt, b, c, arrays["ssm"], group_of) + heads * weights.d
        return result.reshape(tokens, inner)

    mixed = run_on_state(mix, run.cache.states[run.layer.number], x, steps, shape=(len(values), inner))
    result = times(_gated_norm(mixed, gate, weights), weights.output)
    return result if weights.output_scale is None else result * np.float32(weights.output_scale)


def _gated_norm(values: Floats, gate: Floats, weights: Mamba2Weights) -> Floats:
    if weights.norm is None:
        return silu_mul(gate, values)
    inputs = values if weights.gates_last else silu_mul(gate, values)
    grouped = inputs.reshape(len(values), *weights.norm.shape)
    normed = rms_norm(grouped, np.ones(weights.norm.shape[1], np.float32), weights.epsilon)
    result = normed.reshape(values.shape) * weights.norm.reshape(-1)
    return silu_mul(gate, result) if weights.gates_last else result


MAMBA2 = PartCode(read_mamba2, run_mamba2, mamba2_memory)
