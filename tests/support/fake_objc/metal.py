"""The fake GPU: device, queue, command buffers and encoders."""

from __future__ import annotations

from collections import deque
from typing import Any

from lbrx.base.system import page_bytes
from lbrx.devices.metal.driver import BufferBinding, Dispatch
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings, launch
from support.fake_objc.buffers import MappedBuffer, MTLBuffer, MTLResidencySet, new_buffer
from support.fake_objc.runtime import Failed, MTLSize, Native, Runtime
from support.fake_objc.shaders import (
    MTLBinaryArchive,
    MTLComputePipelineState,
    MTLLibrary,
    compiled_library,
    library_from_file,
    pipeline_state,
)

MEMORY_BYTES = 1 << 30
_SCHEDULED, _COMPLETED, _ERROR = 3, 4, 5


class MTLDevice(Native):
    """An M2. ``no_copy`` is what it makes of mapped pages: a buffer, none, or one of no bytes as on virtual Macs."""

    def __init__(self, runtime: Runtime, *, executes: bool, lag: int) -> None:
        super().__init__(runtime)
        self.executes, self.lag = executes, lag
        self.no_copy = "buffer"
        self.compilations = 0  # of kernels to machine code
        self.libraries_compiled = 0
        self.allocated_bytes = self.mapped_bytes = 0
        self.memory_bytes = MEMORY_BYTES
        self.failures: deque[Failed] = deque()  # of the next command buffers
        self.running: deque[MTLCommandBuffer] = deque()
        self.residency: MTLResidencySet | None = None
        self.emulator = EmulatedDriver(EmulatorSettings()) if executes else None

    def name(self) -> str:
        return "Apple M2"

    def supportsFamily_(self, family: int) -> bool:
        return family <= 1008

    def hasUnifiedMemory(self) -> bool:
        return True

    def maxBufferLength(self) -> int:
        return self.memory_bytes // 2

    def maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(1024, 1024, 1024)

    def maxThreadgroupMemoryLength(self) -> int:
        return 32768

    def recommendedMaxWorkingSetSize(self) -> int:
        return self.memory_bytes

    def currentAllocatedSize(self) -> int:
        return self.allocated_bytes

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue(self)

    def newBufferWithLength_options_(self, nbytes: int, options: int) -> MTLBuffer | None:
        assert options == 0
        return None if self.allocated_bytes + nbytes > self.memory_bytes else new_buffer(self, nbytes)

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, memory: Any, nbytes: int, options: int, deallocator: Any
    ) -> MTLBuffer | None:
        assert options == 0
        if self.no_copy == "none":
            return None
        if self.no_copy == "empty":
            return MTLBuffer(self, bytearray(), None)
        buffer = MappedBuffer(self, memory, deallocator)
        assert not buffer.address % page_bytes()
        assert not nbytes % page_bytes()
        return buffer

    def newLibraryWithSource_options_error_(self, source: str, options: Any, _error: None) -> MTLLibrary | Failed:
        return compiled_library(self, source, options)

    def newLibraryWithURL_error_(self, url: Any, _error: None) -> MTLLibrary | Failed:
        return library_from_file(self, url.path)

    def newBinaryArchiveWithDescriptor_error_(self, descriptor: Any, _error: None) -> MTLBinaryArchive | Failed:
        return MTLBinaryArchive.opened(self, descriptor)

    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, descriptor: Any, options: int, _reflection: None, _error: None
    ) -> MTLComputePipelineState | Failed:
        return pipeline_state(self, descriptor, options)

    # -- the GPU ------------------------------------------------------------------------------------------------------

    def submit(self, commands: MTLCommandBuffer) -> None:
        commands.retain()
        self.running.append(commands)
        while len(self.running) > self.lag:
            self.finish_one()

    def finish_one(self) -> None:
        commands = self.running.popleft()
        commands.run(self.failures.popleft() if self.failures else None)
        commands.release()


class MTLDeviceBefore15(MTLDevice):
    """Without residency sets."""


class MTLDeviceFrom15(MTLDevice):
    def newResidencySetWithDescriptor_error_(self, _descriptor: Any, _error: None) -> MTLResidencySet:
        self.residency = MTLResidencySet(self)
        return self.residency


class MTLCommandQueue(Native):
    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device.runtime)
        self.device = device

    def commandBuffer(self) -> Native:
        return MTLCommandBuffer(self.device).autorelease()

    def addResidencySet_(self, residency: MTLResidencySet) -> None:
        self.hold(residency)


