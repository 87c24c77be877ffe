"""The inputs of a pass as arguments of a kernel: pages of mapped files as they are, anything else copied.

A chunk of a pass binds for every leaf the run of elements that the chunk can touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import read_ahead
from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.codecs.decode import read_elements
from lbrx.devices.metal.codegen.signature import Signature
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.storage import MetalStorage, wrapped_windows
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.driver import Argument, Buffer, BufferBinding
from lbrx.devices.metal.driver.commands import LARGEST_BYTES_ARGUMENT
from lbrx.engine.bind import BoundLeaf, BoundPass
from lbrx.memory.resident import resident_window
from lbrx.settings import settings
from lbrx.tensors.storage import Bytes, MmapStorage

_READ_BYTES = 4 << 20  # that a thread copies or decodes at a time


@dataclass(slots=True)
class BoundInputs:
    """Arguments and numbers of one dispatch, and what is given back when the device is done with it."""

    arguments: dict[int, Argument] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    lent: list[Buffer] = field(default_factory=list)
    mapped: list[tuple[MmapStorage, int, int]] = field(default_factory=list)
    read_bytes: int = 0

    def give_back(self, context: MetalContext) -> None:
        """Copies go back to the pool, which knows what the device still works on."""
        for buffer in self.lent:
            context.return_buffer(buffer)
        self.lent = []

    def done(self) -> None:
        """The device has read everything: mapped pages may be dropped."""
        for storage, start, stop in self.mapped:
            if storage.file.pinned is not None:
                resident_window.touched(storage.file.pinned, storage.offset + start, stop - start)


class LeafBindings:
    """Binds the leaves of a pass for one chunk after the other."""

    def __init__(self, context: MetalContext, bound: BoundPass, signature: Signature) -> None:
        self.context = context
        self.bound = bound
        self.signature = signature

    def copied_element_bytes(self) -> int:
        """Bytes for each element of the space that have to be copied into buffers."""
        leaves = zip(self.bound.leaves, self.bound.program.leaves, strict=True)
        return sum(
            leaf.dtype.itemsize
            for leaf, spec in leaves
            if leaf.storage is not None and spec.step != "zero" and not self._is_in_place(leaf)
        )

    def _is_in_place(self, leaf: BoundLeaf) -> bool:
        if leaf.codec is not None:
            return False
        storage = leaf.storage
        if isinstance(storage, MmapStorage):
            return storage.address is not None and self.context.windows.takes_pages
        return isinstance(storage, MetalStorage)

    def bind(self, lo: int, hi: int, inputs: BoundInputs) -> None:
        """The arguments of a dispatch over elements ``lo`` to ``hi``."""
        bindings: dict[tuple[int, int, int, int], BufferBinding] = {}
        for number, leaf in enumerate(self.bound.leaves):
            self._set_numbers(inputs.numbers, number, leaf)
            if leaf.rows is not None:
                inputs.arguments[self._index(f"rows{number}")] = self._copied(leaf.rows.view(np.uint8), inputs)
            if leaf.storage is None:
                continue
            first, last = element_span(self.bound, number, lo, hi)
            bits = leaf.dtype.bits
            start, stop = first * bits // 8, -(-last * bits // 8)
            inputs.numbers[f"offset{number}"] = leaf.offset - start * 8 // bits
            key = (id(leaf.storage), id(leaf.codec), start, stop)
            if key not in bindings:
                bindings[key] = self._source(leaf, start, stop, inputs)
                inputs.read_bytes += stop - start
            inputs.arguments[self._index(f"leaf{number}")] = bindings[key]
        if "walk" in self.signature.buffers:
            inputs.arguments[self._index("walk")] = self._walk(inputs)

    def _index(self, name: str) -> int:
        return self.signature.buffers[name][0]

    def _set_numbers(self, numbers: dict[str, Any], number: int, leaf: BoundLeaf) -> None:
        numbers[f"offset{number}"] = leaf.offset
        if self.bound.program.leaves[number].step == "any":
            numbers[f"stride{number}"] = leaf.inner_stride
        if leaf.rows is not None:
            numbers[f"axis{number}"] = leaf.rows_axis
        if leaf.origin in ("uniform", "normal"):
            numbers[f"key0_{number}"], numbers[f"key1_{number}"] = leaf.key

    def _source(self, leaf: BoundLeaf, start: int, stop: int, inputs: BoundInputs) -> BufferBinding:
        storage, item_bytes = leaf.storage, leaf.dtype.itemsize
        assert storage is not None
        if leaf.codec is not None:
            return self._read(leaf, start, stop, inputs)
        if isinstance(storage, MetalStorage) and storage.is_on(self.context):
            binding = storage.binding(start, stop)
            if binding.offset % item_bytes == 0:
                return binding
        elif isinstance(storage, MmapStorage) and storage.address is not None:
            if (storage.address + start) % item_bytes == 0:
                with storage.file.opened() as descriptor:
                    if descriptor is not None:
                        read_ahead(descriptor, storage.offset + start, stop - start)
                windows = wrapped_windows(self.context, storage, start, stop)
                if windows is not None:
                    inputs.mapped.append((storage, start, stop))
                    return BufferBinding(windows[0].buffer, windows[0].offset, stop - start)
            storage.file.check_unchanged()
        return self._read(leaf, start, stop, inputs)

    def _read(self, leaf: BoundLeaf, start: int, stop: int, inputs: BoundInputs) -> BufferBinding:
        buffer = self.context.get_buffer(stop - start)
        inputs.lent.append(buffer)
        _read(leaf, start, buffer.view())
        transfers(self.context).add(copied_bytes=stop - start)
        return BufferBinding(buffer)

    def _copied(self, data: Any, inputs: BoundInputs) -> BufferBinding:
        buffer = self.context.buffer_from(data)
        inputs.lent.append(buffer)
        transfers(self.context).add(copied_bytes=data.nbytes)
        return BufferBinding(buffer)

    def _walk(self, inputs: BoundInputs) -> Argument:
        """Sizes of the outer axes, then the strides of every leaf along them."""
        numbers = [*self.bound.outer_shape, *(n for leaf in self.bound.leaves for n in leaf.outer_strides), 0]
        data = np.array(numbers, np.int64)
        return data.tobytes() if data.nbytes <= LARGEST_BYTES_ARGUMENT else self._copied(data.view(np.uint8), inputs)


def _read(leaf: BoundLeaf, start: int, memory: Bytes) -> None:
    """Copy or decode elements of a leaf on all threads."""

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            low = number * _READ_BYTES
            read_elements(leaf, start + low, memory[low : low + _READ_BYTES])

        return step

    run_chunks(-(-memory.size // _READ_BYTES), settings.threads, worker)


def element_span(bound: BoundPass, number: int, lo: int, hi: int) -> tuple[int, int]:
    """The first and one past the last element of a leaf's storage that elements ``lo`` to ``hi`` of the space touch."""
    leaf, spec = bound.leaves[number], bound.program.leaves[number]
    if not bound.outer_shape:
        stride = leaf.inner_stride if spec.step != "zero" else 0
        axes = [((lo, hi - 1), stride)]
    else:
        inner = bound.columns
        for size in bound.outer_shape[1:]:
            inner *= size
        bounds = [(lo // inner, (hi - 1) // inner), *((0, size - 1) for size in bound.outer_shape[1:])]
        strides = (*leaf.outer_strides, leaf.inner_stride)
        axes = list(zip([*bounds, (0, bound.columns - 1)], strides, strict=True))
    low = high = leaf.offset
    for axis, ((first, last), stride) in enumerate(axes):
        if leaf.rows is not None and axis == leaf.rows_axis:
            picked = leaf.rows[first : last + 1]
            first, last = int(picked.min()), int(picked.max())
        low += min(first * stride, last * stride)
        high += max(first * stride, last * stride)
    return low, high + 1
