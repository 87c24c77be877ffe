"""Computing values and coding them, a tile that fits into the processor's cache at a time."""

from __future__ import annotations

from lbrx.devices.cpu.kernels.finite import has_all_bits
from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.elements import store_i32, store_i64

EXPONENT = 0x7F800000


_call_kernel, _call_encoder = make_call(6), make_call(5)


def encode_tiles(
    kernel: int,
    ints: int,
    floats: int,
    slot: int,
    lo: int,
    hi: int,
    tile: int,
    tile_elements: int,
    encode: int,
    block_elements: int,
    block_bytes: int,
    target: int,
    scratch: int,
    report: int,
) -> None:
    """Run a kernel that stores f32 values over the elements ``lo`` to ``hi``, and code them.

    ``slot`` is the kernel's argument for where its values go; ``scratch`` holds what Numba's functions return.
    Of the two int32 at ``report``, the first becomes 1 if a value is not finite, the second is the status.
    """
    for start in range(lo, hi, tile_elements):
        stop = min(start + tile_elements, hi)
        store_i64(ints, slot, tile - 4 * start)
        status = _call_kernel(kernel, (scratch, scratch + 8, ints, floats, start, stop))
        if has_all_bits(tile, stop - start, EXPONENT, EXPONENT):
            store_i32(report, 0, 1)
        blocks, done = (stop - start) // block_elements, (start - lo) // block_elements
        status |= _call_encoder(encode, (scratch, scratch + 8, tile, target + done * block_bytes, blocks))
        if status:
            store_i32(report, 1, status)
            return
