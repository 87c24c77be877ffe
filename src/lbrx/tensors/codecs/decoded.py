"""Coded values seen as f32, decoded piece by piece as they are read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.memory.resident import resident_window
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.storage import Bytes, MmapStorage, ReadStorage, Storage

VALUE_BYTES = 4
Decoder = Callable[[int, int, Bytes], None]
"""Decodes blocks, given the number of the first and how many, into the bytes of their f32 values."""


@dataclass(frozen=True, slots=True)
class DecodedStorage(ReadStorage):
    """The f32 values of blocks. It has no address: every read decodes the blocks that cover the window.

    >>> from lbrx.tensors.codecs.codec import codec
    >>> from lbrx.tensors.storage import CpuStorage
    >>> blocks = np.zeros(34, np.uint8)
    >>> blocks[1], blocks[2:5] = 0x3C, (1, 2, 255)  # a scale of 1.0 in f16, then signed bytes
    >>> decoded_blocks(CpuStorage(blocks), codec("q8_0")).read_at(0, 16).view(np.float32)
    array([ 1.,  2., -1.,  0.], dtype=float32)
    """

    blocks: int
    block_elements: int
    decode: Decoder

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_elements * VALUE_BYTES

    def read_into(self, offset: int, buffer: Bytes) -> None:
        """Decode a window; its ends may lie within a block."""
        whole = self.block_elements * VALUE_BYTES
        done = 0
        while done < buffer.size:
            block, skipped = divmod(offset + done, whole)
            left = buffer.size - done
            if skipped == 0 and left >= whole:
                blocks = left // whole
                self.decode(block, blocks, buffer[done : done + blocks * whole])
                done += blocks * whole
                continue
            piece = np.empty(whole, np.uint8)
            self.decode(block, 1, piece)
            taken = min(whole - skipped, left)
            buffer[done : done + taken] = piece[skipped : skipped + taken]
            done += taken


def decoded_blocks(storage: Storage, codec: Codec) -> DecodedStorage:
    """The values of blocks of a type."""

    def decode(first: int, blocks: int, values: Bytes) -> None:
        start, length = first * codec.block_bytes, blocks * codec.block_bytes
        window = storage.read_at(start, length)
        codec.decode(window.ctypes.data, values.ctypes.data, blocks)
        drop_behind(storage, start, length)

    return DecodedStorage(storage.nbytes // codec.block_bytes, codec.block_elements, decode)


def drop_behind(storage: Storage, start: int, length: int) -> None:
    """A window of a storage has been used: if it is mapped, its pages may be dropped."""
    if isinstance(storage, MmapStorage) and storage.file.pinned is not None:
        resident_window.touched(storage.file.pinned, storage.offset + start, length)
