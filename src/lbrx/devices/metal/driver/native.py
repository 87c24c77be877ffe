"""The driver for Apple GPUs: Metal through PyObjC. Whatever can be done without a GPU is done elsewhere.

Every method of Metal that is called here is listed in ``selectors``. What a method returns without the caller owning it
is freed by an autorelease pool around the call.
"""

from __future__ import annotations

import atexit
import platform
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lbrx.base.system import format_bytes, gpu_cores
from lbrx.devices.metal.driver import Buffer, BufferBinding, CompileOptions, DeviceInfo, Dispatch, GpuFamily
from lbrx.devices.metal.driver.buffers import check_pages
from lbrx.devices.metal.driver.errors import MetalError, MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.native_buffers import SHARED, MappedPages, NativeBuffer
from lbrx.devices.metal.driver.native_library import NativeLibrary, NativePipeline
from lbrx.devices.metal.driver.native_submission import NativeSubmission
from lbrx.devices.metal.driver.pyobjc import autorelease_pool, error_text, file_url, load_metal
from lbrx.devices.metal.driver.requirements import checked
from lbrx.devices.metal.generations import OLDEST_MACOS, language_of
from lbrx.errors import MemoryBudgetError, UsageError

_MOST_LABEL = 80  # characters
_TRACE_DOCUMENT = 2  # MTLCaptureDestinationGPUTraceDocument
_SAFE_MATH, _FAST_MATH = 0, 2  # MTLMathMode...
_FAST_FUNCTIONS, _PRECISE_FUNCTIONS = 0, 1  # MTLMathFloatingPointFunctions...


