"""Faults of kernels in words: which kernel, which buffer or variable, which thread."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lbrx.devices.metal.emulator.image import Image
from lbrx.devices.metal.emulator.runtime import Parameters, RunnerFinding, runner

if TYPE_CHECKING:
    from lbrx.devices.metal.emulator.launch import Region

_MEMORY_FAULT = 3  # `enum outcome` of runner/runner.h
_UNINITIALISED = 3  # `enum finding_kind`
_RACES = (
    "two writes that nothing orders",
    "a read that nothing orders with an earlier write",
    "a write that nothing orders with an earlier read",
)
_NO_THREAD = 0xFFFFFFFF


def describe_fault(kernel: str, image: Image, outcome: int, request: Parameters, regions: Sequence[Region]) -> str:
    """What stopped a kernel, and where."""
    what = _memory_fault(image, request, regions) if outcome == _MEMORY_FAULT else runner().msl_message().decode()
    thread = tuple(request.fault_thread)
    by = "" if thread[0] == _NO_THREAD else f"thread {thread} of "
    return f"kernel '{kernel}': {what}, in {by}threadgroup {tuple(request.fault_threadgroup)}"


def _memory_fault(image: Image, request: Parameters, regions: Sequence[Region]) -> str:
    if request.fault_signal == signal.SIGFPE:
        return "integer division by zero"
    if request.fault_signal in (signal.SIGILL, signal.SIGTRAP):
        return "array index out of bounds, misaligned pointer access, or integer division by zero"
    address = int(request.fault_address)
    if not address:  # what x86 reports for misaligned vectors
        return "misaligned or null pointer access"
    for region in regions:
        buffer = region.buffer
        base, length = getattr(buffer, "mapped_range", (buffer.address, buffer.nbytes))
        if base <= address < base + length:
            offset = address - buffer.address
            if not region.is_bound:
                return f"access to {_buffers(region)}, which is not bound"
            if 0 <= offset < buffer.nbytes:
                return f"write to the read-only {_buffers(region)} at byte {offset}"
            return f"out-of-bounds access to {_buffers(region)} at byte {offset} of {buffer.nbytes}"
    variable, offset64 = ctypes.c_int32(), ctypes.c_int64()
    if runner().msl_locate(address, ctypes.byref(variable), ctypes.byref(offset64)):
        return f"out-of-bounds access to {_variable(image, variable.value)} at byte {offset64.value}"
    unbound = ctypes.c_size_t()
    start = int(runner().msl_unbound(ctypes.byref(unbound)))
    if start <= address < start + unbound.value:
        return "write through a buffer argument that a function constant turns off"
    return f"access to the invalid address {address:#x}"


def describe_finding(kernel: str, image: Image, regions: Sequence[Region]) -> str:
    """The first race or uninitialised read of an instrumented kernel."""
    findings = (RunnerFinding * 1)()
    runner().msl_findings(findings, 1)
    first = findings[0]
    if first.region >= 0:
        memory = _buffers(regions[first.region])
    else:
        memory = _variable(image, int(runner().msl_region_variable(-1 - first.region)))
    threadgroup = tuple(first.threadgroup)
    where = f"{memory} at byte {first.offset}"
    if first.error == _UNINITIALISED:
        return (
            f"kernel '{kernel}': read of uninitialised {where}, in thread {first.thread} of threadgroup {threadgroup}"
        )
    return (
        f"kernel '{kernel}': data race on {where} ({_RACES[first.error]}): thread {first.thread} of threadgroup "
        f"{threadgroup} and thread {first.other_thread}{_other_group(first)}"
    )


def _other_group(finding: RunnerFinding) -> str:
    """Threadgroups are numbered in the order in which they ran."""
    return (
        f" of the threadgroup that ran as number {finding.other_threadgroup}" if finding.region >= 0 else " of the same"
    )


def _buffers(region: Region) -> str:
    return "buffer " + " and ".join(f"{each.index} ('{each.declaration}')" for each in region.parameters)


def _variable(image: Image, variable: int) -> str:
    if variable < 0:
        return f"threadgroup memory {-1 - variable}"
    return f"threadgroup variable '{image.variables[variable]}'"
