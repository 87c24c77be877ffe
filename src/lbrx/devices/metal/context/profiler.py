"""What kernels cost: calls, time on the device, bytes and arithmetic, as a table, JSON or a trace for a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import Argument, BufferBinding, Dispatch
from lbrx.devices.metal.driver.commands import CommandBatch


@dataclass(frozen=True, slots=True)
class Work:
    """What one dispatch has to do: bytes read and written at least once, floating-point operations, shapes in words."""

    nbytes: int
    flops: int = 0
    shapes: str = ""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One dispatch, with its times on the device's clock."""

    kernel: str
    start_seconds: float
    end_seconds: float
    work: Work

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """All calls of one kernel."""

    kernel: str
    calls: int
    gpu_seconds: float
    nbytes: int
    flops: int

    @property
    def gigabytes_per_second(self) -> float:
        return self.nbytes / self.gpu_seconds / 1e9 if self.gpu_seconds else 0.0

    @property
    def gigaflops(self) -> float:
        return self.flops / self.gpu_seconds / 1e9 if self.gpu_seconds else 0.0


class Profile:
    """Calls in the order in which they ran."""

    def __init__(self, calls: Sequence[KernelCall], device: str) -> None:
        self.calls = tuple(calls)
        self.device = device

    def summaries(self) -> tuple[KernelSummary, ...]:
        """One line for each kernel, the most expensive first; equal ones by name."""
        by_name: dict[str, list[KernelCall]] = {}
        for call in self.calls:
            by_name.setdefault(call.kernel, []).append(call)
        summaries = [
            KernelSummary(
                name,
                len(calls),
                sum(call.seconds for call in calls),
                sum(call.work.nbytes for call in calls),
                sum(call.work.flops for call in calls),
            )
            for name, calls in by_name.items()
        ]
        return tuple(sorted(summaries, key=lambda each: (-each.gpu_seconds, each.kernel)))

    def table(self) -> str:
        """The summaries as lines of text.

        >>> print(Profile([KernelCall("matvec", 1.0, 1.001, Work(2_000_000, 4_000_000))], "a GPU").table())
        kernel    calls    GPU ms        MB      GB/s   GFLOP/s
        matvec        1     1.000      2.00      2.00      4.00
        """
        rows = self.summaries()
        width = max([6, *(len(row.kernel) for row in rows)])
        lines = [f"{'kernel':<{width}}{'calls':>9}{'GPU ms':>10}{'MB':>10}{'GB/s':>10}{'GFLOP/s':>10}"]
        for row in rows:
            lines.append(
                f"{row.kernel:<{width}}{row.calls:>9}{row.gpu_seconds * 1e3:>10.3f}{row.nbytes / 1e6:>10.2f}"
                f"{row.gigabytes_per_second:>10.2f}{row.gigaflops:>10.2f}"
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """Device and summaries."""
        kernels = [
            {**asdict(row), "gigabytes_per_second": row.gigabytes_per_second, "gigaflops": row.gigaflops}
            for row in self.summaries()
        ]
        return json.dumps({"device": self.device, "kernels": kernels}, indent=2)

    def chrome_trace(self) -> str:
        """Every call on a time line, for chrome://tracing or Perfetto."""
        origin = min((call.start_seconds for call in self.calls), default=0.0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": self.device}},
        ]
        for call in self.calls:
            events.append(
                {
                    "ph": "X",
                    "name": call.kernel,
                    "cat": "kernel",
                    "pid": 0,
                    "tid": 0,
                    "ts": (call.start_seconds - origin) * 1e6,
                    "dur": call.seconds * 1e6,
                    "args": {"bytes": call.work.nbytes, "flops": call.work.flops, "shapes": call.work.shapes},
                }
            )
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


class ProfiledContext(MetalContext):
    """A context that hands every dispatch to the device by itself, so that each has times of its own.

    It shares device, pool and shaders with the context that it is made from. Batching is lost: times of kernels are
    right, the time between them is longer than usual.

    >>> import numpy as np
    >>> from lbrx.devices.metal.ops.arrays import upload
    >>> from lbrx.devices.metal.ops.rows import softmax
    >>> context = ProfiledContext(MetalContext.open("emulated"))
    >>> _ = softmax(context, upload(context, np.zeros((2, 3), np.float32)))
    >>> [(row.kernel, row.calls, row.nbytes) for row in context.profile().summaries()]
    [('softmax', 1, 48)]
    """

    def __init__(self, context: MetalContext) -> None:
        context.commit()
        super().__init__(context.driver)
        self.pool, self.shaders, self.windows = context.pool, context.shaders, context.windows
        self._recorded: list[tuple[str, Work, CommandBatch]] = []
        self._announced: Work | None = None
        self._is_profiling = True

    def announce(self, work: Work) -> None:
        """Say what the next dispatch does; without it, the bytes of its buffers are counted."""
        self._announced = work

    @contextmanager
    def unprofiled(self) -> Iterator[None]:
        """Batch dispatches as usual, without times of their own, for the length of a ``with`` block."""
        self._is_profiling = False
        try:
            yield
        finally:
            self._is_profiling = True

    def record(self, dispatch: Dispatch) -> None:
        if not self._is_profiling:
            super().record(dispatch)
            return
        with self._lock:
            self.commit()
            super().record(dispatch)
            work, self._announced = self._announced or Work(_bound_bytes(dispatch.arguments)), None
            self._recorded.append((dispatch.pipeline.name, work, self.commit()))

    def profile(self) -> Profile:
        """What was dispatched since the context was made, when it is done."""
        self.synchronize()
        calls = [KernelCall(name, *batch.gpu_seconds, work) for name, work, batch in self._recorded]
        return Profile(calls, self.info.name)


def _bound_bytes(arguments: Mapping[int, Argument]) -> int:
    """Bytes of all windows that are bound; one that is bound twice counts once."""
    windows: dict[tuple[int, int], int] = {}
    for argument in arguments.values():
        if isinstance(argument, BufferBinding):
            rest = argument.buffer.nbytes - argument.offset
            windows[id(argument.buffer), argument.offset] = rest if argument.nbytes is None else argument.nbytes
    return sum(windows.values())
