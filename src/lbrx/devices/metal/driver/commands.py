"""Batches of dispatches: checked when they are recorded, handed to the device together."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from lbrx.devices.metal.driver import Argument, BufferBinding, DeviceInfo, Dispatch, Driver, Pipeline, Size, Submission
from lbrx.devices.metal.driver.errors import MetalError
from lbrx.devices.metal.driver.forks import ForkGuard
from lbrx.errors import UsageError

LARGEST_BYTES_ARGUMENT = 4096  # Metal's limit for bytes that are not in a buffer
_BUFFER_INDICES = range(31)
_LARGEST_SIZE = 1 << 32


class DispatchRecorder:
    """Turns the arguments of a dispatch into a record."""

    def dispatch(
        self,
        pipeline: Pipeline,
        arguments: Mapping[int, Argument],
        grid: tuple[int, ...],
        threads_per_threadgroup: tuple[int, ...],
        *,
        grid_unit: Literal["threadgroups", "threads"] = "threadgroups",
        threadgroup_bytes: Mapping[int, int] | None = None,
    ) -> None:
        """Record a kernel over a grid; sizes may have one to three dimensions. It runs after those recorded before."""
        kernel = f"kernel '{pipeline.name}'"
        self.record(
            Dispatch(
                pipeline,
                dict(arguments),
                _size(grid, f"{kernel}: grid"),
                _size(threads_per_threadgroup, f"{kernel}: threads per threadgroup"),
                grid_unit,
                dict(threadgroup_bytes or {}),
            )
        )

    def record(self, dispatch: Dispatch) -> None:
        raise NotImplementedError


class CommandBatch(DispatchRecorder):
    """Dispatches that run in their order. A batch is also the ``last_use`` of every buffer in it.

    Nothing happens before ``commit``; ``wait`` commits if nobody did. ``earlier`` is the batch before it: what
    went wrong there is an error of whoever waits for this batch, which may have read its results.
    """

    def __init__(self, driver: Driver, label: str = "", earlier: CommandBatch | None = None) -> None:
        self.label = label
        self.error: MetalError | None = None  # of its own kernels, once it was waited for
        self._earlier = earlier
        self._guard = ForkGuard()
        self._driver = driver
        self._dispatches: list[Dispatch] = []
        self._submission: Submission | None = None
        self.was_waited_for = False  # whether a caller has seen its errors
        self._recorded = 0

    def __len__(self) -> int:
        return self._recorded

    @property
    def committed(self) -> bool:
        return self._submission is not None

    def record(self, dispatch: Dispatch) -> None:
        """Check a dispatch and add it to the batch."""
        if self.committed:
            raise UsageError(f"batch '{self.label}' was committed already and takes no more dispatches")
        _check(dispatch, self._driver.info, f"kernel '{dispatch.pipeline.name}'")
        for argument in dispatch.arguments.values():
            if isinstance(argument, BufferBinding):
                argument.buffer.last_use = self
        self._dispatches.append(dispatch)
        self._recorded += 1

    def commit(self) -> None:
        """Hand the dispatches to the device and return at once."""
        self._guard.check()
        if self._submission is None:
            self._submission = self._driver.submit(self._dispatches, self.label)
            self._dispatches = []

    @property
    def done(self) -> bool:
        return self._submission is not None and self._submission.done

    def wait(self) -> None:
        """Return when all is done; raise what went wrong, in this batch or in an earlier one that nobody waited for."""
        self.commit()
        chain, batch = [self], self._earlier
        while batch is not None and not batch.was_waited_for:
            chain.append(batch)
            batch = batch._earlier
        for each in reversed(chain):
            each._finish()

    def _finish(self) -> None:
        self.commit()
        self.was_waited_for, self._earlier = True, None
        if self._submission is not None:
            try:
                self._submission.wait()
            except MetalError as error:
                self.error = error
                raise

    @property
    def gpu_seconds(self) -> tuple[float, float]:
        """When the device began and ended, on its own clock. Only after ``wait``."""
        if self._submission is None:
            raise UsageError(f"batch '{self.label}' was not committed and has no times")
        return self._submission.gpu_seconds


def _size(given: tuple[int, ...], where: str) -> Size:
    if not 1 <= len(given) <= 3 or any(not 0 < extent < _LARGEST_SIZE for extent in given):
        raise UsageError(f"{where} of {given}; expected one to three positive numbers")
    padded = (*given, 1, 1)
    return padded[0], padded[1], padded[2]


def _check(dispatch: Dispatch, info: DeviceInfo, where: str) -> None:
    threads = prod(dispatch.threads_per_threadgroup)
    most = min(info.max_threads_per_threadgroup, dispatch.pipeline.max_threads)
    if threads > most:
        raise MetalError(f"{where}: {threads} threads per threadgroup, but at most {most} are possible")
    used = sum(dispatch.threadgroup_bytes.values())
    if used > info.threadgroup_memory_bytes:
        raise MetalError(
            f"{where}: {used} bytes of threadgroup memory, but {info.name} has {info.threadgroup_memory_bytes}"
        )
    for index, nbytes in dispatch.threadgroup_bytes.items():
        if nbytes % 16 or nbytes <= 0:
            raise UsageError(f"{where}: {nbytes} bytes of threadgroup memory {index}; expected a multiple of 16")
    for index, argument in dispatch.arguments.items():
        if index not in _BUFFER_INDICES:
            raise UsageError(f"{where}: buffer index {index} is not in 0..30")
        _check_argument(argument, f"{where}: buffer {index}")


def _check_argument(argument: Argument, where: str) -> None:
    if isinstance(argument, bytes):
        if not 0 < len(argument) <= LARGEST_BYTES_ARGUMENT:
            raise UsageError(f"{where}: {len(argument)} bytes by value; expected 1 to {LARGEST_BYTES_ARGUMENT}")
        return
    last = argument.offset + (argument.nbytes or 0)
    if argument.offset < 0 or (argument.nbytes or 0) < 0 or last > argument.buffer.nbytes:
        raise UsageError(
            f"{where}: bytes {argument.offset} to {last} were bound, but the buffer has {argument.buffer.nbytes}"
        )
