"""One dispatch on the CPU: arguments to addresses, the run, and what went wrong in words."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver import Argument, Dispatch
from lbrx.devices.metal.driver.errors import KernelFault, MetalError
from lbrx.devices.metal.emulator.faults import describe_fault, describe_finding
from lbrx.devices.metal.emulator.image import Image
from lbrx.devices.metal.emulator.kernels import KernelEntry, Parameter
from lbrx.devices.metal.emulator.memory import EmulatedBuffer, Placement, WrappedBuffer
from lbrx.devices.metal.emulator.runtime import MAX_BUFFERS, LoadedLibrary, Parameters, dispatch_lock, runner

Order = Literal["forward", "reverse", "random"]
_ORDERS: tuple[Order, ...] = ("forward", "reverse", "random")


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """How the emulator runs kernels, and what it looks for.

    A correct kernel gives the same result in every ``order`` of threads. With ``find_races`` kernels are compiled so
    that each memory access is seen: races in threadgroup memory and buffers, and reads of uninitialised threadgroup
    memory become errors. With ``strict_barriers`` all threads of a threadgroup must reach each barrier, as Metal
    demands; with ``strict_simdgroups`` all lanes must take part in each simdgroup operation. With ``flush_to_zero``
    arithmetic reads and writes subnormal f32 numbers as zeros, as Apple's GPUs do; f16 numbers keep theirs.
    """

    order: Order = "forward"
    seed: int = 0
    find_races: bool = False
    flush_to_zero: bool = False
    strict_barriers: bool = True
    strict_simdgroups: bool = False
    placement: Placement = "end"
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class LaunchStatistics:
    """What a dispatch did."""

    threads: int
    simdgroup_operations: int
    barriers: int
    threadgroup_bytes: int


@dataclass(slots=True)
class Region:
    """Memory that one or several parameters of a kernel point into."""

    buffer: EmulatedBuffer | WrappedBuffer
    parameters: list[Parameter] = field(default_factory=list)
    is_bound: bool = True

    @property
    def read_only(self) -> bool:
        return all(parameter.read_only for parameter in self.parameters)


class EmulatedPipeline:
    """A kernel with its function constants."""

    simd_width = 32
    max_threads = 1024

    def __init__(self, image: Image, library: LoadedLibrary, name: str) -> None:
        self.name = name
        self.image = image
        self.library = library
        self.entry: KernelEntry = image.kernels[name]
        self.address = library.address(self.entry.symbol)
        self.sizes = [library.sizes(self.entry.sizes_symbol, i) for i in range(len(self.entry.parameters))]
        self.enabled = [library.is_enabled(self.entry.enabled_symbol, i) for i in range(len(self.entry.parameters))]


def launch(dispatch: Dispatch, settings: EmulatorSettings, threadgroup_limit_bytes: int) -> LaunchStatistics:
    """Run a dispatch to its end; a KernelFault tells kernel, buffer and thread."""
    pipeline = dispatch.pipeline
    if not isinstance(pipeline, EmulatedPipeline):
        raise MetalError(f"kernel '{pipeline.name}' was not compiled by the emulated driver")
    request = _request(pipeline, dispatch, settings, threadgroup_limit_bytes)
    with dispatch_lock, _bound(pipeline, dispatch, settings) as (pointers, regions):
        _watch(request, regions)
        pipeline.library.use_constants()
        outcome = runner().msl_dispatch(pipeline.address, pointers, ctypes.byref(request))
        if outcome:
            raise KernelFault(describe_fault(pipeline.name, pipeline.image, outcome, request, regions))
        if request.finding_count:
            raise KernelFault(describe_finding(pipeline.name, pipeline.image, regions))
        for region in regions:
            if isinstance(region.buffer, EmulatedBuffer) and not region.buffer.intact():
                named = " and ".join(f"{each.index} ('{each.declaration}')" for each in region.parameters)
                raise KernelFault(
                    f"kernel '{pipeline.name}': out-of-bounds write just outside the {region.buffer.nbytes} bytes of "
                    f"buffer {named}"
                )
    return LaunchStatistics(request.threads, request.simdgroup_operations, request.barriers, request.threadgroup_bytes)


def _request(
    pipeline: EmulatedPipeline, dispatch: Dispatch, settings: EmulatorSettings, threadgroup_limit_bytes: int
) -> Parameters:
    request = Parameters(
        grid=dispatch.grid,
        threadgroup=dispatch.threads_per_threadgroup,
        grid_is_threads=dispatch.grid_unit == "threads",
        order=_ORDERS.index(settings.order),
        strict_barriers=settings.strict_barriers,
        strict_simdgroups=settings.strict_simdgroups,
        instrumented=pipeline.image.instrumented,
        flush_to_zero=settings.flush_to_zero,
        threadgroup_limit_bytes=threadgroup_limit_bytes,
        timeout_ms=int(settings.timeout_seconds * 1000),
        seed=settings.seed,
    )
    for parameter, is_enabled in zip(pipeline.entry.parameters, pipeline.enabled, strict=True):
        if parameter.role == "threadgroup" and is_enabled:
            nbytes = dispatch.threadgroup_bytes.get(parameter.index, 0)
            if not nbytes:
                raise MetalError(
                    f"kernel '{pipeline.name}': no threadgroup memory was given for index {parameter.index} "
                    f"('{parameter.declaration}')"
                )
            request.argument_bytes[parameter.index] = nbytes
            request.argument_count = max(request.argument_count, parameter.index + 1)
    return request


def _watch(request: Parameters, regions: list[Region]) -> None:
    request.range_count = len(regions)
    for i, region in enumerate(regions):
        request.ranges[i].address, request.ranges[i].bytes = region.buffer.address, region.buffer.nbytes


@contextmanager
def _bound(
    pipeline: EmulatedPipeline, dispatch: Dispatch, settings: EmulatorSettings
) -> Iterator[tuple[ctypes.Array[ctypes.c_void_p], list[Region]]]:
    """Addresses by buffer index, and the memory behind them.

    Bytes, and windows of larger buffers, are copied into memory of their own for the run: there the emulator sees
    every access outside them.
    """
    size = ctypes.c_size_t()
    pointers = (ctypes.c_void_p * MAX_BUFFERS)(*[runner().msl_unbound(ctypes.byref(size))] * MAX_BUFFERS)
    regions: list[Region] = []
    windows: list[tuple[Region, EmulatedBuffer | WrappedBuffer, int]] = []
    for binding, users in _users(pipeline, dispatch):
        if binding is None:
            region, origin = Region(EmulatedBuffer(0), is_bound=False), 0  # Metal checks nothing until it is used
        elif isinstance(binding, bytes):
            copied = EmulatedBuffer(len(binding), settings.placement)
            copied.view()[:] = bytearray(binding)
            region, origin = Region(copied), 0
        else:
            region, origin = _region(binding, users, settings)
            if region.buffer is not binding:
                windows.append((region, binding, origin))
        for parameter, offset, _ in users:
            region.parameters.append(parameter)
            pointers[parameter.index] = region.buffer.address + offset - origin
        regions.append(region)
    protected = [each.buffer for each in regions if each.read_only and isinstance(each.buffer, EmulatedBuffer)]
    try:
        for buffer in protected:
            buffer.protect(True)
        yield pointers, regions
    finally:
        for buffer in protected:
            buffer.protect(False)
    for region, original, origin in windows:
        if not region.read_only:
            original.view()[origin : origin + region.buffer.nbytes] = region.buffer.view()


_User = tuple[Parameter, int, int]  # a parameter, and first and last byte of the buffer that it may touch


def _users(
    pipeline: EmulatedPipeline, dispatch: Dispatch
) -> list[tuple[EmulatedBuffer | WrappedBuffer | bytes | None, list[_User]]]:
    """What is bound, and by which parameters: one buffer may be bound several times, as on a GPU."""
    users: dict[int, tuple[EmulatedBuffer | WrappedBuffer | bytes | None, list[_User]]] = {}
    for position, parameter in enumerate(pipeline.entry.parameters):
        if parameter.role != "buffer" or not pipeline.enabled[position]:
            continue
        argument = dispatch.arguments.get(parameter.index)
        where = f"kernel '{pipeline.name}': buffer {parameter.index} ('{parameter.declaration}')"
        if argument is None:
            users[-1 - parameter.index] = (None, [(parameter, 0, 0)])
            continue
        memory, first, last = _window(argument, where)
        key = -1 - parameter.index if isinstance(memory, bytes) else id(memory)
        _check_size(where, pipeline.sizes[position], parameter, memory, first, last)
        users.setdefault(key, (memory, []))[1].append((parameter, first, last))
    return list(users.values())


def _window(binding: Argument, where: str) -> tuple[EmulatedBuffer | WrappedBuffer | bytes, int, int]:
    if isinstance(binding, bytes):
        return binding, 0, len(binding)
    buffer = binding.buffer
    if not isinstance(buffer, (EmulatedBuffer, WrappedBuffer)):
        raise MetalError(f"{where}: the buffer belongs to another driver")
    last = buffer.nbytes if binding.nbytes is None else binding.offset + binding.nbytes
    return buffer, binding.offset, last


def _check_size(
    where: str,
    size_and_alignment: tuple[int, int],
    parameter: Parameter,
    memory: EmulatedBuffer | WrappedBuffer | bytes,
    first: int,
    last: int,
) -> None:
    size, alignment = size_and_alignment
    if parameter.is_reference and size > last - first:
        raise MetalError(f"{where} has {last - first} bytes, but {size} are needed")
    if first % max(1, alignment):
        raise MetalError(f"{where}: offset {first} is not a multiple of {alignment}")
    if isinstance(memory, WrappedBuffer) and not parameter.read_only:
        raise MetalError(f"{where} is written by the kernel, but mapped pages are read-only")


def _region(
    buffer: EmulatedBuffer | WrappedBuffer, users: list[_User], settings: EmulatorSettings
) -> tuple[Region, int]:
    """The buffer itself, or a guarded copy of the window that is used; and where in the buffer it begins."""
    first = min(first for _, first, _ in users) // 16 * 16
    last = max(last for _, _, last in users)
    if isinstance(buffer, EmulatedBuffer) and last == buffer.nbytes:
        return Region(buffer), 0
    copied = EmulatedBuffer(last - first, settings.placement)
    copied.view()[:] = buffer.view()[first:last]
    return Region(copied), first
