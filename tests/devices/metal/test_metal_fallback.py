"""A kernel that does not compile is replaced by the CPU, with one warning; the other kernels run on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx import ops
from lbrx.demo.models import demo_models
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.devices.metal.emulator.driver import EmulatedDriver, EmulatedLibrary
from lbrx.engine.device import CpuFallback
from lbrx.settings import settings
from support.metal_shaders import needs_clang

pytestmark = needs_clang
RANDOM = np.random.default_rng(3)
ACTIVATIONS = RANDOM.standard_normal((6, 64)).astype(np.float32)
WEIGHT = RANDOM.standard_normal((32, 64)).astype(np.float32)
HEADS = RANDOM.standard_normal((2, 5, 64)).astype(np.float32)


class BrokenDriver(EmulatedDriver):
    """A device whose compiler rejects the shaders with a word."""

    broken = ""
    compiled = 0

    def compile(
        self,
        source: str,
        options: CompileOptions,
        artifact: bytes | None = None,
        *,
        include_directories: Sequence[Path] = (),
        only: Sequence[str] | None = None,
    ) -> EmulatedLibrary:
        self.compiled += 1
        if self.broken in source:
            raise ShaderError(f"the shader does not compile:\nshader.metal:7:3: error: planted in {self.broken}")
        return super().compile(source, options, artifact, include_directories=include_directories, only=only)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenDriver]:
    monkeypatch.setattr("lbrx.engine.device._warned", set())
    broken = BrokenDriver()
    with using_metal(MetalContext(broken)), lbrx.using(device="metal"):
        yield broken


WORK: dict[str, tuple[str, Callable[[], Any]]] = {
    "product of tensors": ("void matmul(", lambda: (lbrx.tensor(ACTIVATIONS) @ lbrx.tensor(WEIGHT).T).numpy()),
    "product on the device": (
        "void matmul(",
        lambda: (lbrx.tensor(ACTIVATIONS).to_device(settings.device) @ lbrx.tensor(WEIGHT).T).numpy(),
    ),
    "many vectors": ("void matmul(", lambda: ops.linear(ACTIVATIONS, lbrx.tensor(WEIGHT))),
    "one vector": ("void matvec(", lambda: ops.linear(ACTIVATIONS[:1], lbrx.tensor(WEIGHT))),
    "attention": ("void attention(", lambda: ops.attention(HEADS, HEADS, HEADS)),
    "pass": ("void pass_", lambda: (lbrx.tensor(ACTIVATIONS) * 3 + 1).numpy()),
    "blocks": (
        "void quantize_q8_0(",
        lambda: lbrx.tensor(ACTIVATIONS * 2).quantize("q8_0").realize().to("f32").numpy(),
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_the_cpu_computes_what_does_not_compile(name: str, driver: BrokenDriver) -> None:
    broken, work = WORK[name]
    driver.broken = broken
    with lbrx.using(device="cpu"):
        expected = work()
    with pytest.warns(CpuFallback) as warned:
        found = [work() for _ in range(3)]
    for each in found:
        np.testing.assert_array_equal(each, expected)
    assert [str(each.message) for each in warned] == [
        f"computed on the CPU instead: a Metal kernel does not compile (shader.metal:7:3: error: planted in {broken})"
    ]


def test_a_shader_that_does_not_compile_is_compiled_once(driver: BrokenDriver) -> None:
    driver.broken = "void matmul("
    with pytest.warns(CpuFallback, match="planted"):
        ops.linear(ACTIVATIONS, lbrx.tensor(WEIGHT))
    tried = driver.compiled  # once, or also with an entry of the cache
    for _ in range(3):
        ops.linear(ACTIVATIONS, lbrx.tensor(WEIGHT))
    assert driver.compiled == tried <= 2


def test_a_model_is_scored_although_one_kernel_is_broken(driver: BrokenDriver) -> None:
    driver.broken = "void matmul("
    model = lbrx.open_model(demo_models().base)
    ids = [3, 77, 500, 12, 900, 4, 61]
    with lbrx.using(device="cpu"):
        expected = model.logits(ids)
    with pytest.warns(CpuFallback, match="planted"):
        found = model.logits(ids)
    np.testing.assert_allclose(found, expected, atol=2e-3 * float(np.abs(expected).max()))
