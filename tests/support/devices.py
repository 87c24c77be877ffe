"""Tests that run on several devices of the registry; the GPU is emulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import metal_context, using_metal
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from lbrx.engine.device import fallbacks
from lbrx.settings import settings, using
from support.metal_shaders import require_clang

LEFT_TO_THE_CPU = {
    "metal": {
        "a GPU has no f64",
        "the Metal backend cannot rank along rows",
        "the Metal backend has no pow, floordiv and mod",
    }
}
"""Why passes of a device may run on the CPU."""


EVERY_TEST_IN_EVERY_MODE = "LBRX_EVERY_TEST_IN_EVERY_MODE"  # a variable of the environment
MODES: dict[str, EmulatorSettings] = {
    "metal": EmulatorSettings(),
    "metal reversed": EmulatorSettings(order="reverse", find_races=True),
    "metal flushing": EmulatorSettings(flush_to_zero=True),
}
"""Devices of tests: the emulated GPU as it is; with threads in reverse order and the race detector; as GPUs of Apple
that take subnormal f32 numbers for zeros."""


@cache
def emulated_gpu(mode: str = "metal") -> MetalContext:
    require_clang()
    return MetalContext(EmulatedDriver(MODES[mode]))


@contextmanager
def computing_on(name: str) -> Iterator[None]:
    """Passes, products and attention run on a device, or in a mode of the emulated GPU, within a ``with`` block."""
    with using_metal(emulated_gpu(name)) if name in MODES else nullcontext(), using(device=name.partition(" ")[0]):
        yield


def flushed(values: Any) -> Any:
    """What f32 arithmetic on the device of a test reads or writes: zeros instead of subnormal numbers if it flushes."""
    array = np.asarray(values)
    if array.dtype != np.float32 or settings.device != "metal":
        return array
    driver = metal_context().driver
    if not isinstance(driver, EmulatedDriver) or not driver.settings.flush_to_zero:
        return array
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), array), array)


def device_fixture(names: Iterable[str]) -> Any:
    """A fixture that runs every test of a folder or module on each of these devices or modes of the emulated GPU."""

    @pytest.fixture(params=tuple(names), autouse=True, scope="module")
    def device(request: pytest.FixtureRequest) -> Iterator[str]:
        """Where passes run; nothing but what a GPU cannot do may leave it. A module without passes overrides this."""
        name: str = request.param
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lbrx.engine.device._warned", set())
            with computing_on(name):
                yield settings.device
                assert set(fallbacks()) <= LEFT_TO_THE_CPU.get(settings.device, set())

    return device
