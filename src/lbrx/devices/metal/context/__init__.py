"""MetalContext: a device with its queue, its buffers and its shaders."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lbrx.devices.metal.context.windows import WindowCache
from lbrx.devices.metal.driver import Buffer, CompileOptions, Constants, DeviceInfo, Dispatch, Driver, Pipeline
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.commands import CommandBatch, DispatchRecorder
from lbrx.devices.metal.driver.forks import ForkGuard
from lbrx.devices.metal.driver.pool import BufferPool
from lbrx.devices.metal.driver.shader_cache import ShaderCache
from lbrx.errors import UsageError

DriverName = Literal["auto", "native", "emulated"]
_LARGEST_BATCH = 64  # dispatches that wait before the device begins


class MetalContext(DispatchRecorder):
    """One device: kernels are recorded, run in order in the background, and waited for only where values are needed.

    >>> from lbrx.devices.metal.driver import BufferBinding
    >>> context = MetalContext.open("emulated")
    >>> twice = context.pipeline(
    ...     "kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }", "twice"
    ... )
    >>> x = context.buffer_from(np.array([1, 2, 3], np.float32))
    >>> context.dispatch(twice, {0: BufferBinding(x)}, (3,), (32,), grid_unit="threads")
    >>> context.array(x, np.float32)
    array([2., 4., 6.], dtype=float32)
    """

    def __init__(
        self, driver: Driver, *, pool_limit_bytes: int | str | None = None, store: ArtifactStore | None = None
    ) -> None:
        self.driver = driver
        self.pool = BufferPool(driver, pool_limit_bytes)
        self.shaders = ShaderCache(driver, store)
        self.windows = WindowCache(driver)
        self._guard = ForkGuard()
        self._open = CommandBatch(driver)
        self._running: deque[CommandBatch] = deque()
        self._lock = threading.RLock()

    @classmethod
    def open(cls, driver: DriverName = "auto") -> MetalContext:
        """The Apple GPU of this machine, or the emulator; ``auto`` takes the GPU where there is one."""
        if driver not in get_args(DriverName):
            raise UsageError(f"unknown Metal driver {driver!r}; expected one of {', '.join(get_args(DriverName))}")
        if driver == "emulated" or (driver == "auto" and not _has_metal()):
            from lbrx.devices.metal.emulator.driver import EmulatedDriver

            return cls(EmulatedDriver())
        from lbrx.devices.metal.driver.native import NativeDriver

        return cls(NativeDriver())

    @property
    def info(self) -> DeviceInfo:
        """The properties of the GPU."""
        return self.driver.info

    def pipeline(
        self, source: str, name: str, constants: Constants | None = None, options: CompileOptions | None = None
    ) -> Pipeline:
        """A kernel of a shader, compiled when it is first asked for; see ShaderCache."""
        return self.shaders.pipeline(source, name, constants, options)

    def get_buffer(self, nbytes: int, *, host_access: bool = True) -> Buffer:
        """A buffer from the pool; see BufferPool."""
        self._guard.check()
        with self._lock:
            return self.pool.get_buffer(nbytes, host_access=host_access)

    def return_buffer(self, buffer: Buffer) -> None:
        """Give a buffer back; kernels that were dispatched already may still use it."""
        if self._guard.is_foreign:
            return  # the lock may be that of a thread which is not here
        with self._lock:
            self.pool.return_buffer(buffer)

    def buffer_from(self, array: NDArray[Any]) -> Buffer:
        """A buffer with a copy of an array's bytes."""
        buffer = self.get_buffer(array.nbytes)
        buffer.view()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def array(self, buffer: Buffer, dtype: Any, shape: tuple[int, ...] = (-1,)) -> NDArray[Any]:
        """The contents of a buffer, copied when the kernels that write it are done."""
        if buffer.last_use is not None:
            self.commit()
            buffer.last_use.wait()
        contents: NDArray[Any] = buffer.view().copy().view(dtype)
        return contents.reshape(shape)

    def record(self, dispatch: Dispatch) -> None:
        """Add a dispatch to the open batch."""
        self._guard.check()
        with self._lock:
            if self._open.committed:  # a caller waited for one of its buffers
                self.commit()
            self._open.record(dispatch)
            if len(self._open) >= _LARGEST_BATCH:
                self.commit()

    def commit(self) -> CommandBatch:
        """Let the device begin with what was recorded; the batch can be waited for."""
        self._guard.check()
        with self._lock:
            batch = self._open
            if len(batch):
                batch.commit()
                self._running.append(batch)
                self._open = CommandBatch(self.driver, earlier=batch)
            while self._running and self._running[0].done:
                finished = self._running.popleft()
                if not finished.was_waited_for:
                    finished.wait()  # raises what went wrong, once
            return batch

    def synchronize(self) -> None:
        """Wait for everything that was recorded; the first thing that went wrong is raised."""
        self._guard.check()
        with self._lock:
            self.commit()
            while self._running:
                self._running.popleft().wait()


def _has_metal() -> bool:
    from lbrx.devices.metal.driver.pyobjc import is_available

    return is_available()
