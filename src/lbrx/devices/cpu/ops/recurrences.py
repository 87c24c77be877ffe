"""Convolutions and linear recurrences over tokens: kernels on some rows or heads at a time, on all threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.build.native import address, run
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges

_LEAST_STATE = 16 << 10  # elements of states that are worth another thread
_LEAST_RESULTS = 64 << 10


def recur(operation: str, state: Floats, values: Floats, others: tuple[Any, ...], numbers: tuple[int, ...]) -> Floats:
    """One of `lbrx.engine.device.RECURRENCES`."""
    if operation == "causal_conv":
        return _causal_conv(state, values, *others, *numbers)
    work = _selective_scan if operation == "selective_scan" else _of_heads
    out = np.empty_like(values)
    if values.size:
        work(operation, state, values, others, out)
    return out


def _causal_conv(state: Floats, values: Floats, weight: Floats, bias: Floats, activates: int) -> Floats:
    taps, channels = weight.shape
    history = np.concatenate([state, values])
    state[...] = history[len(history) - len(state) :]
    out = np.empty_like(values)
    source, target, options = address(history), address(out), (address(weight), taps, address(bias), activates)

    def work(first: int, stop: int) -> None:
        skipped = 4 * channels * first
        run("recurrences", "causal_conv", source + skipped, target + skipped, stop - first, channels, *options)

    in_ranges(len(out), max(1, _LEAST_RESULTS // channels), work)
    return out


def _selective_scan(operation: str, state: Floats, values: Floats, others: tuple[Any, ...], out: Floats) -> None:
    tokens, rows = values.shape
    size = state.shape[1]
    arguments = tokens, rows, size, *map(address, (state, values, out, *others))
    least = max(1, _LEAST_STATE // size)
    in_ranges(rows, least, lambda first, stop: run("recurrences", operation, first, stop, *arguments))


def _of_heads(operation: str, state: Floats, values: Floats, others: tuple[Any, ...], out: Floats) -> None:
    decays, steps, b, c, group_of = others
    tokens, heads, width = values.shape
    sizes = tokens, heads, width, state.shape[2]
    arrays = *map(address, (state, values, out, decays, steps)), b.shape[1], *map(address, (b, c, group_of))
    least = max(1, _LEAST_STATE // (width * state.shape[2]))
    in_ranges(heads, least, lambda first, stop: run("recurrences", operation, first, stop, *sizes, *arrays))
