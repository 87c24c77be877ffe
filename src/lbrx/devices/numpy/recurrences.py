"""Convolutions and linear recurrences over tokens, computed in f64 and rounded once per call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lbrx.engine.arrays import Floats


def recur(operation: str, state: Floats, values: Floats, others: tuple[Any, ...], numbers: tuple[int, ...]) -> Floats:
    """One of `lbrx.engine.device.RECURRENCES`.

    >>> state, one = np.zeros((1, 1), np.float32), np.ones((2, 1), np.float32)
    >>> recur("causal_conv", state, one, (one, np.zeros(1, np.float32)), (0,)).tolist(), state.tolist()
    ([[1.0], [2.0]], [[1.0]])
    """
    with np.errstate(all="ignore"):
        if operation == "causal_conv":
            return _causal_conv(state, values, *others, *numbers)
        work = _UPDATES[operation]
        memory, out = state.astype(np.float64), np.empty(values.shape)
        for token, result in enumerate(out):
            memory = work(memory, values, token, result, *others)
        state[...] = memory
        return out.astype(np.float32)


def _causal_conv(state: Floats, values: Floats, weight: Floats, bias: Floats, activates: int) -> Floats:
    history = np.concatenate([state, values]).astype(np.float64)
    state[...] = history[len(history) - len(state) :]
    total = sum((history[tap : tap + len(values)] * row for tap, row in enumerate(weight)), np.float64(0)) + bias
    return np.asarray(total / (1 + np.exp(-total)) if activates else total, np.float32)


def _selective_scan(
    memory: Any, values: Floats, t: int, out: Any, steps: Floats, a: Floats, b: Floats, c: Floats
) -> Any:
    step = steps[t, :, None].astype(np.float64)
    memory = np.exp(step * a) * memory + step * values[t, :, None] * b[t]
    out[...] = memory @ c[t]
    return memory


def _state_space(
    memory: Any, values: Floats, t: int, out: Any, decays: Floats, steps: Floats, b: Floats, c: Floats, group_of: Any
) -> Any:
    decay, step = (each[t, :, None, None].astype(np.float64) for each in (decays, steps))
    memory = decay * memory + step * values[t, :, :, None] * b[t, group_of, None]
    out[...] = (memory * c[t, group_of, None]).sum(axis=-1)
    return memory


def _gated_delta(
    memory: Any, values: Floats, t: int, out: Any, decays: Floats, steps: Floats, b: Floats, c: Floats, group_of: Any
) -> Any:
    decay, step = (each[t, :, None, None].astype(np.float64) for each in (decays, steps))
    memory = decay * memory
    keys = b[t, group_of, None].astype(np.float64)
    missing = values[t, :, :, None] - (memory * keys).sum(axis=-1, keepdims=True)
    memory = memory + step * missing * keys
    out[...] = (memory * c[t, group_of, None]).sum(axis=-1)
    return memory


_UPDATES: dict[str, Callable[..., Any]] = {
    "selective_scan": _selective_scan,
    "state_space": _state_space,
    "gated_delta": _gated_delta,
}
