"""Quantized blocks seen as the f32 values they stand for, decoded piece by piece as they are read."""

from __future__ import annotations

import numpy as np

from lbrx.memory.resident import resident_window
from lbrx.quants.quant import Quant
from lbrx.storage import Bytes, MmapStorage, Storage

VALUE_BYTES = 4


class DecodedStorage:
    """The f32 values of blocks. It has no address: every read decodes the blocks that cover the window.

    >>> import numpy as np
    >>> from lbrx.quants.quant import quant
    >>> from lbrx.storage import CpuStorage
    >>> blocks = np.zeros(34, np.uint8)
    >>> blocks[1], blocks[2:5] = 0x3C, (1, 2, 255)  # a scale of 1.0 in f16, then signed bytes
    >>> DecodedStorage(CpuStorage(blocks), quant("q8_0")).read_at(0, 16).view(np.float32)
    array([ 1.,  2., -1.,  0.], dtype=float32)
    """

    __slots__ = ("_block_value_bytes", "_blocks", "_quant")
    device = "cpu"
    address = None

    def __init__(self, blocks: Storage, quant: Quant) -> None:
        self._blocks = blocks
        self._quant = quant
        self._block_value_bytes = VALUE_BYTES * quant.block_elements

    @property
    def nbytes(self) -> int:
        return self._blocks.nbytes // self._quant.block_bytes * self._block_value_bytes

    def read_at(self, offset: int, length: int) -> Bytes:
        buffer = np.empty(length, np.uint8)
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Decode a window; its ends may lie within a block."""
        whole = self._block_value_bytes
        done = 0
        while done < buffer.size:
            block, skipped = divmod(offset + done, whole)
            left = buffer.size - done
            if skipped == 0 and left >= whole:
                blocks = left // whole
                self._decode(block, blocks, buffer[done : done + blocks * whole])
                done += blocks * whole
                continue
            piece = np.empty(whole, np.uint8)
            self._decode(block, 1, piece)
            taken = min(whole - skipped, left)
            buffer[done : done + taken] = piece[skipped : skipped + taken]
            done += taken

    def _decode(self, block: int, blocks: int, values: Bytes) -> None:
        start, length = block * self._quant.block_bytes, blocks * self._quant.block_bytes
        window = self._blocks.read_at(start, length)
        self._quant.decode(window.ctypes.data, values.ctypes.data, blocks)
        storage = self._blocks
        if isinstance(storage, MmapStorage) and storage.file.pinned is not None:
            resident_window.touched(storage.file.pinned, storage.offset + start, length)
