"""Checksums of tensors, taken while they are written, in pieces that come in any order from many threads.

The checksum of a tensor is the XXH3-64 of the XXH3-64 digests (8 bytes each, little-endian, in order) of its blocks of
256 KiB; the last block may be shorter. It depends on the bytes alone, not on how they were cut up.
"""

from __future__ import annotations

import threading

import numpy as np
import xxhash

from lbrx.tensors.storage import Bytes

BLOCK_BYTES = 256 << 10
ALGORITHM = f"xxh3_64 of the xxh3_64 digests of blocks of {BLOCK_BYTES} bytes"


class Checksum:
    """The checksum of so many bytes, which may be added in any order, each once.

    >>> data = np.arange(3 << 20, dtype=np.uint8)
    >>> whole, parts = Checksum(data.size), Checksum(data.size)
    >>> whole.add(0, data)
    >>> parts.add(5000, data[5000:])
    >>> parts.add(0, data[:5000])
    >>> whole.hexdigest() == parts.hexdigest()
    True
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._digests = np.zeros(-(-nbytes // BLOCK_BYTES), "<u8")
        self._fragments: dict[int, _Fragment] = {}  # of blocks that are not complete yet
        self._lock = threading.Lock()

    def add(self, offset: int, data: Bytes) -> None:
        """Take the bytes from ``offset`` on. Safe from many threads."""
        position, end = offset, offset + data.size
        while position < end:
            block = position // BLOCK_BYTES
            first, last = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self._nbytes)
            stop = min(last, end)
            piece = data[position - offset : stop - offset]
            if position == first and stop == last:
                self._digests[block] = xxhash.xxh3_64_intdigest(piece.data)
            else:
                self._add_fragment(block, last - first, position - first, piece)
            position = stop

    def _add_fragment(self, block: int, block_bytes: int, start: int, piece: Bytes) -> None:
        with self._lock:
            fragment = self._fragments.setdefault(block, _Fragment(block_bytes))
            fragment.data[start : start + piece.size] = piece
            fragment.filled_bytes += piece.size
            if fragment.filled_bytes == block_bytes:
                self._digests[block] = xxhash.xxh3_64_intdigest(self._fragments.pop(block).data.data)

    def hexdigest(self) -> str:
        """The checksum of all bytes as 16 hexadecimal digits."""
        return xxhash.xxh3_64_hexdigest(self._digests.data)


def checksum_of(data: Bytes) -> str:
    """The checksum of bytes that are all there.

    >>> data, parts = np.arange(3 << 20, dtype=np.uint8), Checksum(3 << 20)
    >>> parts.add(0, data)
    >>> checksum_of(data) == parts.hexdigest()
    True
    """
    blocks = (data[start : start + BLOCK_BYTES] for start in range(0, data.size, BLOCK_BYTES))
    return xxhash.xxh3_64_hexdigest(b"".join(_little_endian(xxhash.xxh3_64_intdigest(block.data)) for block in blocks))


def _little_endian(digest: int) -> bytes:
    return digest.to_bytes(8, "little")


class _Fragment:
    """A block of which some bytes are missing."""

    __slots__ = ("data", "filled_bytes")

    def __init__(self, block_bytes: int) -> None:
        self.data: Bytes = np.empty(block_bytes, np.uint8)
        self.filled_bytes = 0
