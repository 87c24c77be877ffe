"""Emulated devices for tests of kernels, and numbers with the bounds that results have to keep."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from lbrx.devices.metal.ops.arrays import DeviceArray, download, upload
from support.metal_shaders import Order

Array = NDArray[Any]
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
UNITS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # half a unit in the last place, relative


@cache
def context(order: Order = "forward", *, find_races: bool = False, generation: str = "M1") -> MetalContext:
    settings = EmulatorSettings(order=order, find_races=find_races, strict_simdgroups=True)
    return MetalContext(EmulatedDriver(settings, generation=generation))


def numbers(*shape: int, dtype: str = "f32", seed: int = 0) -> Array:
    values: Array = np.random.default_rng([seed, *shape]).normal(size=shape).astype(DTYPES[dtype])
    return values


def up(metal: MetalContext, array: Array) -> DeviceArray:
    return upload(metal, np.ascontiguousarray(array))


def down(metal: MetalContext, array: DeviceArray) -> Array:
    """Read back, and make sure that every element was written: buffers begin as NaN."""
    values: Array = download(metal, array)
    assert not np.isnan(values.astype(np.float32)).any()
    return values


def check(result: Array, expected: Array, bound: Array | float, dtype: str = "f32") -> None:
    """Within ``bound`` of the expected numbers in f64, and once more rounded to a dtype."""
    assert result.shape == expected.shape
    assert result.dtype == DTYPES[dtype]
    errors = np.abs(result.astype(np.float64) - expected)
    allowed = np.asarray(bound) + np.abs(expected) * UNITS[dtype] + 2.0**-25 * (dtype == "f16")
    worst = np.max(errors - allowed, initial=-1.0)
    assert worst <= 0, f"{worst} beyond the bound"


def product_bound(a: Array, b: Array) -> Array:
    """(k + 8) 2**-23 of the sums of the magnitudes of products."""
    magnitudes: Array = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    return magnitudes * (a.shape[-1] + 8) * 2.0**-23
