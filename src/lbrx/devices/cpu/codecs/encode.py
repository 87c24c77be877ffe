"""Values that become blocks: as a pass computes them, tile by tile in the processor's cache, or as they arrive."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.build.kernel_cache import RESULT_ADDRESS
from lbrx.devices.cpu.build.native import codec_kernel, codec_kernel_address, kernel
from lbrx.engine.bind import BoundLeaf
from lbrx.engine.destination import Destination, EncodeTarget, TakesAtOnce
from lbrx.errors import KernelError
from lbrx.memory.scratch import scratch_arena
from lbrx.settings import settings
from lbrx.tensors.codecs.codec import Part
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.storage import Bytes, drop_behind

F32 = DTYPES["f32"]
TILE_ELEMENTS = 32 << 10  # f32 values that stay in a processor's own cache between two kernels
_STORED_ELEMENTS = 512 << 10  # that are encoded at a time from where they are stored


class PassValues(NamedTuple):
    """A compiled pass that stores f32 values: addresses of the kernel and of its arguments, and the number of the
    argument that says where the values go."""

    kernel: int
    ints: int
    floats: int
    slot: int

    def encode(self, lo: int, hi: int, encoder: int, block_elements: int, block_bytes: int, target: int) -> bool:
        """Compute elements ``lo`` to ``hi`` and encode them tile by tile; whether all of them are finite.

        ``encoder`` is the address of a function over f32 values, target and number of blocks. The address of the
        target moves on by ``block_bytes`` for every block.
        """
        report = np.zeros(2, np.int32)
        with scratch_arena().borrow(4 * TILE_ELEMENTS) as tile:
            kernel("codecs.tile_loop", "encode_tiles", 14)(
                *(self.kernel, self.ints, self.floats, self.slot, lo, hi, tile.ctypes.data, TILE_ELEMENTS),
                *(encoder, block_elements, block_bytes, target, RESULT_ADDRESS, report.ctypes.data),
            )
        if report[1]:
            raise KernelError(f"a kernel stopped with status {report[1]} while values were encoded")
        return not report[0]


class BlockDestination(TakesAtOnce):
    """Takes f32 values in any order and from many threads, and passes on their blocks as bytes.

    Every piece begins and ends with a block, because pieces are runs of rows or of a power of two of elements.
    """

    __slots__ = (
        "_codec",
        "_columns",
        "_encoder_table",
        "_parts",
        "_pending",
        "_rows_per_weights",
        "_start",
        "_weights",
    )
    dtype = F32
    whole: Bytes | None = None

    def __init__(self, target: EncodeTarget) -> None:
        encoding = target.encoding
        codec, shape = encoding.codec, encoding.values.shape
        known = codec.parts or (Part(codec.name, codec.block_bytes, codec.encoder),)
        self._parts = list(zip(known, target.parts, strict=True))
        self._start = target.start
        self._codec = codec
        self._columns = shape[-1]
        self._weights = encoding.importance
        rows = math.prod(shape[:-1])
        self._rows_per_weights = rows if self._weights is None else max(rows // self._weights.shape[0], 1)
        self._pending = PendingRows(self._columns)
        self._encoder_table = None if codec.encoder_table is None else codec.encoder_table()

    @property
    def _tables(self) -> tuple[int, ...]:
        """The address of the encoder's table, if it has one."""
        return () if self._encoder_table is None else (self._encoder_table.ctypes.data,)

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        for _, target in self._parts:
            if target is not None:
                target.check_finite(values, dtype)

    def note_nonfinite(self) -> None:
        for _, target in self._parts:
            if target is not None:
                target.note_nonfinite()

    def write(self, lo: int, data: Bytes) -> None:
        self.check_finite(data, F32)
        first = self._start + lo
        if self._weights is None:
            self._encode(first, data)
        elif self._codec.weighs_whole_rows:
            for start, piece in self._pending.whole_rows(first, data):
                self._encode_weighted(start, piece)
        else:
            self._encode_weighted(first, data)

    @property
    def _one_encoder(self) -> Part | None:
        """The part that is made, if its encoder is all there is to run and has no parameters."""
        wanted = [part for part, target in self._parts if target is not None]
        has_extras = self._codec.parameters or self._codec.encoder_table
        return wanted[0] if len(wanted) == 1 and wanted[0].encoder and not has_extras else None

    @property
    def can_encode_tiles(self) -> bool:
        """Whether `encode_tiles` can be used: one function encodes, and a block depends on its values alone."""
        return self._weights is None and (self._one_encoder is not None or not self._parts[0][0].encoder)

    def encode_tiles(self, values: PassValues, lo: int, hi: int) -> None:
        """Compute the elements ``lo`` to ``hi`` and encode them while the cache holds them."""
        codec, part = self._codec, self._one_encoder
        with ExitStack() as stack:
            buffers = self._buffers(stack, self._start + lo, (hi - lo) // codec.block_elements)
            table = self._table(buffers)
            encoder = codec.encoder if part is None else part.encoder
            block_bytes = 0 if part is None else part.block_bytes
            target = table.ctypes.data if part is None else next(int(address) for address in table if address)
            address = codec_kernel_address(codec.kernels, encoder, 3)
            is_finite = values.encode(lo, hi, address, codec.block_elements, block_bytes, target)
        if not is_finite:
            self.note_nonfinite()

    def _encode(self, lo: int, values: Bytes) -> None:
        codec, count = self._codec, values.size // (4 * self._codec.block_elements)
        with ExitStack() as stack:
            buffers = self._buffers(stack, lo, count)
            if not self._parts[0][0].encoder:
                table = self._table(buffers)
                codec_kernel(codec.kernels, codec.encoder, 3)(values.ctypes.data, table.ctypes.data, count)
                return
            for (part, _), buffer in zip(self._parts, buffers, strict=True):
                if buffer is not None:
                    arguments = values.ctypes.data, buffer.ctypes.data, count, *codec.parameters, *self._tables
                    codec_kernel(codec.kernels, part.encoder, len(arguments))(*arguments)

    def _encode_weighted(self, lo: int, values: Bytes) -> None:
        assert self._weights is not None
        codec = self._codec
        encode = codec_kernel(codec.kernels, "encode_weighted", 5 + len(self._tables))
        for start, stop in self._runs(lo, lo + values.size // 4):
            row, column = divmod(start, self._columns)
            rows = max((stop - start) // self._columns, 1)
            count = (stop - start) // codec.block_elements
            weights = self._weights[row // self._rows_per_weights, column:]
            piece = values[4 * (start - lo) : 4 * (stop - lo)]
            with ExitStack() as stack:
                (buffer,) = self._buffers(stack, start, count)
                assert buffer is not None
                encode(piece.ctypes.data, buffer.ctypes.data, rows, count // rows, weights.ctypes.data, *self._tables)

    def _runs(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """A span cut into parts of a row and runs of whole rows that share their weights."""
        columns, shared = self._columns, self._columns * self._rows_per_weights
        while lo < hi:
            whole_rows_end = min(hi - hi % columns, lo - lo % shared + shared)
            stop = min(hi, lo - lo % columns + columns) if lo % columns or whole_rows_end <= lo else whole_rows_end
            yield lo, stop
            lo = stop

    def _buffers(self, stack: ExitStack, lo: int, count: int) -> list[Bytes | None]:
        """Memory for so many blocks in every part that is wanted."""
        first = lo // self._codec.block_elements
        return [
            None
            if target is None
            else stack.enter_context(BlockBuffer(target, first * part.block_bytes, count * part.block_bytes))
            for part, target in self._parts
        ]

    def _table(self, buffers: list[Bytes | None]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """What an encoder of all parts is given."""
        addresses = (0 if buffer is None else buffer.ctypes.data for buffer in buffers)
        return np.array([*addresses, *self._codec.parameters], np.int64)


class BlockBuffer:
    """Memory for encoded bytes: the target's own, or a scratch buffer that is handed over at the end."""

    __slots__ = ("_element", "_first", "_nbytes", "_scratch", "_target")

    def __init__(self, target: Destination, first: int, nbytes: int) -> None:
        self._target, self._first, self._nbytes = target, first, nbytes
        self._element = 8 * first // target.dtype.bits  # elements may share bytes
        self._scratch: Bytes | None = None

    def __enter__(self) -> Bytes:
        whole = self._target.whole
        if whole is not None:
            return whole[self._first : self._first + self._nbytes]
        self._scratch = self._target.borrow_buffer(self._element, self._nbytes)
        return self._scratch

    def __exit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        if self._scratch is not None and error_class is None:
            self._target.submit(self._element, self._scratch)


def encode_stored(leaf: BoundLeaf, elements: int, target: BlockDestination) -> None:
    """Encode f32 values from where they are stored."""
    storage = leaf.storage
    assert storage is not None

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            lo, hi = number * _STORED_ELEMENTS, min(elements, (number + 1) * _STORED_ELEMENTS)
            start, length = 4 * (leaf.offset + lo), 4 * (hi - lo)
            target.write(lo, storage.read_at(start, length))
            drop_behind(storage, start, length)

        return step

    run_chunks(-(-elements // _STORED_ELEMENTS), settings.threads, worker)


class PendingRows:
    """Rows of f32 values that arrive in pieces, kept until they are whole.

    >>> pending = PendingRows(columns=4)
    >>> values = np.arange(8, dtype=np.float32).view(np.uint8)
    >>> list(pending.whole_rows(0, values[:8]))
    []
    >>> [(start, row.view(np.float32).tolist()) for start, row in pending.whole_rows(2, values[8:])]
    [(0, [0.0, 1.0, 2.0, 3.0]), (4, [4.0, 5.0, 6.0, 7.0])]
    """

    __slots__ = ("_columns", "_lock", "_parts")

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._parts: dict[int, tuple[Bytes | None, int]] = {}  # row number -> values, elements still missing
        self._lock = threading.Lock()

    def whole_rows(self, lo: int, data: Bytes) -> Iterator[tuple[int, Bytes]]:
        """The runs of rows that are complete now, with their first element."""
        columns, hi = self._columns, lo + data.size // 4
        head = min(hi, -(-lo // columns) * columns)
        tail = max(head, hi - hi % columns)
        for start, stop in ((lo, head), (tail, hi)):
            if start < stop:
                row = self._completed(start, data[4 * (start - lo) : 4 * (stop - lo)])
                if row is not None:
                    yield start - start % columns, row
        if head < tail:
            yield head, data[4 * (head - lo) : 4 * (tail - lo)]

    def _completed(self, start: int, piece: Bytes) -> Bytes | None:
        number, column = divmod(start, self._columns)
        with self._lock:
            row, missing = self._parts.pop(number, (None, self._columns))
            row = np.empty(4 * self._columns, np.uint8) if row is None else row
            row[4 * column : 4 * column + piece.size] = piece
            missing -= piece.size // 4
            if missing:
                self._parts[number] = (row, missing)
                return None
            return row
