"""Computing values and encoding them, a tile that fits into the processor's cache at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lbrx.devices.cpu.build.kernel_cache import RESULT_ADDRESS
from lbrx.devices.cpu.build.native import kernel
from lbrx.errors import KernelError
from lbrx.memory.scratch import scratch_arena

TILE_ELEMENTS = 32 << 10  # f32 values that stay in a processor's own cache between two kernels


class PassValues(NamedTuple):
    """A compiled pass that stores f32 values: addresses of the kernel and of its arguments, and the number of the
    argument that says where the values go."""

    kernel: int
    ints: int
    floats: int
    slot: int

    def encode_tiles(self, lo: int, hi: int, encoder: int, block_elements: int, block_bytes: int, target: int) -> bool:
        """See `lbrx.engine.encode.EncodeTiles`."""
        report = np.zeros(2, np.int32)
        with scratch_arena().borrow(4 * TILE_ELEMENTS) as tile:
            kernel("codecs.tile_loop", "encode_tiles", 14)(
                *(self.kernel, self.ints, self.floats, self.slot, lo, hi, tile.ctypes.data, TILE_ELEMENTS),
                *(encoder, block_elements, block_bytes, target, RESULT_ADDRESS, report.ctypes.data),
            )
        if report[1]:
            raise KernelError(f"a kernel stopped with status {report[1]} while values were encoded")
        return not report[0]
