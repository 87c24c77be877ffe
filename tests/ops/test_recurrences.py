"""Convolutions and linear recurrences: against NumPy, on every device, in pieces, and on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lbrx.engine.device import RECURRENCES
from lbrx.errors import ShapeError
from lbrx.ops import causal_conv, gated_delta, selective_scan, state_space
from lbrx.settings import using

TOKENS, HEADS, WIDTH, GROUPS = 13, 6, 5, 3
Arrays = dict[str, Any]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def _conv(size: int, activation: bool = True) -> tuple[Callable[..., Any], Arrays, Any]:
    x, weight, bias, state = normal(TOKENS, size), normal(4, size), normal(size, seed=1), normal(3, size)
    history = np.concatenate([state, x]).astype(np.float64)
    total = np.stack([(history[t : t + 4] * weight).sum(0) + bias for t in range(TOKENS)])
    want = total / (1 + np.exp(-total)) if activation else total
    return (
        lambda **given: causal_conv(**given, bias=bias, activation=activation),
        {
            "x": x,
            "state": state,
            "weight": weight,
        },
        (want, history[-3:]),
    )


def _scan(size: int) -> tuple[Callable[..., Any], Arrays, Any]:
    rows = HEADS * WIDTH
    x, steps, a = normal(TOKENS, rows), abs(normal(TOKENS, rows, seed=1)), -abs(normal(rows, size))
    b, c, state = normal(TOKENS, size), normal(TOKENS, size, seed=1), normal(rows, size)
    memory, want = state.astype(np.float64), np.empty((TOKENS, rows))
    for t in range(TOKENS):
        for r in range(rows):
            memory[r] = np.exp(steps[t, r] * a[r]) * memory[r] + steps[t, r] * x[t, r] * b[t]
            want[t, r] = memory[r] @ c[t]
    return selective_scan, {"x": x, "state": state, "steps": steps, "a": a, "b": b, "c": c}, (want, memory)


def _heads(function: Callable[..., Any], size: int) -> tuple[Callable[..., Any], Arrays, Any]:
    x, state = normal(TOKENS, HEADS, WIDTH), normal(HEADS, WIDTH, size)
    decays, steps = np.exp(-abs(normal(TOKENS, HEADS))), abs(normal(TOKENS, HEADS, seed=1)) / 2
    b, c = (normal(TOKENS, GROUPS, size, seed=seed) / np.float32(np.sqrt(size)) for seed in (2, 3))
    group_of = np.array([0, 2, 1, 1, 0, 2])
    memory, want = state.astype(np.float64), np.empty(x.shape)
    for t in range(TOKENS):
        for h, g in enumerate(group_of):
            memory[h] *= decays[t, h]
            value = x[t, h] - memory[h] @ b[t, g] if function is gated_delta else x[t, h]
            memory[h] += steps[t, h] * np.outer(value, b[t, g])
            want[t, h] = memory[h] @ c[t, g]
    given = {"x": x, "state": state, "decays": decays, "steps": steps}
    names = ("keys", "queries") if function is gated_delta else ("b", "c")
    return (
        lambda **arrays: function(**arrays, group_of=group_of),
        given | dict(zip(names, (b, c), strict=True)),
        (want, memory),
    )


CASES: dict[str, Callable[[int], Any]] = {
    "causal_conv": _conv,
    "selective_scan": _scan,
    "state_space": lambda size: _heads(state_space, size),
    "gated_delta": lambda size: _heads(gated_delta, size),
}


def run(function: Callable[..., Any], given: Arrays, pieces: tuple[int, ...] = (TOKENS,)) -> tuple[Any, Any]:
    """Results and the last state, computed in pieces of tokens."""
    state, start, results = given["state"].copy(), 0, []
    for tokens in pieces:
        part = {key: value[start : start + tokens] if len(value) == TOKENS else value for key, value in given.items()}
        results.append(function(**{**part, "state": state}))
        start += tokens
    return np.concatenate(results), state


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("size", [19, 32])
@pytest.mark.parametrize("name", RECURRENCES)
def test_values_and_states(name: str, size: int, device: Any) -> None:
    function, given, (want, last) = CASES[name](size)
    with using(device=device):
        got, state = run(function, given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(state, last, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", RECURRENCES)
def test_pieces_and_threads_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, given, _ = CASES[name](19)
    want = [each.tobytes() for each in run(function, given)]
    for least in ("_LEAST_STATE", "_LEAST_RESULTS"):
        monkeypatch.setattr(f"lbrx.devices.cpu.ops.recurrences.{least}", 64)
    for threads in (1, 3):
        with using(threads=threads):
            for pieces in ((TOKENS,), (1,) * TOKENS, (4, 1, 8)):
                assert [each.tobytes() for each in run(function, given, pieces)] == want


def test_a_convolution_without_activation() -> None:
    function, given, (want, _) = _conv(11, activation=False)
    np.testing.assert_allclose(run(function, given)[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RECURRENCES)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    function, given, _ = CASES[name](8)
    for key in set(given) - {"weight", "x"}:
        with pytest.raises(ShapeError, match=name):
            function(**{**given, key: given[key][..., :-1]})
    with pytest.raises(ShapeError, match="f32 in C order"):
        function(**{**given, "state": given["state"].astype(np.float64)})


def test_groups_that_are_not_there_are_refused() -> None:
    one = np.ones((1, 1, 1), np.float32)
    for group in (-1, 1):
        with pytest.raises(ShapeError, match="numbers below 1"):
            state_space(one, one[0], one[0], one, one, one.copy(), np.array([group]))
