"""Helpers of the tests of fused passes on Metal: the same expressions on the CPU and on the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

import lbrx
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.context.transfers import Transfers, transfers
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from support.metal_shaders import driver

Tensors = tuple[lbrx.Tensor, ...]


@cache
def device(settings: EmulatorSettings | None = None) -> MetalContext:
    return MetalContext(driver(settings))


@contextmanager
def on_metal(settings: EmulatorSettings | None = None) -> Iterator[Transfers]:
    """Passes run on the emulated GPU; the counts of what was moved begin at zero."""
    context = device(settings)
    counts = transfers(context)
    counts.reset()
    with using_metal(context), lbrx.using(device="metal"):
        yield counts


def on_both(
    make: Callable[[], Tensors], settings: EmulatorSettings | None = None
) -> tuple[tuple[Any, ...], tuple[Any, ...], int]:
    """The values of tensors from the GPU and from the CPU, and how many dispatches the GPU had."""
    expected = lbrx.evaluate(*make())
    with on_metal(settings) as counts:
        got = lbrx.evaluate(*make())
    return got, expected, counts.dispatches


def assert_same_bits(got: Any, expected: Any, what: str = "") -> None:
    """The same dtype, shape and bits; NaN equals NaN whatever its payload."""
    left, right = np.atleast_1d(np.asarray(got)), np.atleast_1d(np.asarray(expected))
    assert left.dtype == right.dtype, what
    assert left.shape == right.shape, what
    carrier = np.dtype(f"u{left.dtype.itemsize}")
    both_nan = np.zeros(left.shape, bool)
    if left.dtype.kind in "fV":
        with np.errstate(invalid="ignore"):
            both_nan = np.isnan(left.astype(np.float64)) & np.isnan(right.astype(np.float64))
    differ = (left.view(carrier) != right.view(carrier)) & ~both_nan
    assert not differ.any(), f"{what}: {left[differ][:4]} instead of {right[differ][:4]}"


def check(make: Callable[[], Tensors], settings: EmulatorSettings | None = None) -> int:
    """Assert that all tensors come out as on the CPU, bit for bit; returns the number of dispatches."""
    got, expected, dispatches = on_both(make, settings)
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert_same_bits(ours, theirs, f"result {number}")
    assert dispatches, "nothing ran on the GPU"
    return dispatches
