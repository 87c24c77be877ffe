"""Where operations run: on the device that was asked for, or on the CPU where a GPU cannot, with one warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.devices.metal.context.current import metal_context
from lbrx.devices.metal.context.transfers import transfers
from lbrx.engine.device import CpuFallback
from support.strategies import assert_same

ARRAY = np.random.default_rng(12).standard_normal((5, 60)).astype(np.float32)
WIDE = ARRAY.astype(np.float64)
RANKS = np.argsort(np.argsort(ARRAY, axis=-1), axis=-1)
NO_F64, NO_RANKS = "a GPU has no f64", "the Metal backend cannot rank along rows"
LEFT_TO_THE_CPU: dict[str, tuple[str, Callable[[], lbrx.Tensor], Any]] = {
    "arithmetic in f64": (NO_F64, lambda: lbrx.tensor(WIDE) * 3, WIDE * 3),
    "a reduction of f64": (NO_F64, lambda: lbrx.tensor(WIDE).max(), WIDE.max()),
    "rows of f64": (NO_F64, lambda: lbrx.tensor(WIDE).max(axis=-1), WIDE.max(-1)),
    "a cast to f64": (NO_F64, lambda: lbrx.tensor(ARRAY).to("f64"), WIDE),
    "a cast from f64": (NO_F64, lambda: lbrx.tensor(WIDE).to("f32"), ARRAY),
    "selection in f64": (NO_F64, lambda: lbrx.tensor(WIDE).kth_largest(9), np.sort(WIDE.reshape(-1))[-9]),
    "ranks": (NO_RANKS, lambda: lbrx.tensor(ARRAY).rank(), RANKS),
    "ranks in an expression": (NO_RANKS, lambda: lbrx.tensor(ARRAY).rank() < 7, RANKS < 7),
}
ON_THE_DEVICE: dict[str, tuple[Callable[[], lbrx.Tensor], Any]] = {
    "arithmetic": (lambda: lbrx.tensor(ARRAY) * 3, ARRAY * 3),
    "a strided view": (lambda: lbrx.tensor(ARRAY).T[::2] * 3, ARRAY.T[::2] * 3),
    "a reduction": (lambda: lbrx.tensor(ARRAY).max(), ARRAY.max()),
    "rows": (lambda: lbrx.tensor(ARRAY).max(axis=-1), ARRAY.max(-1)),
    "a cast": (lambda: lbrx.tensor(ARRAY).to("f16"), ARRAY.astype(np.float16)),
    "selection": (lambda: lbrx.tensor(ARRAY).kth_largest(9), np.sort(ARRAY.reshape(-1))[-9]),
    "gathered rows": (lambda: lbrx.tensor(ARRAY).rows([3, 0]) + 1, ARRAY[[3, 0]] + 1),
    "joined tensors": (
        lambda: lbrx.concatenate([lbrx.tensor(ARRAY) * 2, lbrx.tensor(ARRAY)]),
        np.vstack([ARRAY * 2, ARRAY]),
    ),
}


@pytest.fixture
def no_warnings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.engine.device._warned", set())


def dispatches(device: str) -> int:
    return transfers(metal_context()).dispatches if device == "metal" else 0


@pytest.mark.usefixtures("no_warnings_yet")
@pytest.mark.parametrize("operation", LEFT_TO_THE_CPU)
def test_what_a_gpu_cannot_do_is_right_with_one_warning(operation: str, device: str) -> None:
    reason, make, want = LEFT_TO_THE_CPU[operation]
    before = dispatches(device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_same(make().numpy(), want)
    messages = [str(each.message) for each in warned if issubclass(each.category, CpuFallback)]
    assert messages == ([f"computed on the CPU instead: {reason}"] if device == "metal" else [])
    assert dispatches(device) == before


@pytest.mark.usefixtures("no_warnings_yet")
@pytest.mark.parametrize("operation", ON_THE_DEVICE)
def test_the_device_that_was_asked_for_is_used(operation: str, device: str) -> None:
    make, want = ON_THE_DEVICE[operation]
    before = dispatches(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(make().numpy(), want)
    assert (dispatches(device) > before) == (device == "metal")
