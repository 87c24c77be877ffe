"""The elements of a leaf: bytes as they are stored, or values of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import codec_kernel
from lbrx.engine.bind import BoundLeaf
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.storage import Bytes, Storage, drop_behind

VALUE_BYTES = 4


def read_elements(leaf: BoundLeaf, start: int, out: Bytes) -> None:
    """The elements of a leaf from a byte on, decoded if they are stored as blocks."""
    assert leaf.storage is not None
    if leaf.codec is None:
        leaf.storage.read_into(start, out)
    else:
        decode(leaf.codec, leaf.storage, leaf.numbers, start, out)


def decode(codec: Codec, blocks: Storage, numbers: Sequence[Storage | None], start: int, out: Bytes) -> None:
    """The f32 values of blocks from a byte on; both ends may be within a block.

    >>> from lbrx.tensors.codecs.codec import codec
    >>> from lbrx.tensors.storage import CpuStorage
    >>> block, values = np.zeros(34, np.uint8), np.empty(16, np.uint8)
    >>> block[1], block[2:5] = 0x3C, (1, 2, 255)  # a scale of 1.0 in f16, then signed bytes
    >>> decode(codec("q8_0"), CpuStorage(block), (), 0, values)
    >>> values.view(np.float32)
    array([ 1.,  2., -1.,  0.], dtype=float32)
    """
    whole = codec.block_elements * VALUE_BYTES
    done = 0
    while done < out.size:
        block, skipped = divmod(start + done, whole)
        left = out.size - done
        if skipped == 0 and left >= whole:
            count = left // whole
            decode_blocks(codec, blocks, numbers, block, out[done : done + count * whole])
            done += count * whole
            continue
        piece = np.empty(whole, np.uint8)
        decode_blocks(codec, blocks, numbers, block, piece)
        taken = min(whole - skipped, left)
        out[done : done + taken] = piece[skipped : skipped + taken]
        done += taken


def decode_blocks(codec: Codec, blocks: Storage, numbers: Sequence[Storage | None], first: int, out: Bytes) -> None:
    """Decode whole blocks."""
    count = out.size // (codec.block_elements * VALUE_BYTES)
    if codec.windows:
        _decode_rows(codec, (blocks, *numbers), first, count, out)
        return
    start, length = first * codec.block_bytes, count * codec.block_bytes
    window = blocks.read_at(start, length)
    tables = [_numbers(*each, first, count) for each in zip(numbers, codec.numbers, strict=True)]
    codebook = [] if codec.codebook is None else [codec.codebook()]  # kept until the kernel is done with it
    parameters = *codec.decoder_parameters, *(table.ctypes.data for table in codebook)
    arguments = window.ctypes.data, out.ctypes.data, count, *(table.ctypes.data for table in tables), *parameters
    codec_kernel(codec.kernels, codec.decoder, len(arguments))(*arguments)
    drop_behind(blocks, start, length)


def _decode_rows(codec: Codec, parts: Sequence[Storage | None], first: int, count: int, out: Bytes) -> None:
    """Decode rows of a matrix from windows of its parts."""
    codebook = [] if codec.codebook is None else [codec.codebook()]
    windows: list[tuple[Storage, int, Bytes]] = []
    for part, window in zip(parts, codec.windows, strict=True):
        assert part is not None
        start, stop = window.span(first, first + count)
        stop = min(stop, part.nbytes)
        windows.append((part, start, part.read_at(start, stop - start)))
    addresses = [read.ctypes.data - start for _, start, read in windows]
    tables = [table.ctypes.data for table in codebook]
    arguments = out.ctypes.data, first, count, *addresses, *codec.decoder_parameters, *tables
    codec_kernel(codec.kernels, codec.decoder, len(arguments))(*arguments)
    for part, start, read in windows:
        drop_behind(part, start, read.size)


def _numbers(storage: Storage | None, number_type: npt.DTypeLike, first: int, count: int) -> npt.NDArray[np.float32]:
    """A run of numbers of any type that NumPy can turn into f32."""
    if storage is None:
        return np.zeros(count, np.float32)
    item = np.dtype(number_type)
    window = storage.read_at(first * item.itemsize, count * item.itemsize)
    return np.frombuffer(window.tobytes(), item).astype(np.float32)
