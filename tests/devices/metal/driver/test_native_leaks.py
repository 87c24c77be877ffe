"""10,000 dispatches of the native driver on a fake Mac: nothing grows, whichever PyObjC counts the references."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lbrx.base.system import page_bytes
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.storage import MetalStorage
from lbrx.devices.metal.context.windows import WindowCache
from lbrx.devices.metal.driver import BufferBinding, Pipeline, pyobjc
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.devices.metal.driver.selectors import OWNED_SELECTORS
from lbrx.tensors.open_file import OpenFile
from lbrx.tensors.storage import MmapStorage
from support.fake_objc import FakeMac, install

DISPATCHES = {("10.0", "10.0"): 1000, ("11.0", "11.0"): 1000, ("12.2.2", "12.2.2"): 10_000, ("12.2.2", "13.0"): 10_000}
VERSIONS = tuple(DISPATCHES)  # of the bindings of Metal and of pyobjc-core
SOURCE = "kernel void copy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) { y[0] = x[0]; }"
WINDOWS = 4  # that the cache has memory for
_WINDOW_BYTES = 1 << 20


class Workload:
    """A loop like that of a model and a merge: windows of a file, buffers of the pool, batches, waits."""

    def __init__(self, path: Path) -> None:
        self.context = MetalContext(NativeDriver())
        self.context.windows = WindowCache(self.context.driver, WINDOWS * _WINDOW_BYTES)
        self.file = OpenFile(path)
        self.pipeline: Pipeline = self.context.pipeline(SOURCE, "copy")

    def run(self, dispatches: int) -> None:
        for number in range(dispatches):
            start = number * _WINDOW_BYTES % self.file.file_bytes
            storage = MmapStorage(self.file, start, page_bytes())
            on_device = MetalStorage.from_storage(self.context, storage)
            result = self.context.get_buffer(256, host_access=False)
            arguments = {0: on_device.binding(0, 256), 1: BufferBinding(result)}
            self.context.dispatch(self.pipeline, arguments, (1,), (32,))
            self.context.return_buffer(result)
            if number % 500 == 499:
                self.context.array(result, np.float32)
        self.context.synchronize()


def counts(mac: FakeMac) -> dict[str, Any]:
    gc.collect()
    return {
        "objects": mac.objects(),
        "never released": len(mac.root_pool),
        "open pools": mac.pools_opened - mac.pools_closed,
        "mapped": mac.device.mapped_bytes,
        "allocated": mac.device.allocated_bytes,
        "references": mac.created + mac.retains - mac.releases,
    }


@pytest.mark.parametrize(("pyobjc_version", "core"), VERSIONS)
def test_ten_thousand_dispatches_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyobjc_version: str, core: str
) -> None:
    dispatches = DISPATCHES[pyobjc_version, core]
    mac = install(monkeypatch, FakeMac(pyobjc_version, core))
    mac.records_calls = False
    path = tmp_path / "weights"
    path.write_bytes(bytes(16 * _WINDOW_BYTES))
    work = Workload(path)
    work.run(500)
    before = counts(mac)
    work.run(dispatches)
    after = counts(mac)
    assert after == before
    assert after["never released"] == 0
    assert after["open pools"] == 0
    assert after["mapped"] == WINDOWS * _WINDOW_BYTES
    assert mac.pools_opened > dispatches // 64
    assert mac.live["MTLCommandBuffer"] <= 1
    mac_device = mac.device
    del work
    assert counts(mac)["mapped"] == 0
    assert mac.objects().get("MTLBuffer", 0) == 0
    assert not mac_device.running


@pytest.mark.parametrize(("pyobjc_version", "core"), VERSIONS)
def test_the_model_of_pyobjc_leaks_without_the_registration(
    monkeypatch: pytest.MonkeyPatch, pyobjc_version: str, core: str
) -> None:
    """What the registration is for: with it removed, buffers leak up to 12.2.2 and not from 13.0 on."""
    mac = install(monkeypatch, FakeMac(pyobjc_version, core))
    mac.records_calls = False
    driver = NativeDriver()
    for name in OWNED_SELECTORS:
        del mac.registered[name]
    for _ in range(10):
        driver.allocate(64)
    gc.collect()
    assert mac.live["MTLBuffer"] == (0 if core == "13.0" else 10)
    pyobjc.load_metal()
    before = mac.live["MTLBuffer"]
    for _ in range(10):
        driver.allocate(64)
    assert mac.live["MTLBuffer"] == before


def test_the_model_of_pyobjc_keeps_what_no_pool_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    mac = install(monkeypatch, FakeMac())
    mac.records_calls = False
    driver = NativeDriver()
    assert not mac.root_pool
    commands = driver._queue.commandBuffer()
    commands.setLabel_("outside of a pool")
    assert [type(each).__name__ for each in mac.root_pool] == ["MTLCommandBuffer", "NSString"]
