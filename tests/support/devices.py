"""Tests that run on several devices of the registry; the GPU is emulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import pytest

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.engine.device import fallbacks
from lbrx.settings import using
from support.metal_shaders import require_clang

LEFT_TO_THE_CPU = {
    "metal": {
        "a GPU has no f64",
        "the Metal backend cannot rank along rows",
        "the Metal backend has no pow, floordiv and mod",
    }
}
"""Why passes of a device may run on the CPU."""


@cache
def emulated_gpu() -> MetalContext:
    require_clang()
    return MetalContext.open("emulated")


@contextmanager
def computing_on(name: str) -> Iterator[None]:
    """Passes, products and attention run on a device for the length of a ``with`` block; Metal is emulated."""
    with using_metal(emulated_gpu()) if name == "metal" else nullcontext(), using(device=name):
        yield


def device_fixture(names: Iterable[str]) -> Any:
    """A fixture that runs every test of a folder or module on each of these devices."""

    @pytest.fixture(params=tuple(names), autouse=True, scope="module")
    def device(request: pytest.FixtureRequest) -> Iterator[str]:
        """Where passes run; nothing but what a GPU cannot do may leave it. A module without passes overrides this."""
        name: str = request.param
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lbrx.engine.device._warned", set())
            with computing_on(name):
                yield name
            assert set(fallbacks()) <= LEFT_TO_THE_CPU.get(name, set())

    return device
