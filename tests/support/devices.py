"""Every test of an operation runs on the CPU and on the emulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.engine.device import fallbacks
from lbrx.settings import using
from support.metal_shaders import require_clang

LEFT_TO_THE_CPU = {"a GPU has no f64", "the Metal backend cannot rank along rows"}


@cache
def emulated_gpu() -> MetalContext:
    require_clang()
    return MetalContext.open("emulated")


@pytest.fixture(params=["cpu", "metal"], autouse=True, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where passes run; nothing but what a GPU cannot do may leave it. A module without passes overrides this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lbrx.engine.device._warned", set())
        if request.param == "cpu":
            with using(device="cpu"):
                yield "cpu"
        else:
            with using_metal(emulated_gpu()), using(device="metal"):
                yield "metal"
        allowed = LEFT_TO_THE_CPU if request.param == "metal" else set()
        assert set(fallbacks()) <= allowed
