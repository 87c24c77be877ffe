"""Grouped attention: projections, norms of queries and keys, positions, and the KV cache."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.recording import run_in_step
from lbrx.errors import FormatError
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import Alibi, GroupedAttention
from lbrx.models.inference.functions import sigmoid
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, NormWeights, Reader, normalized, times
from lbrx.ops import cached_attention, rotate

_POSITION_STEP = 256  # of the first of two numbers that hold a position, exactly in f16 and bf16


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """``projections`` are the query, key and value matrices, or one joined matrix."""

    part: GroupedAttention
    projections: tuple[Matrix, ...]
    output: Matrix
    query_norm: NormWeights | None
    key_norm: NormWeights | None
    heads: int
    key_heads: int
    head_size: int
    is_joined: bool
    shares_keys: bool  # those of an earlier layer are used
    value_norm: NormWeights | None
    is_grouped: bool  # the joined matrix has the queries, key and value of a head of keys next to each other
    scale: float
    softcap: float | None
    clip: float | None
    slopes: Floats | None  # of ALiBi, [heads, 1, 2]
    chunk: int | None
    sinks: Floats | None
    gate: Matrix | None
    growth: tuple[int, float, int] | None  # of queries with positions: those of a step, its weight, the first


def attention_memory(part: GroupedAttention, config: Config, local: dict[str, Any]) -> Memory:
    """Return the sizes of keys and values; raise if heads cannot share them."""
    sizes = tuple(config.evaluate(each, **local) for each in (part.heads, part.key_heads, part.head_size))
    for size, name in zip(sizes, (part.heads, part.key_heads, part.head_size), strict=True):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise config.wrong(f"{name!r} is {size!r:.60}; expected a whole number above zero")
    heads, key_heads, head_size = sizes
    if heads % key_heads:
        raise FormatError(f"{config.where}: {heads} heads cannot share {key_heads} heads of keys; expected a divisor")
    more = 2 if local.get("has_alibi") else 0
    return Memory(keys=(key_heads, head_size + more, head_size))


def read_attention(reader: Reader, part: GroupedAttention, layer: LayerSpec) -> AttentionWeights:
    config, number, local = reader.spec.config, layer.number, layer.local
    is_joined = part.joined != "no" and reader.has("attn_qkv.weight", number)
    shares_keys, keys_are_values = (
        bool(config.evaluate(each, **local)) for each in (part.shares_keys, part.keys_are_values)
    )
    names: tuple[str, ...] = ("attn_qkv",) if is_joined else ("attn_q", "attn_k", "attn_v")
    if not is_joined:
        names = names[: 1 if shares_keys else 2 if keys_are_values else 3]
    heads, key_heads, head_size = (config.size(each, **local) for each in (part.heads, part.key_heads, part.head_size))
    norms: list[NormWeights | None] = [None, None]
    if part.qk_norm != "none" and config.evaluate(part.qk_norm_when, **local):
        for index, each in enumerate("q" if shares_keys else "qk"):
            norms[index] = reader.norm(f"attn_{each}_norm", number, part.qk_norm_function)
    scale = _scale(part, config, head_size, local)
    clip = None if part.clip is None or config.evaluate(part.clip) is None else config.real(part.clip)
    return AttentionWeights(
        part=part,
        projections=tuple(reader.matrix(name, number) for name in names),
        output=reader.matrix("attn_output", number),
        query_norm=norms[0],
        key_norm=norms[1],
        heads=heads,
        key_heads=key_heads,
        head_size=head_size,
        is_joined=is_joined,
        shares_keys=shares_keys,
        value_norm=NormWeights("rms", reader.spec.norm_epsilon) if part.normalizes_values else None,
        is_grouped=part.joined == "groups" and not reader.spec.is_gguf,
        scale=scale,
        softcap=None if config.get("attn_logit_softcapping") is None else config.number("attn_logit_softcapping"),
        clip=clip,
        slopes=_slopes(layer.alibi, config, heads, scale),
        chunk=None if part.chunk is None else config.size(part.chunk, **local) or None,
        sinks=reader.vector("attn_sinks.weight", number) if reader.has("attn_sinks.weight", number) else None,
        growth=_growth(part, config, local),
        gate=reader.matrix("attn_gate", number) if part.has_gate else None,
    )


def _growth(part: GroupedAttention, config: Config, local: dict[str, Any]) -> tuple[int, float, int] | None:
    if part.temperature is None:
        return None
    condition, step, weight = part.temperature
    if not config.evaluate(condition, **local):
        return None
    return max(config.size(step), 1), config.real(weight), part.first_position


def _scale(part: GroupedAttention, config: Config, head_size: int, local: dict[str, Any]) -> float:
    if part.scale is not None:
        return config.real(part.scale, **local)
    size: float = config.number("query_pre_attn_scalar", default=head_size)
    return float(size**-0.5)


def _slopes(alibi: Alibi | None, config: Config, heads: int, scale: float) -> Floats | None:
    """Return what the position of a key adds to a score, divided by the scale of scores."""
    if alibi is None:
        return None
    largest = config.real(alibi.largest)
    whole = 1 << int(math.log2(heads))
    powers = [(head + 1) / whole if head < whole else (2 * (head - whole) + 1) / (2 * whole) for head in range(heads)]
    slopes = np.array([2.0 ** (-largest * power) for power in powers])
    slopes = slopes if alibi.is_scaled else slopes / scale
    return np.repeat(slopes.astype(np.float32)[:, None, None], 2, axis=2)


def run_attention(values: Floats, weights: AttentionWeights, run: LayerRun) -> Floats:
    tokens, layer = len(values), run.layer
    queries, *others = _projected(values, weights)
    gate = None
    if weights.part.is_gated:
        queries, gate = queries[:, :, : weights.head_size], queries[:, :, weights.head_size :]
    elif weights.gate is not None:
        gate = times(values, weights.gate).reshape(tokens, weights.heads, -1).transpose(1, 0, 2)
    queries = _turned(queries, weights.query_norm, weights, run)
    if weights.shares_keys:
        keys, new_values = run.positions.shared[layer.layer_type]
    else:
        keys, new_values = others[0], others[-1]
        keys = _turned(keys, weights.key_norm, weights, run)
        new_values = new_values if weights.value_norm is None else normalized(new_values, weights.value_norm)
        run.positions.shared[layer.layer_type] = keys, new_values
    if weights.growth is not None:
        (factors,) = run.positions.tables(("growth", weights.growth), partial(_factors, weights.growth))
        queries = queries * factors
    if weights.slopes is not None:
        queries, keys = _with_positions(queries, keys, weights.slopes, run)
    mixed = cached_attention(
        queries,
        keys,
        new_values,
        run.cache.layers[layer.number],
        scale=weights.scale,
        window=layer.window,
        softcap=weights.softcap,
        chunk=weights.chunk,
        sinks=weights.sinks,
    )
    if gate is not None:
        mixed = run_in_step(_gated, mixed, gate)
    return times(mixed.transpose(1, 0, 2).reshape(tokens, weights.heads * weights.head_size), weights.output)


def _gated(values: Floats, gate: Floats) -> Floats:
    return values * sigmoid(gate)


def _turned(values: Floats, norm: NormWeights | None, weights: AttentionWeights, run: LayerRun) -> Floats:
    """Normalize and rotate queries or keys."""
    if not weights.part.norms_after_rope:
        values = _normed(values, norm)
    if run.layer.rope is not None:
        cosines, sines = run.positions.turns(run.layer.rope)
        values = rotate(values, cosines, sines, run.layer.rope_style)
    return _normed(values, norm) if weights.part.norms_after_rope else values


def _projected(values: Floats, weights: AttentionWeights) -> list[Floats]:
    """Return queries, keys and values ``[heads, n, head_size]``."""
    tokens, size = len(values), weights.head_size
    results = [times(values, matrix) for matrix in weights.projections]
    if weights.clip is not None and weights.part.qk_norm != "row":
        results = [np.clip(each, np.float32(-weights.clip), np.float32(weights.clip)) for each in results]
    if weights.is_joined and weights.is_grouped:
        return _groups(results[0], weights)
    if weights.is_joined:
        ends = np.cumsum([weights.heads * size, weights.key_heads * size, weights.key_heads * size]).tolist()
        results = [results[0][:, start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if weights.part.qk_norm == "row":
        norms = (weights.query_norm, weights.key_norm, None)
        results = [each if norm is None else normalized(each, norm) for each, norm in zip(results, norms, strict=True)]
        if weights.clip is not None:
            results = [np.clip(each, np.float32(-weights.clip), np.float32(weights.clip)) for each in results]
    widths = (2 * size if weights.part.is_gated else size, size, size)
    return [each.reshape(tokens, -1, width).transpose(1, 0, 2) for each, width in zip(results, widths, strict=False)]


def _groups(joined: Floats, weights: AttentionWeights) -> list[Floats]:
    tokens, size, group = len(joined), weights.head_size, weights.heads // weights.key_heads
    whole = joined.reshape(tokens, weights.key_heads, group + 2, size)
    if group == 1:
        queries = whole[:, :, 0].transpose(1, 0, 2)
    elif weights.key_heads == 1:
        queries = whole[:, 0, :group].transpose(1, 0, 2)
    else:
        queries = whole[:, :, :group].transpose(1, 2, 0, 3).reshape(weights.heads, tokens, size)
    return [queries, *(whole[:, :, group + number].transpose(1, 0, 2) for number in range(2))]


def _normed(values: Floats, norm: NormWeights | None) -> Floats:
    """Normalize each head. Rows are normalized before they are split into heads."""
    if norm is None or norm.is_of_rows(values.shape[2]):
        return values
    if norm.weight is None or norm.weight.ndim == 1:
        return normalized(values, norm)
    return normalized(values, norm.without_weight()) * norm.weight[:, None, :]


def _with_positions(queries: Floats, keys: Floats, slopes: Floats, run: LayerRun) -> tuple[Floats, Floats]:
    """Append slopes to queries and positions to keys: their product is what ALiBi adds to a score."""
    (positions,) = run.positions.tables("alibi", _two_numbers)
    tokens = queries.shape[1]
    factors = np.ascontiguousarray(np.broadcast_to(slopes, (len(slopes), tokens, 2)))
    queries = np.concatenate([queries, factors], axis=2)
    return queries, np.concatenate([keys, np.broadcast_to(positions, (len(keys), tokens, 2))], axis=2)


def _factors(growth: tuple[int, float, int], first: int, tokens: int) -> tuple[Floats, ...]:
    """Return what the queries of each position are multiplied by: one plus a weighted logarithm of its step."""
    step, weight, first_position = growth
    steps = (np.arange(first, first + tokens) + first_position) // step
    return ((1 + weight * np.log1p(steps.astype(np.float64))).astype(np.float32)[:, None],)


def _two_numbers(first: int, tokens: int) -> tuple[Floats, ...]:
    """Return each position as a multiple of 256 and a rest."""
    positions = np.arange(first, first + tokens)
    rest = positions % _POSITION_STEP
    return (np.stack([positions - rest, rest], axis=1).astype(np.float32),)


GROUPED_ATTENTION = PartCode(read_attention, run_attention, attention_memory)
