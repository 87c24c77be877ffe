"""The driver for Apple GPUs: Metal through PyObjC. Whatever can be done without a GPU is done elsewhere.

Every method of Metal that is called here is listed in ``pyobjc``.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base.system import format_bytes
from lbrx.devices.metal.driver import Buffer, BufferBinding, CompileOptions, Constants, DeviceInfo, Dispatch, GpuFamily
from lbrx.devices.metal.driver.buffers import SharedMemory, check_pages
from lbrx.devices.metal.driver.errors import KernelFault, MetalError, MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.pyobjc import load_metal
from lbrx.devices.metal.driver.scratch import scratch_directory
from lbrx.devices.metal.generations import OLDEST_MACOS, language_of
from lbrx.errors import MemoryBudgetError

_SHARED, _COMPLETED, _ERROR = 0, 4, 5  # MTLResourceStorageModeShared, MTLCommandBufferStatus...
_CONSTANT_FORMATS = {53: "?", 45: "b", 49: "B", 37: "h", 41: "H", 29: "i", 33: "I", 81: "q", 85: "Q", 16: "e", 3: "f"}


class NativeBuffer(SharedMemory):
    """An MTLBuffer in memory that CPU and GPU share."""

    def __init__(self, handle: Any, nbytes: int, *, keep_alive: object = None) -> None:
        memory = np.frombuffer(handle.contents().as_buffer(max(1, nbytes)), np.uint8)
        super().__init__(memory.ctypes.data, nbytes, read_only=keep_alive is not None)
        self.handle = handle
        self._keep_alive = keep_alive

    def fit(self, nbytes: int) -> None:
        self.check_fit(nbytes)
        self.nbytes = nbytes

    def release(self) -> None:
        self.check_idle("released")
        self.handle = self._keep_alive = None


class NativePipeline:
    """An MTLComputePipelineState."""

    def __init__(self, name: str, state: Any) -> None:
        self.name = name
        self.state = state
        self.max_threads = int(state.maxTotalThreadsPerThreadgroup())
        self.simd_width = int(state.threadExecutionWidth())


class NativeLibrary:
    """An MTLLibrary, with a binary archive that keeps what the GPU's compiler made of its functions."""

    def __init__(self, driver: NativeDriver, handle: Any, artifact: bytes | None) -> None:
        self._driver = driver
        self._handle = handle
        self._changed = False
        descriptor = driver.metal.MTLBinaryArchiveDescriptor.alloc().init()
        if artifact is not None:
            with tempfile.NamedTemporaryFile(dir=scratch_directory(), suffix=".archive", delete=False) as file:
                file.write(artifact)
            descriptor.setUrl_(driver.url(file.name))
        self._archive, error = driver.device.newBinaryArchiveWithDescriptor_error_(descriptor, None)
        if self._archive is None:
            raise ShaderError(f"a binary archive cannot be used: {_text(error)}")

    @property
    def function_names(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self._handle.functionNames())

    def pipeline(self, name: str, constants: Constants) -> NativePipeline:
        values = self._constant_values(name, constants)
        function, error = self._handle.newFunctionWithName_constantValues_error_(name, values, None)
        if function is None:
            raise ShaderError(f"kernel {name!r} cannot be specialised: {_text(error)}")
        descriptor = self._driver.metal.MTLComputePipelineDescriptor.alloc().init()
        descriptor.setComputeFunction_(function)
        descriptor.setBinaryArchives_([self._archive])
        state, error = self._driver.device.newComputePipelineStateWithDescriptor_options_reflection_error_(
            descriptor, 0, None, None
        )
        if state is None:
            raise ShaderError(f"kernel {name!r} does not compile: {_text(error)}")
        added, _ = self._archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)
        self._changed |= bool(added)
        return NativePipeline(name, state)

    def _constant_values(self, name: str, constants: Constants) -> Any:
        values = self._driver.metal.MTLFunctionConstantValues.alloc().init()
        known = self._handle.newFunctionWithName_(name).functionConstantsDictionary() if constants else {}
        for constant, value in constants.items():
            if constant not in known:
                continue  # the compiler leaves out what a kernel does not use in the end
            constant_type = int(known[constant].type())
            if constant_type not in _CONSTANT_FORMATS:
                raise ShaderError(f"kernel {name!r} has no function constant {constant!r} that is a number")
            code = _CONSTANT_FORMATS[constant_type]
            number = float(value) if code in "ef" else bool(value) if code == "?" else int(value)
            values.setConstantValue_type_withName_(struct.pack(code, number), constant_type, constant)
        return values

    def artifact(self) -> bytes | None:
        if not self._changed:
            return None
        self._changed = False
        with tempfile.TemporaryDirectory(dir=scratch_directory()) as directory:
            path = Path(directory) / "archive"
            written, _ = self._archive.serializeToURL_error_(self._driver.url(str(path)), None)
            return path.read_bytes() if written else None


class NativeSubmission:
    """A committed MTLCommandBuffer."""

    def __init__(self, handle: Any, kernels: str) -> None:
        self._handle = handle
        self._kernels = kernels

    @property
    def done(self) -> bool:
        return int(self._handle.status()) >= _COMPLETED

    def wait(self) -> None:
        self._handle.waitUntilCompleted()
        if int(self._handle.status()) == _ERROR:
            raise KernelFault(f"the GPU stopped while it ran {self._kernels}: {_text(self._handle.error())}")

    @property
    def gpu_seconds(self) -> tuple[float, float]:
        return float(self._handle.GPUStartTime()), float(self._handle.GPUEndTime())


