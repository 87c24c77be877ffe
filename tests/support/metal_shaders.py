"""Helpers of the tests of Metal: one shader in, arrays out, on the emulated driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from lbrx.devices.metal.driver import Argument, BufferBinding, CompileOptions
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.shader_cache import ShaderCache
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from lbrx.devices.metal.emulator.toolchain import find_toolchain
from lbrx.devices.metal.errors import MetalUnavailable

PREFIX = "#include <metal_stdlib>\nusing namespace metal;\n"
Order = Literal["forward", "reverse", "random"]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")


REQUIRE_CLANG = ("CI", "LBRX_REQUIRE_CLANG")  # variables of the environment
needs_clang = pytest.mark.usefixtures("clang")


def require_clang() -> None:
    """Skip the test if the emulator has no compiler. In CI and in ``make test``, which installs one, the test fails."""
    try:
        find_toolchain()
    except MetalUnavailable as error:
        is_required = any(os.environ.get(name) for name in REQUIRE_CLANG)
        (pytest.fail if is_required else pytest.skip)(str(error))


@cache
def driver(settings: EmulatorSettings | None = None) -> EmulatedDriver:
    return EmulatedDriver(settings or EmulatorSettings())


@cache
def shaders(settings: EmulatorSettings | None = None) -> ShaderCache:
    return ShaderCache(driver(settings))


def run(
    source: str,
    name: str,
    arguments: Mapping[int, NDArray[Any] | bytes],
    grid: tuple[int, ...],
    threadgroup: tuple[int, ...],
    *,
    settings: EmulatorSettings | None = None,
    constants: Mapping[str, bool | int | float] | None = None,
    threadgroup_bytes: Mapping[int, int] | None = None,
    grid_unit: Literal["threadgroups", "threads"] = "threadgroups",
    options: CompileOptions | None = None,
) -> None:
    """Run a kernel; arrays are copied to buffers and back, the same array is the same buffer."""
    used = driver(settings)
    pipeline = shaders(settings).pipeline(source, name, constants, options)
    buffers = {id(array): used.allocate(array.nbytes) for array in arguments.values() if isinstance(array, np.ndarray)}
    bound: dict[int, Argument] = {}
    for index, argument in arguments.items():
        if isinstance(argument, bytes):
            bound[index] = argument
        else:
            buffer = buffers[id(argument)]
            buffer.view()[:] = argument.reshape(-1).view(np.uint8)
            bound[index] = BufferBinding(buffer)
    batch = CommandBatch(used, name)
    batch.dispatch(pipeline, bound, grid, threadgroup, grid_unit=grid_unit, threadgroup_bytes=threadgroup_bytes)
    batch.wait()
    for argument in arguments.values():
        if isinstance(argument, np.ndarray) and argument.flags.writeable:
            argument.reshape(-1).view(np.uint8)[:] = buffers[id(argument)].view()