class NativeDriver:
    """The Apple GPU of this machine."""

    def __init__(self) -> None:
        self.metal = load_metal()
        for check in checked():
            if check.name == "macOS" and check.is_needed and not check.is_met:
                raise MetalUnavailable(f"this is macOS {check.found}; the Metal backend needs macOS {check.least}")
        self.archive_hits = self.archive_misses = 0
        self._names_dispatches = False
        self._prebuilt: dict[Path, Any] = {}
        with autorelease_pool():
            self.device = self.metal.MTLCreateSystemDefaultDevice()
            if self.device is None:
                raise MetalUnavailable("macOS offers no GPU to this process; the 'emulated' driver runs anywhere")
            self._info = self._device_info()
            self._queue = self.device.newCommandQueue()
            self._pages = MappedPages(self.metal, self.device, self._queue)
        self._last: NativeSubmission | None = None
        atexit.register(_finish, weakref.ref(self))

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def allocated_bytes(self) -> int:
        """What Metal has allocated for this process, mapped pages included."""
        return int(self.device.currentAllocatedSize())

    def facts(self) -> dict[str, Any]:
        """What `lbrx doctor` reports besides ``info``."""
        return {
            "allocated_bytes": self.allocated_bytes,
            "mapped_bytes": self._pages.nbytes,
            "residency_set": self._pages.has_residency_set,
            "refused_pages": self._pages.refused or "none",
            "pipelines_from_archives": self.archive_hits,
            "pipelines_compiled": self.archive_misses,
        }

    def allocate(self, nbytes: int) -> NativeBuffer:
        handle = None
        if nbytes <= self._info.max_buffer_bytes:
            with autorelease_pool():
                handle = self.device.newBufferWithLength_options_(max(1, nbytes), SHARED)
                if handle is not None:
                    handle.setLabel_(f"lbrx: {format_bytes(nbytes)}")
        if handle is None:
            raise MemoryBudgetError(
                f"there is no memory for a buffer of {format_bytes(nbytes)}; the largest on {self._info.name} is "
                f"{format_bytes(self._info.max_buffer_bytes)}"
            )
        return NativeBuffer(handle, nbytes)

    def wrap(self, address: int, nbytes: int, keep_alive: object, *, resident: bool = False) -> NativeBuffer | None:
        check_pages(address, nbytes)
        if nbytes > self._info.max_buffer_bytes:
            return None
        with autorelease_pool():
            return self._pages.wrap(address, nbytes, keep_alive, resident=resident)

    def compile(self, source: str, options: CompileOptions, artifact: bytes | None = None) -> NativeLibrary:
        with autorelease_pool():
            handle, error = self.device.newLibraryWithSource_options_error_(source, self._options(options), None)
            if handle is None:
                text = error_text(error).replace("program_source", "shader.metal")
                raise ShaderError(f"the shader does not compile:\n{text}")
            return NativeLibrary(self, handle, artifact)

    def load(self, path: Path, digest: str, kernels: Mapping[str, str], artifact: bytes | None = None) -> NativeLibrary:
        """All shaders are in one library, which is opened once."""
        with autorelease_pool():
            if path not in self._prebuilt:
                handle, error = self.device.newLibraryWithURL_error_(file_url(path), None)
                if handle is None:
                    raise ShaderError(f"{path}: cannot be loaded: {error_text(error)}")
                self._prebuilt[path] = handle
            handle = self._prebuilt[path]
            missing = set(kernels.values()) - {str(name) for name in handle.functionNames()}
            if missing:
                raise ShaderError(f"{path}: has no kernel {', '.join(sorted(missing))} of shader {digest[:8]}")
            return NativeLibrary(self, handle, artifact, kernels)

    def _options(self, options: CompileOptions) -> Any:
        chosen = self.metal.MTLCompileOptions.alloc().init()
        chosen.setPreprocessorMacros_(dict(options.defines))
        major, minor = self._info.language
        chosen.setLanguageVersion_(major << 16 | minor)
        if hasattr(chosen, "setMathMode_"):  # from macOS 15 on, which deprecates fastMathEnabled
            chosen.setMathMode_(_FAST_MATH if options.fast_math else _SAFE_MATH)
            chosen.setMathFloatingPointFunctions_(_FAST_FUNCTIONS if options.fast_math else _PRECISE_FUNCTIONS)
        else:
            chosen.setFastMathEnabled_(options.fast_math)
        return chosen

    def submit(self, dispatches: Sequence[Dispatch], label: str) -> NativeSubmission:
        with autorelease_pool():
            commands = self._queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            kernels = ", ".join(dict.fromkeys(each.pipeline.name for each in dispatches))
            commands.setLabel_(label or f"lbrx: {kernels}"[:_MOST_LABEL])
            encoder.setLabel_(label or kernels[:_MOST_LABEL])
            for dispatch in dispatches:
                self._encode(encoder, dispatch)
            encoder.endEncoding()
            commands.commit()
        self._last = NativeSubmission(commands, dispatches, kernels)
        return self._last

    def _encode(self, encoder: Any, dispatch: Dispatch) -> None:
        pipeline = dispatch.pipeline
        if not isinstance(pipeline, NativePipeline):
            raise MetalError(f"kernel '{pipeline.name}' was not compiled by the native driver")
        if self._names_dispatches:
            encoder.pushDebugGroup_(pipeline.name)
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
        if self._names_dispatches:
            encoder.popDebugGroup()

    @contextmanager
    def capture(self, path: Path) -> Iterator[None]:
        """Record what is submitted within a ``with`` block as a ``.gputrace`` document, for Xcode."""
        with autorelease_pool():
            manager = self.metal.MTLCaptureManager.sharedCaptureManager()
            descriptor = self.metal.MTLCaptureDescriptor.alloc().init()
            descriptor.setCaptureObject_(self.device)
            descriptor.setDestination_(_TRACE_DOCUMENT)
            descriptor.setOutputURL_(file_url(path))
            started, error = manager.startCaptureWithDescriptor_error_(descriptor, None)
            if not started:
                raise UsageError(
                    f"{path}: Metal cannot record a trace there: {error_text(error)}; set MTL_CAPTURE_ENABLED=1 in the "
                    "environment, and give a name ending in .gputrace of a file that does not exist"
                )
        self._names_dispatches = True
        try:
            yield
        finally:
            self._names_dispatches = False
            manager.stopCapture()

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
            cores=gpu_cores() or 0,
        )

    def finish(self) -> None:
        """Wait for the last work, before the interpreter ends: Metal calls back when it frees mapped pages."""
        if self._last is not None:
            self._last.finish()


def _finish(reference: weakref.ref[NativeDriver]) -> None:
    driver = reference()
    if driver is not None:
        driver.finish()


def _handle(buffer: Buffer) -> Any:
    if not isinstance(buffer, NativeBuffer):
        raise MetalError("a buffer of another driver was bound")
    return buffer.handle
