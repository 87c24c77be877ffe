"""The inputs of a pass on the CPU: addresses of what lies in memory, windows of what has to be read.

For every chunk a mapped file is checked for truncation and its pages are counted into the resident window; a
storage without an address is read into scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.system import seems_cached
from lbrx.devices.cpu.build.kernel_cache import CompiledProgram
from lbrx.devices.cpu.codecs.decode import read_elements
from lbrx.engine.bind import BoundLeaf, BoundPass
from lbrx.memory.prefetch import ReadAhead, Span
from lbrx.memory.resident import resident_window
from lbrx.tensors.storage import Bytes, MmapStorage

READ_AHEAD_BYTES = 64 << 20
Ints = npt.NDArray[np.int64]


class LeafInputs:
    """Fills the argument array of a kernel with where its leaves are."""

    def __init__(self, bound: BoundPass, compiled: CompiledProgram, ints: Ints) -> None:
        self.bound = bound
        self.slots = compiled.slots
        self.copied: list[tuple[int, BoundLeaf]] = []
        self.watched: list[tuple[int, BoundLeaf]] = []
        self.keep: list[Any] = []
        for number, leaf in enumerate(bound.leaves):
            self._set(number, leaf, ints)

    def _set(self, number: int, leaf: BoundLeaf, ints: Ints) -> None:
        slots = self.slots
        spec = self.bound.program.leaves[number]
        if leaf.origin != "source" or leaf.dtype.is_packed:
            ints[slots[f"leaf{number}.offset"]] = leaf.offset
        if leaf.origin in ("uniform", "normal"):
            ints[slots[f"leaf{number}.key0"]], ints[slots[f"leaf{number}.key1"]] = leaf.key
        if spec.step == "any":
            ints[slots[f"leaf{number}.stride"]] = leaf.inner_stride
        outer = len(self.bound.outer_shape)
        for axis, stride in enumerate(leaf.outer_strides):
            ints[slots.variable + outer * (number + 1) + axis] = stride
        if leaf.rows is not None:
            self.keep.append(leaf.rows)
            ints[slots[f"leaf{number}.rows"]] = leaf.rows.ctypes.data
            ints[slots[f"leaf{number}.axis"]] = leaf.rows_axis
        if leaf.storage is None:
            return
        address = None if leaf.codec is not None else leaf.storage.address
        if address is None:
            self.copied.append((number, leaf))
            self.watched.append((number, leaf))
            return
        ints[slots[f"leaf{number}.address"]] = address + self._skipped_bytes(leaf)
        if isinstance(leaf.storage, MmapStorage):
            self.watched.append((number, leaf))

    @staticmethod
    def _skipped_bytes(leaf: BoundLeaf) -> int:
        """Bytes before the first element; packed elements keep their offset as an index instead."""
        return 0 if leaf.dtype.is_packed else leaf.offset * leaf.dtype.itemsize

    def read_ahead(self, chunks: Sequence[tuple[int, int]]) -> ReadAhead | None:
        """What reads files ahead of the chunks; None for a short pass, or for files that the system holds already."""
        mapped = [(number, leaf, leaf.storage) for number, leaf in self.watched if leaf.codec is None]
        files = [(number, leaf, storage) for number, leaf, storage in mapped if isinstance(storage, MmapStorage)]
        if sum(storage.nbytes for _, _, storage in files) < READ_AHEAD_BYTES:
            return None
        open_files = ExitStack()
        opened = {each.file: open_files.enter_context(each.file.opened()) for _, _, each in files}
        known = [(number, leaf, each, fd) for number, leaf, each in files if (fd := opened[each.file]) is not None]
        if all(seems_cached(fd, each.offset, each.nbytes) for _, _, each, fd in known):
            open_files.close()
            return None
        steps = []
        for lo, hi in chunks:
            spans = []
            for number, leaf, storage, fd in known:
                start, stop = self._byte_span(number, leaf, lo, hi)
                spans.append(Span(None, 0, stop - start, fd, storage.offset + start))
            steps.append(spans)
        return ReadAhead(steps, ahead_bytes=READ_AHEAD_BYTES, open_files=open_files)

    def begin(self, lo: int, hi: int, ints: Ints, borrow: Callable[[int], Bytes]) -> None:
        """Before a chunk: check what is mapped, read what is not."""
        checked: set[int] = set()
        for number, leaf in self.watched:
            storage = leaf.storage
            assert storage is not None
            if leaf.codec is None and storage.address is not None:
                if isinstance(storage, MmapStorage) and id(storage.file) not in checked:
                    checked.add(id(storage.file))
                    storage.file.check_unchanged()
                continue
            start, stop = self._byte_span(number, leaf, lo, hi)
            buffer = borrow(max(stop - start, 1))
            read_elements(leaf, start, buffer[: stop - start])
            ints[self.slots[f"leaf{number}.address"]] = buffer.ctypes.data - start + self._skipped_bytes(leaf)

    def done(self, lo: int, hi: int) -> None:
        """After a chunk: its mapped pages may be dropped."""
        for number, leaf in self.watched:
            storage = leaf.storage
            if leaf.codec is None and isinstance(storage, MmapStorage) and storage.file.pinned is not None:
                start, stop = self._byte_span(number, leaf, lo, hi)
                resident_window.touched(storage.file.pinned, storage.offset + start, stop - start)

    def _byte_span(self, number: int, leaf: BoundLeaf, lo: int, hi: int) -> tuple[int, int]:
        first, last = self._element_span(number, leaf, lo, hi)
        bits = leaf.dtype.bits
        return first * bits // 8, -(-last * bits // 8)

    def _element_span(self, number: int, leaf: BoundLeaf, lo: int, hi: int) -> tuple[int, int]:
        """The first and one past the last element of the storage that a chunk can touch."""
        outer = self.bound.outer_shape
        columns = self.bound.columns
        if not outer:
            stride = leaf.inner_stride if self.bound.program.leaves[number].step != "zero" else 0
            ends = (leaf.offset + lo * stride, leaf.offset + (hi - 1) * stride)
            return min(ends), max(ends) + 1
        inner = columns
        for size in outer[1:]:
            inner *= size
        axes = [(lo // inner, (hi - 1) // inner), *((0, size - 1) for size in outer[1:]), (0, columns - 1)]
        strides = (*leaf.outer_strides, leaf.inner_stride)
        low = high = leaf.offset
        for axis, ((first, last), stride) in enumerate(zip(axes, strides, strict=True)):
            if leaf.rows is not None and axis == leaf.rows_axis:
                picked = leaf.rows[first : last + 1]
                first, last = int(picked.min()), int(picked.max())
            ends = (first * stride, last * stride)
            low, high = low + min(ends), high + max(ends)
        return low, high + 1
