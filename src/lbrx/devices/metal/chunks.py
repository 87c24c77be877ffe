"""Chunks of a pass, some of them under way at a time; one for which there is no memory is run again in halves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.storage import wait_for
from lbrx.devices.metal.driver import Buffer
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.errors import GpuOutOfMemory
from lbrx.devices.metal.inputs import BoundInputs
from lbrx.devices.metal.ops.arrays import DeviceArray
from lbrx.errors import MemoryBudgetError

IN_FLIGHT = 2  # chunks: one computes while the results of the other are taken out


@dataclass(slots=True)
class Chunk:
    """A dispatch under way, and the buffers that it has."""

    lo: int
    hi: int
    inputs: BoundInputs = field(default_factory=BoundInputs)
    outputs: dict[str, Buffer] = field(default_factory=dict)
    coded: dict[int, DeviceArray] = field(default_factory=dict)  # values of which blocks are made, by sink

    def give_back(self, context: MetalContext) -> None:
        """Return the buffers; the pool knows what the device still works on."""
        self.inputs.give_back(context)
        for buffer in self.outputs.values():
            context.return_buffer(buffer)

    def wait(self, context: MetalContext) -> None:
        """Return when its results are there."""
        for buffer in self.outputs.values():
            wait_for(context, buffer)

    def is_cause_of(self, error: MemoryBudgetError) -> bool:
        """Whether an error is its own: what went wrong in earlier work cannot be repeated with this chunk."""
        if not isinstance(error, GpuOutOfMemory):
            return True  # a buffer could not be allocated
        uses = [buffer.last_use for buffer in self.outputs.values()]
        return any(isinstance(use, CommandBatch) and use.error is error for use in uses)


class ChunksInFlight:
    """Begins and finishes the chunks of ``elements`` in their order. The sizes of chunks are multiples of ``unit``."""

    def __init__(
        self, context: MetalContext, begin: Callable[[Chunk], None], finish: Callable[[Chunk], None], unit: int
    ) -> None:
        self._context = context
        self._begin = begin
        self._finish = finish
        self._unit = unit
        self._under_way: deque[Chunk] = deque()

    def run(self, elements: int, size: int) -> None:
        """Run all chunks."""
        to_do = deque((lo, min(elements, lo + size)) for lo in range(0, elements, size))
        try:
            while to_do or self._under_way:
                if to_do and len(self._under_way) < IN_FLIGHT:
                    self._under_way.append(Chunk(*to_do.popleft()))
                    halves = self._halves_after(self._begin, self._under_way[-1])
                else:
                    halves = self._halves_after(self._finish, self._under_way[0])
                    if not halves:
                        self._under_way.popleft().give_back(self._context)
                to_do.extendleft(reversed(halves))
        finally:
            for chunk in self._under_way:  # only after an error
                chunk.give_back(self._context)

    def _halves_after(self, step: Callable[[Chunk], None], chunk: Chunk) -> list[tuple[int, int]]:
        """Take a step with a chunk. If there is no memory for it, it is dropped and its halves are returned."""
        try:
            step(chunk)
            return []
        except MemoryBudgetError as error:
            half = (chunk.hi - chunk.lo) // 2 // self._unit * self._unit
            if not half or not chunk.is_cause_of(error):
                raise
        self._under_way = deque(each for each in self._under_way if each is not chunk)
        chunk.give_back(self._context)
        for other in self._under_way:  # the memory that they have may be what is missing
            other.wait(self._context)
        return [(chunk.lo, chunk.lo + half), (chunk.lo + half, chunk.hi)]
