"""Blocks of quantized types, made on the device from values that are stored there or that a pass leaves there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.codecs.encode import BlockDestination
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.driver import Argument, Buffer, BufferBinding
from lbrx.devices.metal.ops.arrays import BINDING_ALIGNMENT, BLOCKS, FLOAT_NUMBERS, DeviceArray
from lbrx.devices.metal.ops.blocks import ENCODABLE, quantize
from lbrx.engine.destination import EncodeTarget
from lbrx.engine.device import Encoder
from lbrx.engine.program import FLAT, Instruction, Program, Sink
from lbrx.settings import settings
from lbrx.tensors.dtype import DTYPES

_WRITE_ELEMENTS = 512 << 10  # that a thread looks at and writes as blocks at a time
_CAST = Instruction("cast", "f32", (0,))


class BlockSink(BlockDestination):
    """A result of a pass that becomes blocks: values in one buffer, then their blocks in another."""

    __slots__ = ("_block_bytes", "_block_elements", "_coding")

    def __init__(self, target: EncodeTarget) -> None:
        super().__init__(target)
        self._coding = target.encoding.codec.name
        self._block_elements, self._block_bytes = BLOCKS[self._coding]

    @property
    def element_bytes(self) -> int:
        """Bytes of both buffers for each element, rounded up."""
        return self.dtype.itemsize + -(-self._block_bytes // self._block_elements)

    def values(self, buffer: Buffer) -> DeviceArray:
        """The values that a pass has left in a buffer."""
        return DeviceArray(buffer, "f32", (buffer.nbytes // self.dtype.itemsize,))

    def encode_values(self, context: MetalContext, values: DeviceArray) -> Buffer:
        """Record the kernel that makes blocks of values; they are in a buffer of the pool."""
        blocks = values.size // self._block_elements
        encoded = context.get_buffer(blocks * self._block_bytes, host_access=False)
        rows = values.reshape(blocks, self._block_elements)
        quantize(context, rows, self._coding, out=DeviceArray(encoded, "u8", (encoded.nbytes,)))
        transfers(context).add(dispatches=1, read_bytes=values.nbytes, written_bytes=encoded.nbytes)
        return encoded

    def take(self, lo: int, values: DeviceArray, blocks: Any) -> None:
        """Hand the blocks of the elements from ``lo`` on to the target, which may look at their values."""
        dtype = DTYPES[values.dtype]
        seen = values.buffer.view()[values.offset : values.offset + values.nbytes]
        seen_bytes = dtype.itemsize * _WRITE_ELEMENTS
        blocks_bytes = _WRITE_ELEMENTS // self._block_elements * self._block_bytes

        def worker() -> Callable[[int], None]:
            def step(number: int) -> None:
                self.check_finite(seen[number * seen_bytes : (number + 1) * seen_bytes], dtype)
                piece = blocks[number * blocks_bytes : (number + 1) * blocks_bytes]
                with ExitStack() as stack:
                    first = self._start + lo + number * _WRITE_ELEMENTS
                    (buffer,) = self._buffers(stack, first, piece.size // self._block_bytes)
                    assert buffer is not None
                    buffer[:] = piece

            return step

        run_chunks(-(-seen.size // seen_bytes), settings.threads, worker)


def why_not_encoded(work: Encoder) -> str | None:
    """Why the device cannot encode values as blocks of a codec, or None if it can."""
    if work.codec.parts:
        return "the Metal backend cannot encode groups with scales"
    if work.is_weighted:
        return f"the Metal backend cannot encode {work.codec.name} blocks with an importance matrix"
    return None if work.codec.name in ENCODABLE else f"the Metal backend cannot encode {work.codec.name} blocks"


def needs_no_pass(program: Program) -> bool:
    """Whether a pass would only copy stored floats as f32: the kernel that makes blocks reads them where they are.

    >>> from lbrx.engine.program import Leaf
    >>> needs_no_pass(Program(FLAT, (Leaf("source", "bf16", "unit"),), (), (), (Sink("store", "f32", (0,)),)))
    True
    """
    if program.mode != FLAT or len(program.leaves) != 1 or program.scalars or len(program.sinks) != 1:
        return False
    (leaf,) = program.leaves
    is_stored = leaf.origin == "source" and leaf.step == "unit" and leaf.dtype in FLOAT_NUMBERS
    copies = {(): Sink("store", "f32", (0,)), (_CAST,): Sink("store", "f32", (1,))}
    return is_stored and program.sinks[0] == copies.get(program.body)


def stored_values(argument: Argument, dtype: str) -> DeviceArray | None:
    """What is bound to a kernel as an array, unless Metal cannot bind it at its offset as numbers of any type."""
    assert isinstance(argument, BufferBinding)
    if argument.offset % BINDING_ALIGNMENT:
        return None
    nbytes = argument.buffer.nbytes - argument.offset if argument.nbytes is None else argument.nbytes
    return DeviceArray(argument.buffer, dtype, (nbytes // DTYPES[dtype].itemsize,), argument.offset)
