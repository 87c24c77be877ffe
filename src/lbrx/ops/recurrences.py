"""Convolutions and linear recurrences over tokens, with a state that is carried from call to call.

A call on many tokens gives the bits of calls on the same tokens in pieces. Each function overwrites ``state`` with the
state after the last token. Heads are numbered; ``group_of`` has, for each head, the number of the vectors it uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.device import device
from lbrx.errors import ShapeError
from lbrx.settings import settings

Numbers = npt.NDArray[np.int64]


def causal_conv(
    x: Values, weight: Values, state: Floats, bias: Values | None = None, *, activation: bool = True
) -> Floats:
    """Return ``bias + sum over k of weight[k] * x[t - taps + 1 + k]`` for each token t and channel, then its silu.

    ``x`` is [tokens, channels] and ``weight`` [taps, channels]; ``state`` has the taps - 1 rows before ``x``.

    >>> x, state = np.array([[1.0], [2.0]], np.float32), np.zeros((1, 1), np.float32)
    >>> causal_conv(x, np.array([[10.0], [1.0]], np.float32), state, activation=False).tolist(), state.tolist()
    ([[1.0], [12.0]], [[2.0]])
    """
    values, factors = floats(x), floats(weight)
    taps, channels = factors.shape
    terms = np.zeros(channels, np.float32) if bias is None else floats(bias)
    shapes = {"values": (len(values), channels), "state": (taps - 1, channels), "bias": (channels,)}
    _check("causal_conv", shapes, values=values, state=state, bias=terms)
    return _recur("causal_conv", state, values, (factors, terms), (int(activation),))


def selective_scan(x: Values, steps: Values, a: Values, b: Values, c: Values, state: Floats) -> Floats:
    """Return what Mamba's recurrence gives for each token t and channel r: ``state[r] @ c[t]`` after the update
    ``state[r] = exp(steps[t, r] * a[r]) * state[r] + steps[t, r] * x[t, r] * b[t]``.

    ``x`` and ``steps`` are [tokens, channels], ``a`` and ``state`` [channels, size], ``b`` and ``c`` [tokens, size].

    >>> one = np.ones((2, 1), np.float32)
    >>> selective_scan(one, one, np.zeros((1, 1), np.float32), one, one, np.zeros((1, 1), np.float32)).tolist()
    [[1.0], [2.0]]
    """
    values, *others = (floats(each) for each in (x, steps, a, b, c))
    (tokens, channels), size = values.shape, state.shape[1]
    shapes = {"steps": (tokens, channels), "a": (channels, size), "b": (tokens, size), "c": (tokens, size)}
    given = dict(zip(shapes, others, strict=True))
    _check("selective_scan", {**shapes, "state": (channels, size)}, state=state, **given)
    return _recur("selective_scan", state, values, tuple(others))


def state_space(
    x: Values, decays: Values, steps: Values, b: Values, c: Values, state: Floats, group_of: Numbers
) -> Floats:
    """Return what Mamba 2's recurrence gives for each token t and head h: ``state[h] @ c[t, g]`` after the update
    ``state[h] = decays[t, h] * state[h] + steps[t, h] * outer(x[t, h], b[t, g])``, where g is ``group_of[h]``.

    ``x`` is [tokens, heads, width], ``decays`` and ``steps`` are [tokens, heads], ``b`` and ``c`` [tokens, groups,
    size], and ``state`` is [heads, width, size].

    >>> one = np.ones((2, 1), np.float32)
    >>> x, state = np.ones((2, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    >>> state_space(x, one, one, x, x, state, np.zeros(1, np.int64)).ravel().tolist()
    [1.0, 2.0]
    """
    return _of_heads("state_space", x, decays, steps, b, c, state, group_of)


def gated_delta(
    x: Values, decays: Values, steps: Values, keys: Values, queries: Values, state: Floats, group_of: Numbers
) -> Floats:
    """Return what the gated delta rule gives for each token t and head h: ``state[h] @ queries[t, g]`` after the
    updates ``state[h] *= decays[t, h]`` and ``state[h] += steps[t, h] * outer(x[t, h] - state[h] @ keys[t, g],
    keys[t, g])``, where g is ``group_of[h]``. Shapes are those of `state_space`.

    >>> one = np.ones((2, 1), np.float32)
    >>> x, state = np.ones((2, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    >>> gated_delta(x, one, one / 2, x, x, state, np.zeros(1, np.int64)).ravel().tolist()
    [0.5, 0.75]
    """
    return _of_heads("gated_delta", x, decays, steps, keys, queries, state, group_of)


def _of_heads(
    name: str,
    x: Values,
    decays: Values,
    steps: Values,
    b: Values,
    c: Values,
    state: Floats,
    group_of: Numbers,
) -> Floats:
    values, *others = (floats(each) for each in (x, decays, steps, b, c))
    (tokens, heads, width), (_, groups, size) = values.shape, others[2].shape
    vectors = tokens, groups, size
    shapes = {"decays": (tokens, heads), "steps": (tokens, heads), "b": vectors, "c": vectors}
    given = dict(zip(shapes, others, strict=True))
    _check(name, {**shapes, "state": (heads, width, size)}, state=state, **given)
    if group_of.shape != (heads,) or group_of.dtype != np.int64 or not ((group_of >= 0) & (group_of < groups)).all():
        raise ShapeError(f"{name}: the groups of heads are {group_of!r:.80}; expected {heads} numbers below {groups}")
    return _recur(name, state, values, (*others, np.ascontiguousarray(group_of)))


def _check(name: str, shapes: dict[str, tuple[int, ...]], **given: Floats) -> None:
    for key, array in given.items():
        if array.shape != shapes[key]:
            raise ShapeError(f"{name}: {key} has shape {array.shape}; expected {shapes[key]}")
    state = given["state"]
    if state.dtype != np.float32 or not state.flags.c_contiguous:
        raise ShapeError(f"{name}: the state is {state.dtype} with strides {state.strides}; expected f32 in C order")


def _recur(name: str, state: Floats, values: Floats, others: tuple[Any, ...], numbers: tuple[int, ...] = ()) -> Floats:
    return device(settings.device).recur(name, state, values, others, numbers)
