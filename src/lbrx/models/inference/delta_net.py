"""Linear attention with the gated delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.recording import run_on_state
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.mixer_records import GatedDeltaNet
from lbrx.models.inference.functions import sigmoid, softplus
from lbrx.models.inference.mamba import read_decay
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.short_conv import conv_memory, read_conv
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, Reader, times
from lbrx.ops import causal_conv, gated_delta, rms_norm, silu_mul

_EPSILON = np.float32(1e-6)  # of the norms of queries and keys
Sizes = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    joined: Matrix  # queries, keys and values
    gate: Matrix | None  # None: ``joined`` has, for each head of keys, the query, the key, its values and their gates
    beta: Matrix  # how far the state moves, and for a matrix of both, its decay
    alpha: Matrix | None
    conv: Floats
    step_bias: Floats
    a: Floats
    norm: Floats
    epsilon: float
    output: Matrix
    key_heads: int
    heads: int
    key_size: int
    size: int
    group_of: Any


def _sizes(config: Config) -> Sizes:
    names = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    key_heads, heads, key_size, size = (config.count(name) for name in names)
    if heads % key_heads:
        raise config.wrong(f"{names[0]!r} is {key_heads}; expected a divisor of {names[1]!r}, which is {heads}")
    return key_heads, heads, key_size, size


def memory(_part: GatedDeltaNet, config: Config, local: dict[str, Any]) -> Memory:
    key_heads, heads, key_size, size = _sizes(config)
    name, (rows, _) = conv_memory("linear_conv_kernel_dim", "linear_num_key_heads", config, local)
    return Memory(states=((name, (rows, 2 * key_heads * key_size + heads * size)), ("delta", (heads, size, key_size))))


def read(reader: Reader, part: GatedDeltaNet, layer: LayerSpec) -> DeltaNetWeights:
    number, config = layer.number, reader.spec.config
    key_heads, heads, key_size, size = _sizes(config)
    is_tiled = part.tiled_in_gguf and reader.spec.is_gguf
    conv, _ = read_conv(reader, "ssm_conv1d", number)
    names = reader.spec.family.by_gguf_name
    has_both = "ssm_ba.weight" in names
    numbers = np.arange(heads)
    whole = _whole(reader, number)
    return DeltaNetWeights(
        joined=reader.matrix("attn_qkv", number) if whole is None else whole,
        gate=reader.matrix("attn_gate", number) if whole is None else None,
        beta=reader.matrix("ssm_ba" if has_both else "ssm_beta", number),
        alpha=None if has_both else reader.matrix("ssm_alpha", number),
        conv=conv,
        step_bias=reader.vector("ssm_dt.bias", number),
        a=read_decay(reader, number),
        norm=reader.vector("ssm_norm.weight", number),
        epsilon=config.number("rms_norm_eps"),
        output=reader.matrix("ssm_out", number),
        key_heads=key_heads,
        heads=heads,
        key_size=key_size,
        size=size,
        group_of=numbers % key_heads if is_tiled else numbers // (heads // key_heads),
    )


def _whole(reader: Reader, layer: int) -> Matrix | None:
    """Return the matrix of queries, keys, values and gates as most checkpoints have it; None if it is separate."""
    family = reader.spec.family
    part = reader.weight("attn_qkv.weight").name
    name = next((each.name for each in family.joined if part in each.parts), None)
    if name is None or not reader.source.has(reader.naming.expand(name, layer)):
        return None
    weight = next(each for each in family.layer if each.name == name)
    return Matrix(reader.source.tensor(reader.naming.expand(name, layer), reader.shape(weight, layer)))


def run(values: Floats, weights: DeltaNetWeights, run: LayerRun) -> Floats:
    tokens, key_heads, heads, size = len(values), weights.key_heads, weights.heads, weights.size
    keys = key_heads * weights.key_size
    joined = times(values, weights.joined)
    gate = _gates(joined, weights) if weights.gate is None else times(values, weights.gate)
    beta = times(values, weights.beta)
    if weights.alpha is None:  # for each head of keys: first all betas, then all alphas
        both = beta.reshape(tokens, key_heads, 2, heads // key_heads)
        beta, alpha = (both[:, :, number].reshape(tokens, heads) for number in range(2))
    else:
        alpha = times(values, weights.alpha)

    def mix(arrays: Mapping[str, Floats], given: Floats, beta: Floats, alpha: Floats) -> Floats:
        inputs = _inputs(given, weights) if weights.gate is None else given
        mixed = causal_conv(inputs, weights.conv, arrays["conv"])
        shape = len(given), key_heads, weights.key_size
        query, key = (_unit(mixed[:, at : at + keys].reshape(shape)) for at in (0, keys))
        query = query * np.float32(weights.key_size**-0.5)
        value = mixed[:, 2 * keys :].reshape(len(given), heads, size)
        decays = np.exp(softplus(alpha + weights.step_bias) * weights.a)
        moves = sigmoid(beta)
        result = gated_delta(value, decays, moves, key, query, arrays["delta"], weights.group_of)
        return result.reshape(len(given), heads * size)

    mixed = run_on_state(mix, run.cache.states[run.layer.number], joined, beta, alpha, shape=(tokens, heads * size))
    normed = rms_norm(mixed.reshape(tokens, heads, size), weights.norm, weights.epsilon)
    return times(silu_mul(gate, normed.reshape(tokens, heads * size)), weights.output)


def _grouped(joined: Floats, weights: DeltaNetWeights) -> tuple[Floats, int]:
    """Return ``[n, heads of keys, elements]``, and where the gates begin."""
    grouped = joined.reshape(len(joined), weights.key_heads, -1)
    return grouped, grouped.shape[2] - weights.heads // weights.key_heads * weights.size


def _gates(joined: Floats, weights: DeltaNetWeights) -> Floats:
    grouped, end = _grouped(joined, weights)
    return grouped[:, :, end:].reshape(len(joined), weights.heads * weights.size)


def _inputs(joined: Floats, weights: DeltaNetWeights) -> Floats:
    """Return all queries, then all keys, then all values."""
    grouped, end = _grouped(joined, weights)
    size = weights.key_size
    parts = (grouped[:, :, :size], grouped[:, :, size : 2 * size], grouped[:, :, 2 * size : end])
    return np.concatenate([part.reshape(len(joined), -1) for part in parts], axis=1)


def _unit(values: Floats) -> Floats:
    """Divide vectors by their lengths."""
    lengths: Floats = np.sqrt((values * values).sum(axis=-1, keepdims=True) + _EPSILON)
    return values / lengths


DELTA_NET = PartCode(read, run, memory)
