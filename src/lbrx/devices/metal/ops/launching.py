"""From a kernel's name and arguments to a dispatch; what every family shares."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Literal
from weakref import WeakKeyDictionary

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import ProfiledContext, Work
from lbrx.devices.metal.driver import Argument, BufferBinding, CompileOptions, Constants, Pipeline
from lbrx.devices.metal.driver.shader_cache import ShaderCache
from lbrx.devices.metal.ops.arrays import FLOAT_NUMBERS, DeviceArray, DeviceWeight, Shape, empty
from lbrx.devices.metal.ops.sources import shader_source
from lbrx.errors import DTypeError, ShapeError

SIMD_WIDTH = 32
Operand = DeviceArray | BufferBinding | bytes | None


@dataclass(frozen=True, slots=True)
class Grid:
    """How many threadgroups of how many threads, or how many threads in all."""

    size: tuple[int, ...]
    threads: tuple[int, ...]
    unit: Literal["threadgroups", "threads"] = "threadgroups"


def launch(
    context: MetalContext,
    shader: str,
    kernel: str,
    constants: Constants,
    operands: Sequence[Operand],
    grid: Grid,
    work: Work,
    *,
    threadgroup_bytes: Mapping[int, int] | None = None,
    defines: tuple[tuple[str, str], ...] = (),
) -> None:
    """Dispatch ``kernel`` of ``shader``.

    ``operands`` are in the order of its buffers; None stands for one that a function constant turns off.
    """
    pipeline = _pipeline(context, shader, kernel, constants, defines)
    arguments: dict[int, Argument] = {}
    for index, operand in enumerate(operands):
        if isinstance(operand, DeviceArray):
            arguments[index] = operand.binding
        elif operand is not None:
            arguments[index] = operand
    if isinstance(context, ProfiledContext):
        context.announce(work)
    context.dispatch(
        pipeline, arguments, grid.size, grid.threads, grid_unit=grid.unit, threadgroup_bytes=threadgroup_bytes
    )


_Key = tuple[str, str, tuple[tuple[str, bool | int | float], ...], tuple[tuple[str, str], ...]]
_pipelines: WeakKeyDictionary[ShaderCache, dict[_Key, Pipeline]] = WeakKeyDictionary()


def _pipeline(
    context: MetalContext, shader: str, kernel: str, constants: Constants, defines: tuple[tuple[str, str], ...]
) -> Pipeline:
    """A pipeline by names: the cache of shaders has to look at their whole text, which takes longer than a dispatch."""
    known = _pipelines.setdefault(context.shaders, {})
    key = (shader, kernel, tuple(constants.items()), defines)
    pipeline = known.get(key)
    if pipeline is None:
        pipeline = known[key] = context.pipeline(shader_source(shader), kernel, constants, CompileOptions(defines))
    return pipeline


def uints(*numbers: int) -> bytes:
    """Numbers as a structure of ``uint`` holds them.

    >>> uints(1, 2)
    b'\\x01\\x00\\x00\\x00\\x02\\x00\\x00\\x00'
    """
    return struct.pack(f"<{len(numbers)}I", *numbers)


def float_number(array: DeviceArray | None, what: str) -> int:
    """The number of an array's floating-point type; 0 if there is none."""
    if array is None:
        return 0
    if array.dtype not in FLOAT_NUMBERS:
        raise DTypeError(f"{what} has elements of {array.dtype}; expected {', '.join(FLOAT_NUMBERS)}")
    return FLOAT_NUMBERS[array.dtype]


def check_shape(array: DeviceArray | None, shape: Shape, what: str) -> None:
    """Raise unless an array, if there is one, has this shape."""
    if array is not None and array.shape != shape:
        raise ShapeError(f"{what} has shape {array.shape}; expected {shape}")


def output(context: MetalContext, out: DeviceArray | None, dtype: str, shape: Shape, what: str) -> DeviceArray:
    """Where a kernel writes: what the caller gave, or a new array."""
    if dtype not in FLOAT_NUMBERS:
        raise DTypeError(f"{what}: results of {dtype!r} are not possible; expected {', '.join(FLOAT_NUMBERS)}")
    if out is None:
        return empty(context, dtype, shape)
    check_shape(out, shape, f"{what}: the output")
    if out.dtype not in FLOAT_NUMBERS:
        raise DTypeError(f"{what}: the output has elements of {out.dtype}; expected {', '.join(FLOAT_NUMBERS)}")
    return out


def nbytes_of(*operands: DeviceArray | DeviceWeight | None) -> int:
    """Bytes that a kernel moves if it touches every operand once."""
    return sum(operand.nbytes for operand in operands if operand is not None)