class NativeDriver:
    """The Apple GPU of this machine."""

    def __init__(self) -> None:
        self.metal = load_metal()
        self.device = self.metal.MTLCreateSystemDefaultDevice()
        if self.device is None:
            raise MetalUnavailable("macOS offers no GPU to this process; the 'emulated' driver runs anywhere")
        self._queue = self.device.newCommandQueue()
        self._info = self._device_info()

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def url(self, path: str) -> Any:
        return importlib.import_module("Foundation").NSURL.fileURLWithPath_(path)

    def allocate(self, nbytes: int) -> NativeBuffer:
        handle = None
        if nbytes <= self._info.max_buffer_bytes:
            handle = self.device.newBufferWithLength_options_(max(1, nbytes), _SHARED)
        if handle is None:
            raise MemoryBudgetError(
                f"there is no memory for a buffer of {format_bytes(nbytes)}; the largest on {self._info.name} is "
                f"{format_bytes(self._info.max_buffer_bytes)}"
            )
        return NativeBuffer(handle, nbytes)

    def wrap(self, address: int, nbytes: int, keep_alive: object) -> NativeBuffer:
        check_pages(address, nbytes)
        memory = (ctypes.c_char * nbytes).from_address(address)
        handle = self.device.newBufferWithBytesNoCopy_length_options_deallocator_(memory, nbytes, _SHARED, None)
        if handle is None:
            raise MetalError(f"Metal does not take {nbytes} mapped bytes at address {address:#x} as a buffer")
        buffer = NativeBuffer(handle, nbytes, keep_alive=(memory, keep_alive))
        if buffer.address != address:
            raise MetalError("PyObjC copied mapped pages instead of passing them on; a newer version is needed")
        return buffer

    def compile(self, source: str, options: CompileOptions, artifact: bytes | None = None) -> NativeLibrary:
        chosen = self.metal.MTLCompileOptions.alloc().init()
        chosen.setPreprocessorMacros_(dict(options.defines))
        chosen.setFastMathEnabled_(options.fast_math)
        handle, error = self.device.newLibraryWithSource_options_error_(source, chosen, None)
        if handle is None:
            raise ShaderError(f"the shader does not compile:\n{_text(error).replace('program_source', 'shader.metal')}")
        return NativeLibrary(self, handle, artifact)

    def submit(self, dispatches: Sequence[Dispatch], label: str) -> NativeSubmission:
        commands = self._queue.commandBuffer()
        commands.setLabel_(label)
        encoder = commands.computeCommandEncoder()
        for dispatch in dispatches:
            self._encode(encoder, dispatch)
        encoder.endEncoding()
        commands.commit()
        return NativeSubmission(commands, ", ".join(dict.fromkeys(each.pipeline.name for each in dispatches)))

    def _encode(self, encoder: Any, dispatch: Dispatch) -> None:
        pipeline = dispatch.pipeline
        if not isinstance(pipeline, NativePipeline):
            raise MetalError(f"kernel '{pipeline.name}' was not compiled by the native driver")
        encoder.setComputePipelineState_(pipeline.state)
        for index, argument in dispatch.arguments.items():
            if isinstance(argument, BufferBinding):
                encoder.setBuffer_offset_atIndex_(_handle(argument.buffer), argument.offset, index)
            else:
                encoder.setBytes_length_atIndex_(argument, len(argument), index)
        for index, nbytes in dispatch.threadgroup_bytes.items():
            encoder.setThreadgroupMemoryLength_atIndex_(nbytes, index)
        grid, threadgroup = self.metal.MTLSize(*dispatch.grid), self.metal.MTLSize(*dispatch.threads_per_threadgroup)
        if dispatch.grid_unit == "threads":
            encoder.dispatchThreads_threadsPerThreadgroup_(grid, threadgroup)
        else:
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(grid, threadgroup)

    def _device_info(self) -> DeviceInfo:
        device = self.device
        families = [family for family in GpuFamily if device.supportsFamily_(1000 + family)]  # MTLGPUFamilyApple7...
        if not families:
            raise MetalUnavailable(f"{device.name()} is not an Apple GPU; the 'emulated' driver runs anywhere")
        return DeviceInfo(
            name=str(device.name()),
            family=max(families),
            unified_memory=bool(device.hasUnifiedMemory()),
            max_buffer_bytes=int(device.maxBufferLength()),
            max_threads_per_threadgroup=int(device.maxThreadsPerThreadgroup().width),
            threadgroup_memory_bytes=int(device.maxThreadgroupMemoryLength()),
            working_set_bytes=int(device.recommendedMaxWorkingSetSize()),
            system_version=platform.mac_ver()[0],
            driver_version=platform.version(),
            emulated=False,
            language=language_of(int(platform.mac_ver()[0].partition(".")[0] or OLDEST_MACOS)),
        )


def _handle(buffer: Buffer) -> Any:
    if not isinstance(buffer, NativeBuffer):
        raise MetalError("a buffer of another driver was bound")
    return buffer.handle


def _text(error: Any) -> str:
    return "no reason was given" if error is None else str(error.localizedDescription())
