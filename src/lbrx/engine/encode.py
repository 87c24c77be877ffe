"""Values that become quantized blocks: while they are written to a file, or in memory when somebody reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from lbrx.engine.destination import ArrayDestination, Destination, TakesAtOnce
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.expr import Expr, Reduce, Stored, cast
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.storage import Bytes, CpuStorage

F32, U8 = DTYPES["f32"], DTYPES["u8"]
Weights = npt.NDArray[np.float32]


EncodeTiles = Callable[[int, int, int, int, int, int], bool]
"""Computes elements ``lo`` to ``hi`` and encodes them tile by tile; whether all of them are finite.

The other arguments: address of an encoder (over f32 values, target and number of blocks); elements, bytes of a block;
address of the target, which moves on by the bytes of every block done.
"""


class EncodedStorage:
    """The blocks of an expression. Nothing is computed until they are written (``encode_into``) or read."""

    __slots__ = ("_codec", "_lock", "_made", "_values", "_weights", "nbytes")
    device = "cpu"

    def __init__(self, values: Expr, codec: Codec, weights: Weights | None = None) -> None:
        self.nbytes = codec.nbytes(values.shape)
        self._values: Expr | None = coded_values(values)
        self._codec = codec
        self._weights = None if weights is None else checked_weights(weights, values.shape, codec)
        self._made: CpuStorage | None = None
        self._lock = threading.Lock()

    @property
    def values(self) -> Expr | None:
        """What the blocks are made of, None once they are made."""
        return self._values

    def encode_into(self, target: Destination) -> None:
        """Stream the blocks into a destination of bytes."""
        from lbrx.engine.schedule import evaluate_stores

        with self._lock:
            values, made = self._values, self._made
        if values is None:
            assert made is not None
            target.write(0, made.read_at(0, self.nbytes))
        elif self.nbytes:
            evaluate_stores([(values, BlockDestination(target, self._codec, values.shape, self._weights))])

    def in_memory(self) -> CpuStorage:
        """The blocks, made once and kept; what they were made of is let go."""
        with self._lock:
            if self._made is not None:
                return self._made
        target = ArrayDestination(U8, self.nbytes)
        self.encode_into(target)
        with self._lock:
            if self._made is None:
                self._made = CpuStorage(target.whole)
                self._values = None
            return self._made

    @property
    def address(self) -> int | None:
        return self.in_memory().address

    def read_at(self, offset: int, length: int) -> Bytes:
        return self.in_memory().read_at(offset, length)

    def read_into(self, offset: int, buffer: Bytes) -> None:
        self.in_memory().read_into(offset, buffer)


def coded_values(values: Expr) -> Expr:
    """Values as f32 in a form that a pass computes in pieces of whole blocks, which a reduction of rows is not."""
    as_f32 = cast(values, F32)
    return Stored(as_f32, Layout.contiguous(as_f32.shape)) if isinstance(as_f32, Reduce) else as_f32


def encoded(values: Expr, codec: Codec, weights: Weights | None = None) -> Blocks:
    """An expression as blocks of a type, not computed yet."""
    return Blocks(EncodedStorage(values, codec, weights), codec.name, values.shape)


def blocks_in_memory(blocks: Blocks) -> Blocks:
    """Blocks that are not made yet, made; others as they are."""
    if not isinstance(blocks.storage, EncodedStorage):
        return blocks
    return Blocks(blocks.storage.in_memory(), blocks.codec, blocks.shape, blocks.coding, blocks.numbers)


def checked_weights(weights: Weights, shape: Shape, codec: Codec) -> Weights:
    """Importances as (matrices, columns): one row for all matrices of the tensor, or one for each."""
    if not codec.takes_imatrix:
        raise UsageError(f"{codec.name} takes no importance matrix")
    columns, matrices = shape[-1], int(np.prod(shape[:-2], dtype=np.int64))
    if weights.size not in (columns, matrices * columns) or (weights.ndim > 1 and weights.shape[-1] != columns):
        raise ShapeError(
            f"an importance matrix of shape {weights.shape} does not fit a tensor of shape {shape}; expected "
            f"({columns},)" + (f" or ({matrices}, {columns})" if matrices > 1 else "")
        )
    array = np.ascontiguousarray(weights, np.float32).reshape(-1, columns)
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise UsageError("an importance matrix has values that are negative or not finite")
    return array


class BlockDestination(TakesAtOnce):
    """Takes f32 values in any order and from many threads, and passes on their blocks as bytes.

    Every piece begins and ends with a block, because pieces are runs of rows or of a power of two of elements.
    """

    __slots__ = ("_codec", "_columns", "_pending", "_rows_per_weights", "_target", "_weights", "dtype", "whole")

    def __init__(self, target: Destination, codec: Codec, shape: Shape, weights: Weights | None) -> None:
        self.dtype = F32
        self.whole: Bytes | None = None
        self._target = target
        self._codec = codec
        self._columns = shape[-1]
        self._weights = weights
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        self._rows_per_weights = rows if weights is None else max(rows // weights.shape[0], 1)
        self._pending = PendingRows(self._columns)

    @property
    def coding(self) -> str:
        """The name of the type of the blocks."""
        return self._codec.name

    @property
    def is_weighted(self) -> bool:
        """Whether an importance matrix takes part."""
        return self._weights is not None

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        self._target.check_finite(values, dtype)

    def note_nonfinite(self) -> None:
        self._target.note_nonfinite()

    @property
    def can_encode_tiles(self) -> bool:
        """Whether `encode_tiles` can be used: the coding of a block depends on its values alone."""
        return self._weights is None and not self._codec.parameters

    def encode_tiles(self, run: EncodeTiles, lo: int, hi: int) -> None:
        """Compute the elements ``lo`` to ``hi`` and encode them while the cache holds them."""
        codec = self._codec
        with self._buffer(lo, (hi - lo) // codec.block_elements) as buffer:
            is_finite = run(
                lo, hi, codec.encoder_address(), codec.block_elements, codec.block_bytes, buffer.ctypes.data
            )
        if not is_finite:
            self.note_nonfinite()

    def write_blocks(self, lo: int, blocks: Bytes) -> None:
        """Take blocks that a device has made of the values from ``lo`` on; ``check_finite`` has seen these."""
        with self._buffer(lo, blocks.size // self._codec.block_bytes) as buffer:
            buffer[:] = blocks

    def write(self, lo: int, data: Bytes) -> None:
        self.check_finite(data, F32)
        if self._weights is None:
            self._encode(lo, data)
        elif self._codec.weighs_whole_rows:
            for start, piece in self._pending.whole_rows(lo, data):
                self._encode_weighted(start, piece)
        else:
            self._encode_weighted(lo, data)

    def _encode(self, lo: int, values: Bytes) -> None:
        count = values.size // (4 * self._codec.block_elements)
        with self._buffer(lo, count) as buffer:
            self._codec.encode(values.ctypes.data, buffer.ctypes.data, count)

    def _encode_weighted(self, lo: int, values: Bytes) -> None:
        assert self._weights is not None
        codec = self._codec
        for start, stop in self._runs(lo, lo + values.size // 4):
            row, column = divmod(start, self._columns)
            rows = max((stop - start) // self._columns, 1)
            count = (stop - start) // codec.block_elements
            weights = self._weights[row // self._rows_per_weights, column:]
            piece = values[4 * (start - lo) : 4 * (stop - lo)]
            with self._buffer(start, count) as buffer:
                codec.encode_weighted(piece.ctypes.data, buffer.ctypes.data, rows, count // rows, weights.ctypes.data)

    def _runs(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """A span cut into parts of a row and runs of whole rows that share their weights."""
        columns, shared = self._columns, self._columns * self._rows_per_weights
        while lo < hi:
            whole_rows_end = min(hi - hi % columns, lo - lo % shared + shared)
            stop = min(hi, lo - lo % columns + columns) if lo % columns or whole_rows_end <= lo else whole_rows_end
            yield lo, stop
            lo = stop

    def _buffer(self, lo: int, count: int) -> BlockBuffer:
        first = lo // self._codec.block_elements * self._codec.block_bytes
        return BlockBuffer(self._target, first, count * self._codec.block_bytes)


class BlockBuffer:
    """Memory for encoded bytes: the target's own, or a scratch buffer that is handed over at the end."""

    __slots__ = ("_first", "_nbytes", "_scratch", "_target")

    def __init__(self, target: Destination, first: int, nbytes: int) -> None:
        self._target, self._first, self._nbytes = target, first, nbytes
        self._scratch: Bytes | None = None

    def __enter__(self) -> Bytes:
        whole = self._target.whole
        if whole is not None:
            return whole[self._first : self._first + self._nbytes]
        self._scratch = self._target.borrow_buffer(self._first // self._target.dtype.itemsize, self._nbytes)
        return self._scratch

    def __exit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        if self._scratch is not None and error_class is None:
            self._target.submit(self._first // self._target.dtype.itemsize, self._scratch)


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
