"""Kernels through the native driver: the fake Mac runs them in the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import lbrx
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.errors import GpuOutOfMemory
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.jobs.doctor.self_test import registered_self_tests
from support.fake_objc import FakeMac, install
from support.fake_objc.runtime import Failed
from support.metal_shaders import needs_clang

pytestmark = needs_clang
SELF_TESTS = (
    *("passes: element-wise", "passes: sums", "passes: selection", "passes: strided views"),
    *("kernels: matrix-vector q4_k", "kernels: softmax and norms", "kernels: rope", "kernels: quantize q8_0"),
)
OUT_OF_MEMORY = Failed("Insufficient Memory", 8, "MTLCommandBufferErrorDomain")


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> FakeMac:
    return install(monkeypatch, FakeMac(executes=True))


@pytest.fixture
def context(mac: FakeMac, tmp_path: Path) -> MetalContext:  # noqa: ARG001
    return MetalContext(NativeDriver(), store=ArtifactStore(tmp_path / "cache"))


@pytest.mark.parametrize("name", SELF_TESTS)
def test_self_tests_pass(context: MetalContext, name: str) -> None:
    result = registered_self_tests()[name](context)
    assert result.passed, result


def saved_weights(path: Path) -> NDArray[np.float32]:
    values = np.arange(1 << 20, dtype=np.float32).reshape(4096, 256)
    lbrx.save(path, {"w": lbrx.tensor(values)})
    return values


@pytest.mark.parametrize("no_copy", ["buffer", "none", "empty"])
def test_a_mapped_file_is_read_in_place_or_copied(
    mac: FakeMac, context: MetalContext, tmp_path: Path, no_copy: str
) -> None:
    mac.device.no_copy = no_copy
    values = saved_weights(tmp_path / "w.safetensors")
    weights = lbrx.open(tmp_path / "w.safetensors")
    with using_metal(context), lbrx.using(device="metal"):
        assert ((weights["w"] * 2).numpy() == values * 2).all()
        assert (weights["w"].to_device("metal").to_device("cpu").numpy() == values).all()
    counts = transfers(context)
    in_place, copied = (2 * values.nbytes, 0) if no_copy == "buffer" else (0, 2 * values.nbytes)
    assert (counts.wrapped_bytes, counts.copied_bytes) == (in_place, copied)
    assert context.windows.takes_pages == (no_copy == "buffer")


def test_a_chunk_without_memory_is_run_in_halves(mac: FakeMac, context: MetalContext, tmp_path: Path) -> None:
    values = saved_weights(tmp_path / "w.safetensors")
    weights = lbrx.open(tmp_path / "w.safetensors")
    with using_metal(context), lbrx.using(device="metal"):
        mac.device.failures.extend([OUT_OF_MEMORY] * 2)
        assert ((weights["w"] + 1).numpy() == values + 1).all()
        assert float(weights["w"].sum()) == values.sum(dtype=np.float64)
    groups = [grid.width for grid, _ in mac.called("dispatchThreadgroups:threadsPerThreadgroup:")]
    assert groups[:5] == [512, 256, 256, 128, 128]  # all, its halves, and the first half in halves


def test_memory_errors_that_halves_do_not_cure_are_raised(mac: FakeMac, context: MetalContext) -> None:
    with using_metal(context), lbrx.using(device="metal"):
        mac.device.failures.extend([OUT_OF_MEMORY] * 100)
        with pytest.raises(GpuOutOfMemory, match="the GPU has not enough memory; give less --memory"):
            (lbrx.tensor(np.ones(1 << 20, np.float32)) + 1).numpy()


def test_errors_of_earlier_work_are_raised_where_its_results_are_read(mac: FakeMac, context: MetalContext) -> None:
    """The first pass stays on the device and has no memory; the second reads what is not there."""
    with using_metal(context), lbrx.using(device="metal"):
        first = (lbrx.tensor(np.ones(1 << 16, np.float32)) + 1).realize()
        context.commit()
        mac.device.failures.append(OUT_OF_MEMORY)
        with pytest.raises(GpuOutOfMemory):
            (first * 2).numpy()
