"""Every test of an operation runs on the CPU and on the emulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lbrx.devices.device import fallbacks, using_metal
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.errors import MetalUnavailable
from lbrx.settings import using

HERE = Path(__file__).parent
LEFT_TO_THE_CPU = {"a GPU has no f64", "ranks along rows have no kernel"}

sys.path.insert(0, str(HERE.parent))  # the module of strategies is in the folder above


@cache
def emulated_gpu() -> MetalContext:
    try:
        return MetalContext.open("emulated")
    except MetalUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["cpu", "metal"], autouse=True, scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where passes run; nothing but what a GPU cannot do may leave it. A module without passes overrides this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lbrx.devices.device._told", set())
        if request.param == "cpu":
            with using(device="cpu"):
                yield "cpu"
        else:
            with using_metal(emulated_gpu()), using(device="metal"):
                yield "metal"
        allowed = LEFT_TO_THE_CPU if request.param == "metal" else set()
        assert set(fallbacks()) <= allowed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is left to the CPU is no news here; test_devices.py shows that it is told."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::lbrx.devices.device.CpuFallback"))