class MTLCommandBuffer(Native):
    """Retains what its encoders use until it is done, as Metal's do."""

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device.runtime)
        self.device = device
        self.dispatches: list[
            tuple[MTLComputePipelineState, dict[int, Any], MTLSize, MTLSize, str, dict[int, int]]
        ] = []
        self._status = 0
        self._failed: Failed | None = None

    def computeCommandEncoder(self) -> Native:
        return MTLComputeCommandEncoder(self).autorelease()

    def commit(self) -> None:
        assert self._status == 0, "a command buffer was committed twice"
        self._status = _SCHEDULED
        self.device.submit(self)

    def waitUntilCompleted(self) -> None:
        while self._status == _SCHEDULED:
            self.device.finish_one()

    def status(self) -> int:
        return self._status

    def error(self) -> Any:
        from support.fake_objc.runtime import NSError

        return None if self._failed is None else NSError(self.runtime, self._failed).autorelease()

    def GPUStartTime(self) -> float:
        return 1.0

    def GPUEndTime(self) -> float:
        return 1.5

    def run(self, failed: Failed | None) -> None:
        for state, arguments, *_ in self.dispatches:
            assert state.references > 0
            for argument in arguments.values():
                if isinstance(argument, tuple):
                    argument[0].check()
        self._failed = failed
        if failed is None and self.device.executes:
            for each in self.dispatches:
                self._failed = self._failed or self._launch(*each)
        self._status = _COMPLETED if self._failed is None else _ERROR
        for held in self._held:
            held.release()
        self._held, self.dispatches = [], []

    def _launch(self, state: Any, arguments: Any, grid: Any, threads: Any, unit: Any, memory: Any) -> Failed | None:
        bound = {
            index: BufferBinding(each[0].emulated, each[1]) if isinstance(each, tuple) else each
            for index, each in arguments.items()
        }
        dispatch = Dispatch(state.emulated, bound, tuple(grid), tuple(threads), unit, memory)
        assert self.device.emulator is not None
        try:
            launch(dispatch, self.device.emulator.settings, 32768)
        except Exception as error:
            return Failed(f"{type(error).__name__}: {error}", 3, "MTLCommandBufferErrorDomain")
        return None


class MTLComputeCommandEncoder(Native):
    def __init__(self, commands: MTLCommandBuffer) -> None:
        super().__init__(commands.runtime)
        self.commands = commands
        self.hold(commands)
        self.state: MTLComputePipelineState | None = None
        self.arguments: dict[int, Any] = {}
        self.threadgroup_bytes: dict[int, int] = {}
        self.ended = False
        self.groups = 0

    def dealloc(self) -> None:
        assert self.ended, "an encoder was freed before endEncoding"
        assert not self.groups, "a debug group was not closed"

    def pushDebugGroup_(self, _name: str) -> None:
        self.groups += 1

    def popDebugGroup(self) -> None:
        self.groups -= 1

    def setComputePipelineState_(self, state: MTLComputePipelineState) -> None:
        self.state = state
        self.commands.hold(state)
        self.arguments, self.threadgroup_bytes = {}, {}

    def setBuffer_offset_atIndex_(self, buffer: MTLBuffer, offset: int, index: int) -> None:
        assert index < 31
        assert 0 <= offset <= buffer.length(), f"offset {offset} of a buffer of {buffer.length()} bytes"
        self.commands.hold(buffer)
        self.arguments[index] = (buffer, offset)

    def setBytes_length_atIndex_(self, data: Any, nbytes: int, index: int) -> None:
        assert index < 31
        assert 0 < nbytes <= 4096
        self.arguments[index] = bytes(data)[:nbytes]

    def setThreadgroupMemoryLength_atIndex_(self, nbytes: int, index: int) -> None:
        assert not nbytes % 16
        self.threadgroup_bytes[index] = nbytes

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: MTLSize, threads: MTLSize) -> None:
        self._dispatch(grid, threads, "threadgroups")

    def dispatchThreads_threadsPerThreadgroup_(self, grid: MTLSize, threads: MTLSize) -> None:
        self._dispatch(grid, threads, "threads")

    def _dispatch(self, grid: MTLSize, threads: MTLSize, unit: str) -> None:
        assert self.state is not None
        assert not self.ended
        assert threads.width * threads.height * threads.depth <= self.state.maxTotalThreadsPerThreadgroup()
        record = (self.state, dict(self.arguments), grid, threads, unit, dict(self.threadgroup_bytes))
        self.commands.dispatches.append(record)

    def endEncoding(self) -> None:
        assert not self.ended
        self.ended = True
