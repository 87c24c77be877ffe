"""Kernels of layers with a state that moves from token to token: convolutions and linear recurrences.

A row is one element of the output. No other row reads its state, a vector, so any thread can compute it.
All arrays are f32 in C order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.simd.f32 import exp
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i64, poke_f32
from lbrx.devices.cpu.simd.vectors import f32x8, lane, lane_sum, load, splat, store

ONE = np.float32(1.0)


@jit
def _silu(x: Any) -> Any:
    return x / (exp(x * -ONE) + ONE)


@jit
def _silu_one(x: Any) -> Any:
    return lane(_silu(f32x8(x)), 0)


@jit
def _exp_one(x: Any) -> Any:
    return lane(exp(f32x8(x)), 0)


def causal_conv(
    history: int, target: int, tokens: int, channels: int, weight: int, taps: int, bias: int, activates: int
) -> None:
    """``target[t, c] = bias[c] + sum over k of weight[k, c] history[t + k, c]``, then silu if it ``activates``."""
    like = f32x8(0.0)
    whole = channels // 8
    for token in range(tokens):
        rows, out = history + 4 * channels * token, target + 4 * channels * token
        for i in range(whole):
            total = load(like, bias, i)
            for tap in range(taps):
                total = total + load(like, weight + 4 * channels * tap, i) * load(like, rows + 4 * channels * tap, i)
            store(out, i, _silu(total) if activates else total)
        for c in range(8 * whole, channels):
            one = peek_f32(bias, c)
            for tap in range(taps):
                one += peek_f32(weight + 4 * channels * tap, c) * peek_f32(rows + 4 * channels * tap, c)
            poke_f32(out, c, _silu_one(one) if activates else one)


def selective_scan(
    first: int, stop: int, tokens: int, rows: int, size: int, state: int, values: int, target: int, steps: int, a: int,
    b: int, c: int,
) -> None:  # fmt: skip
    """Mamba: ``s[r] = exp(step[t, r] a[r]) s[r] + step[t, r] values[t, r] b[t]``, ``target[t, r] = s[r] . c[t]``."""
    like = f32x8(0.0)
    whole = size // 8
    for token in range(tokens):
        inputs, outputs = b + 4 * size * token, c + 4 * size * token
        for row in range(first, stop):
            at = rows * token + row
            step = peek_f32(steps, at)
            added = step * peek_f32(values, at)
            memory, decay = state + 4 * size * row, a + 4 * size * row
            total = splat(like, np.float32(0.0))
            for i in range(whole):
                kept = load(like, memory, i) * exp(load(like, decay, i) * step) + load(like, inputs, i) * added
                store(memory, i, kept)
                total = total + kept * load(like, outputs, i)
            rest = np.float32(0.0)
            for i in range(8 * whole, size):
                one = peek_f32(memory, i) * _exp_one(peek_f32(decay, i) * step) + peek_f32(inputs, i) * added
                poke_f32(memory, i, one)
                rest += one * peek_f32(outputs, i)
            poke_f32(target, at, lane_sum(total) + rest)


def state_space(
    first: int, stop: int, tokens: int, heads: int, width: int, size: int, state: int, values: int, target: int,
    decays: int, steps: int, groups: int, b: int, c: int, group_of: int,
) -> None:  # fmt: skip
    """Mamba 2: as `selective_scan`, with one decay for all of a head; heads share b and c with those of their group."""
    like = f32x8(0.0)
    whole = size // 8
    for token in range(tokens):
        for head in range(first, stop):
            skipped = 4 * size * (groups * token + peek_i64(group_of, head))
            inputs, outputs = b + skipped, c + skipped
            decay, step = peek_f32(decays, heads * token + head), peek_f32(steps, heads * token + head)
            for row in range(width * head, width * (head + 1)):
                at = heads * width * token + row
                added = step * peek_f32(values, at)
                memory = state + 4 * size * row
                total = splat(like, np.float32(0.0))
                for i in range(whole):
                    kept = load(like, memory, i) * decay + load(like, inputs, i) * added
                    store(memory, i, kept)
                    total = total + kept * load(like, outputs, i)
                rest = np.float32(0.0)
                for i in range(8 * whole, size):
                    one = peek_f32(memory, i) * decay + peek_f32(inputs, i) * added
                    poke_f32(memory, i, one)
                    rest += one * peek_f32(outputs, i)
                poke_f32(target, at, lane_sum(total) + rest)


def gated_delta(
    first: int, stop: int, tokens: int, heads: int, width: int, size: int, state: int, values: int, target: int,
    decays: int, steps: int, groups: int, b: int, c: int, group_of: int,
) -> None:  # fmt: skip
    """The gated delta rule: a state forgets, then moves towards the value that its key b should give; c is the query.

    ``s = decay s + step (value - decay s . b) b``, ``target = s . c``.
    """
    like = f32x8(0.0)
    whole = size // 8
    for token in range(tokens):
        for head in range(first, stop):
            skipped = 4 * size * (groups * token + peek_i64(group_of, head))
            key, query = b + skipped, c + skipped
            decay, step = peek_f32(decays, heads * token + head), peek_f32(steps, heads * token + head)
            for row in range(width * head, width * (head + 1)):
                at = heads * width * token + row
                memory = state + 4 * size * row
                total = splat(like, np.float32(0.0))
                for i in range(whole):
                    total = total + load(like, memory, i) * load(like, key, i)
                rest = np.float32(0.0)
                for i in range(8 * whole, size):
                    rest += peek_f32(memory, i) * peek_f32(key, i)
                added = step * (peek_f32(values, at) - decay * (lane_sum(total) + rest))
                total = splat(like, np.float32(0.0))
                for i in range(whole):
                    kept = load(like, memory, i) * decay + load(like, key, i) * added
                    store(memory, i, kept)
                    total = total + kept * load(like, query, i)
                rest = np.float32(0.0)
                for i in range(8 * whole, size):
                    one = peek_f32(memory, i) * decay + peek_f32(key, i) * added
                    poke_f32(memory, i, one)
                    rest += one * peek_f32(query, i)
                poke_f32(target, at, lane_sum(total) + rest)
