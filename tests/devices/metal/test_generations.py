"""GPU generations: their limits are enforced, and every kernel works on each of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import BufferBinding, GpuFamily
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from lbrx.devices.metal.errors import KernelFault, MetalError, ShaderError
from lbrx.devices.metal.generations import GENERATIONS, LANGUAGES, generation_of
from lbrx.errors import MemoryBudgetError
from lbrx.jobs.doctor.kernel_tests import self_tests
from support.metal_shaders import PREFIX, needs_clang

pytestmark = needs_clang


@cache
def gpu(name: str) -> MetalContext:
    """The smallest machine of a generation with the oldest macOS that lbrx supports on it."""
    settings = EmulatorSettings(flush_to_zero=True)
    return MetalContext(EmulatedDriver(settings, generation=name, language=GENERATIONS[name].oldest_language))


@pytest.mark.parametrize("test", self_tests())
@pytest.mark.parametrize("name", GENERATIONS)
def test_every_kernel_agrees_with_the_cpu_on_every_generation(name: str, test: str) -> None:
    result = self_tests()[test](gpu(name))
    assert result.passed, str(result)


def test_the_table_covers_all_families_in_their_order() -> None:
    assert {each.family for each in GENERATIONS.values()} == {int(family) for family in GpuFamily}
    assert [generation_of(family).name for family in GpuFamily] == ["M1", "M2", "M3", "M5"]
    for older, newer in zip([*GENERATIONS.values()], [*GENERATIONS.values()][1:], strict=False):
        assert older.family <= newer.family
        assert older.first_macos < newer.first_macos
        assert older.oldest_language <= newer.oldest_language
    assert list(LANGUAGES.values()) == sorted(LANGUAGES.values())


@pytest.mark.parametrize("name", GENERATIONS)
def test_limits_are_those_of_the_table(name: str) -> None:
    metal, limits = gpu(name), GENERATIONS[name]
    assert (metal.info.family, metal.info.name) == (limits.family, f"emulated {name}")
    with pytest.raises(
        MemoryBudgetError, match=f"the largest on emulated {name} is {limits.max_buffer_bytes >> 30} GiB"
    ):
        metal.driver.allocate(limits.max_buffer_bytes + 1)
    with pytest.raises(MemoryBudgetError, match="the largest on emulated"):
        metal.driver.wrap(0, limits.max_buffer_bytes + (16 << 10), None)
    kernel = metal.pipeline(PREFIX + "kernel void k(threadgroup float* s [[threadgroup(0)]]) { s[0] = 1; }", "k")
    most = {0: limits.threadgroup_memory_bytes}
    metal.dispatch(kernel, {}, (1,), (limits.max_threads_per_threadgroup,), threadgroup_bytes=most)
    metal.synchronize()
    with pytest.raises(MetalError, match="threads per threadgroup, but at most 1024"):
        metal.dispatch(kernel, {}, (1,), (limits.max_threads_per_threadgroup + 1,), threadgroup_bytes=most)
    with pytest.raises(MetalError, match="bytes of threadgroup memory, but emulated"):
        metal.dispatch(kernel, {}, (1,), (1,), threadgroup_bytes={0: limits.threadgroup_memory_bytes + 16})
    static = f"threadgroup float s[{limits.threadgroup_memory_bytes // 4 + 4}]; s[0] = 1; x[0] = s[0];"
    too_large = metal.pipeline(PREFIX + f"kernel void k(device float* x) {{ {static} }}", "k")
    out = metal.buffer_from(np.zeros(1, np.float32))
    metal.dispatch(too_large, {0: BufferBinding(out)}, (1,), (1,))
    with pytest.raises(KernelFault, match="bytes of threadgroup memory, but the device has"):
        metal.synchronize()


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_language_is_that_of_the_oldest_macos(name: str) -> None:
    metal, version = gpu(name), GENERATIONS[name].oldest_language
    source = f"#if __METAL_VERSION__ != {version[0]}{version[1]}0\n#error\n#endif\nkernel void k() {{}}"
    assert metal.pipeline(source, "k").name == "k"
    bfloat = PREFIX + "kernel void k(device bfloat* x) { simdgroup_matrix<bfloat, 8, 8> m; x[0] = 1; }"
    if version >= (3, 1):
        assert metal.pipeline(bfloat, "k").name == "k"
    else:
        with pytest.raises(ShaderError, match="unknown type name 'bfloat'"):
            metal.pipeline(bfloat, "k")
