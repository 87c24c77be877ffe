"""Running a bound pass on Metal: one dispatch for each chunk of the space, and the next while results are taken out.

A chunk is the whole pass unless its new buffers would be larger than ``CHUNK_BYTES``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.packing import packed
from lbrx.devices.metal.chunks import IN_FLIGHT, Chunk, ChunksInFlight
from lbrx.devices.metal.codegen.source import ELEMENTS_PER_THREAD, ELEMENTWISE_THREADS, pass_kernel
from lbrx.devices.metal.codegen.tiles import TILE_THREADS
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import ProfiledContext, Work
from lbrx.devices.metal.context.storage import MetalDestination
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.driver import Buffer, BufferBinding, CompileOptions, Pipeline
from lbrx.devices.metal.driver.errors import KernelFault
from lbrx.devices.metal.encode import BlockSink, needs_no_pass, stored_values
from lbrx.devices.metal.inputs import LeafBindings
from lbrx.devices.metal.selection import (
    COLLECT_COUNT_BYTES,
    COLLECTED_BYTES,
    HISTOGRAM_BYTES,
    add_collected,
    add_counts,
    collect_capacity,
)
from lbrx.engine.bind import BoundPass
from lbrx.engine.block_sizes import REDUCTION_BLOCK
from lbrx.engine.destination import CollectState, Destination, HistogramState, SinkTarget
from lbrx.engine.program import BLOCK_REDUCTIONS, FLAT, ROWS
from lbrx.memory import budget
from lbrx.settings import settings
from lbrx.tensors.dtype import DTYPES

CHUNK_BYTES = 128 << 20  # of buffers that a dispatch writes, or into which its inputs are copied
_LARGEST_CHUNK = 1 << 30  # elements: indices in a chunk are 32-bit numbers
_LARGE_SPACE = 1 << 32  # elements that 32-bit numbers cannot count
_WRITE_ELEMENTS = 8 * REDUCTION_BLOCK


def run_pass_on_metal(context: MetalContext, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
    """Run the pass; for each sink, the partial results of its blocks if it is a reduction, else None."""
    return _PassInDispatches(context, bound, targets).run()


class _PassInDispatches:
    """A pass whose chunks are dispatched one after the other, some of them at a time."""

    def __init__(self, context: MetalContext, bound: BoundPass, targets: list[SinkTarget]) -> None:
        self.context = context
        self.bound = bound
        self.targets = targets
        self.kernel = pass_kernel(bound.program)
        self.leaves = LeafBindings(context, bound, self.kernel.signature)
        self.sinks = list(enumerate(bound.program.sinks))
        self.block_sinks = [target if isinstance(target, BlockSink) else None for target in targets]
        self.encodes_only = self.block_sinks[0] is not None and needs_no_pass(bound.program)
        self.has_reductions = any(sink.op in BLOCK_REDUCTIONS for _, sink in self.sinks)
        self.block_rows = max(1, REDUCTION_BLOCK // max(bound.columns, 1)) if self.has_reductions else 1
        self.block = self.block_rows * bound.columns if bound.program.mode == ROWS else REDUCTION_BLOCK
        self.partials = [self._partials(number) for number, _ in self.sinks]

    @cached_property
    def pipeline(self) -> Pipeline:
        """The kernel of the pass, compiled if a chunk needs it."""
        index = "uint" if self.bound.elements < _LARGE_SPACE else "ulong"
        options = CompileOptions(defines=(("INDEX", index),))
        return self.context.pipeline(self.kernel.source, self.kernel.name, options=options)

    def _partials(self, number: int) -> tuple[Any, Any] | None:
        sink = self.bound.program.sinks[number]
        if sink.op not in BLOCK_REDUCTIONS:
            return None
        is_float = DTYPES[self.bound.program.value_types()[sink.args[0]]].is_float
        blocks = -(-self.bound.elements // self.block)
        indices = np.zeros(blocks, np.int64) if sink.op == "argmax" else None
        return np.zeros(blocks, np.float64 if is_float else np.int64), indices

    # -- chunks -------------------------------------------------------------------------------------------------------

    def _chunk_elements(self) -> int:
        written = sum(self._element_bytes(number) for number, _ in self.sinks)
        limit = min(CHUNK_BYTES, budget().limit_bytes // (2 * IN_FLIGHT))
        wanted = limit // max(written + self.leaves.copied_element_bytes(), 1)
        widest = max((leaf.dtype.itemsize for leaf in self.bound.leaves), default=1)
        wanted = min(wanted, self.context.info.max_buffer_bytes // (2 * widest), _LARGEST_CHUNK)
        return max(wanted // self._unit, 1) * self._unit

    @property
    def _unit(self) -> int:
        return self.block * 4  # four elements of two bits share a byte

    def _element_bytes(self, number: int) -> int:
        """Bytes of a chunk's buffers for each of its elements."""
        target, coded = self.targets[number], self.block_sinks[number]
        if coded is not None:
            return coded.element_bytes
        if isinstance(target, CollectState):
            return COLLECTED_BYTES
        if target is None or isinstance(target, (HistogramState, MetalDestination)):
            return 0
        return target.dtype.itemsize

    def run(self) -> list[Any]:
        chunks = ChunksInFlight(self.context, self._begin, self._finish, self._unit)
        chunks.run(self.bound.elements, self._chunk_elements())
        return self.partials

    def _begin(self, chunk: Chunk) -> None:
        signature = self.kernel.signature
        lo, hi, inputs, outputs = chunk.lo, chunk.hi, chunk.inputs, chunk.outputs
        self.leaves.bind(lo, hi, inputs)
        if self.encodes_only and self._encode_stored(chunk):
            return
        numbers = {**inputs.numbers, **self._scalars(), "first_element": lo, "count": hi - lo}
        if self.bound.program.mode != FLAT:
            numbers |= {"columns": self.bound.columns, "outer_axes": len(self.bound.outer_shape)}
            numbers["block_rows"] = self.block_rows
        arguments = dict(inputs.arguments)
        written = 0
        for number, _ in self.sinks:
            for name, binding in self._sink_bindings(number, lo, hi, outputs, numbers).items():
                arguments[signature.buffers[name][0]] = binding
                if not isinstance(self.targets[number], CollectState):  # what it finds is counted when it is known
                    written += binding.buffer.nbytes if binding.nbytes is None else binding.nbytes
        arguments[signature.arguments_index] = signature.pack(numbers)
        threads, groups = self._grid(hi - lo)
        if isinstance(self.context, ProfiledContext):
            operations = len(self.bound.program.body) * (hi - lo)
            self.context.announce(Work(inputs.read_bytes + written, operations, str(self.bound.space)))
        if outputs:
            self.context.commit()  # the chunk has a batch of its own, which can be repeated
        self.context.dispatch(self.pipeline, arguments, (groups,), (threads,))
        transfers(self.context).add(dispatches=1, read_bytes=inputs.read_bytes, written_bytes=written)
        for number, coded in enumerate(self.block_sinks):
            if coded is not None:
                chunk.coded[number] = coded.values(outputs[f"sink{number}"])
                outputs[f"sink{number}_blocks"] = coded.encode_values(self.context, chunk.coded[number])
        if outputs:
            self.context.commit()  # somebody waits for these; what stays on the device may wait for company

    def _encode_stored(self, chunk: Chunk) -> bool:
        """Make blocks of stored values as they are; False if they lie where they cannot be bound."""
        (coded,), (leaf,) = self.block_sinks, self.bound.program.leaves
        values = stored_values(chunk.inputs.arguments[self.kernel.signature.buffers["leaf0"][0]], leaf.dtype)
        if coded is None or values is None:
            return False
        self.context.commit()
        chunk.coded[0] = values
        chunk.outputs["sink0_blocks"] = coded.encode_values(self.context, values)
        self.context.commit()
        return True

    def _grid(self, count: int) -> tuple[int, int]:
        """Threads of a threadgroup, and threadgroups."""
        if self.kernel.by_blocks:
            threads = min(TILE_THREADS, self.pipeline.max_threads) // 32 * 32
            return threads, -(-count // self.block)
        threads = min(ELEMENTWISE_THREADS, self.pipeline.max_threads)
        return threads, -(-count // (threads * ELEMENTS_PER_THREAD))

    def _scalars(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {}
        for number, (value, dtype) in enumerate(zip(self.bound.scalars, self.bound.program.scalars, strict=True)):
            if dtype == "f32":
                with np.errstate(all="ignore"):
                    numbers[f"scalar{number}"] = np.float32(value)
            else:
                whole = np.array(int(value), np.int64)
                numbers[f"scalar{number}"] = int(whole.astype(DTYPES[dtype].numpy))
        return numbers

    # -- sinks --------------------------------------------------------------------------------------------------------

    def _rows_of(self, number: int, lo: int, hi: int) -> tuple[int, int]:
        """The elements of a stored result that elements of the space make."""
        if self.bound.program.sinks[number].op != "row_store":
            return lo, hi
        return lo // self.bound.columns, hi // self.bound.columns

    def _sink_bindings(
        self, number: int, lo: int, hi: int, outputs: dict[str, Buffer], numbers: dict[str, Any]
    ) -> dict[str, BufferBinding]:
        target, op = self.targets[number], self.bound.program.sinks[number].op
        name = f"sink{number}"

        def new(part: str, nbytes: int, *, cleared: bool = False) -> BufferBinding:
            buffer = outputs[part] = self.context.get_buffer(nbytes, host_access=cleared)
            if cleared:
                buffer.view()[:] = 0
            return BufferBinding(buffer)

        if op in BLOCK_REDUCTIONS:
            parts = ("partials", "indices") if op == "argmax" else ("partials",)
            return {f"{name}_{part}": new(f"{name}_{part}", 8 * -(-(hi - lo) // self.block)) for part in parts}
        if isinstance(target, HistogramState):
            numbers |= {f"{name}_shift": target.shift, f"{name}_first": target.first}
            return {f"{name}_counts": new(f"{name}_counts", HISTOGRAM_BYTES, cleared=True)}
        if isinstance(target, CollectState):
            capacity = collect_capacity(target, hi - lo)
            numbers |= {f"{name}_low": target.low, f"{name}_high": target.high, f"{name}_capacity": capacity}
            return {
                f"{name}_keys": new(f"{name}_keys", 8 * capacity),
                f"{name}_indices": new(f"{name}_indices", 8 * capacity),
                f"{name}_counts": new(f"{name}_counts", COLLECT_COUNT_BYTES, cleared=True),
            }
        assert target is not None
        lo, hi = self._rows_of(number, lo, hi)
        if isinstance(target, MetalDestination) and not target.dtype.is_packed:
            item = target.dtype.itemsize
            return {name: target.storage.binding(lo * item, hi * item)}
        return {name: new(name, (hi - lo) * target.dtype.itemsize)}

    def _finish(self, chunk: Chunk) -> None:
        """Wait for a chunk and take its results out; what stays on the device is not waited for."""
        if not chunk.outputs:
            return
        try:
            chunk.wait(self.context)
        except KernelFault as fault:
            where = f"in a pass over {self.bound.space}, elements {chunk.lo} to {chunk.hi}"
            raise type(fault)(f"{fault}\n{where}") from fault
        for number, _ in self.sinks:
            self._take_out(number, chunk)
        chunk.inputs.done()

    def _take_out(self, number: int, chunk: Chunk) -> None:
        name, target, partials = f"sink{number}", self.targets[number], self.partials[number]
        views = {part: buffer.view() for part, buffer in chunk.outputs.items() if part.split("_")[0] == name}
        counts, coded = transfers(self.context), self.block_sinks[number]
        if coded is not None:
            counts.add(returned_bytes=views[f"{name}_blocks"].size)
            coded.take(self._rows_of(number, chunk.lo, chunk.hi)[0], chunk.coded[number], views[f"{name}_blocks"])
            return
        if not isinstance(target, CollectState):
            counts.add(returned_bytes=sum(view.size for view in views.values()))
        if partials is not None:
            values, indices = partials
            first = chunk.lo // self.block
            block_values = views[f"{name}_partials"].view(values.dtype)
            values[first : first + block_values.size] = block_values
            if indices is not None:
                indices[first : first + block_values.size] = views[f"{name}_indices"].view(np.int64)
        elif isinstance(target, HistogramState):
            add_counts(target, views[f"{name}_counts"])
        elif isinstance(target, CollectState):
            collected_bytes = COLLECTED_BYTES * add_collected(
                target, *(views[f"{name}_{part}"] for part in ("counts", "keys", "indices"))
            )
            counts.add(written_bytes=collected_bytes, returned_bytes=collected_bytes)
        elif target is not None and name in views:
            self._write(target, self._rows_of(number, chunk.lo, chunk.hi)[0], views[name])

    def _write(self, target: Destination, lo: int, data: Any) -> None:
        bits, item = target.dtype.bits, target.dtype.itemsize
        whole = target.whole
        if whole is not None and bits >= 8:
            whole[lo * item : lo * item + data.size] = data
            return
        piece = _WRITE_ELEMENTS * item

        def worker() -> Callable[[int], None]:
            def step(number: int) -> None:
                part = data[number * piece : (number + 1) * piece]
                target.write(lo + number * _WRITE_ELEMENTS, packed(part, bits) if bits < 8 else part)

            return step

        run_chunks(-(-data.size // piece), settings.threads, worker)
