"""From a Program to the text of a Metal kernel.

Without reductions every thread takes some elements. With them a threadgroup takes a block of elements in tiles (see
tiles.py). The text holds no constants, shapes or addresses, so that equal programs share a kernel.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

from lbrx.devices.metal.codegen.prelude import with_prelude
from lbrx.devices.metal.codegen.signature import Signature
from lbrx.devices.metal.codegen.tiles import TileWriter
from lbrx.engine.program import ROWS, Program

ELEMENTS_PER_THREAD = 8
ELEMENTWISE_THREADS = 256
_NAME = "PASS"
_THREAD_PARAMETERS = (
    "uint group [[threadgroup_position_in_grid]]",
    "uint member [[thread_position_in_threadgroup]]",
    "uint members [[threads_per_threadgroup]]",
    "uint simd_lane [[thread_index_in_simdgroup]]",
)


class PassKernel(NamedTuple):
    """A generated kernel: its name, its own text, and all that is compiled.

    ``by_blocks``: whether a threadgroup takes a block of tiles rather than some elements for each thread.
    """

    name: str
    text: str
    source: str
    signature: Signature
    by_blocks: bool


@cache
def pass_kernel(program: Program) -> PassKernel:
    """The kernel of a program.

    >>> from lbrx.engine.program import FLAT, Instruction, Leaf, Sink
    >>> twice = Program(FLAT, (Leaf("source", "bf16", "unit"),), ("f32",),
    ...     (Instruction("mul", "f32", (0, 1)),), (Sink("store", "bf16", (2,)),))
    >>> "const float v2 = v0 * v1;" in pass_kernel(twice).text
    True
    """
    writer = _KernelWriter(program)
    body = writer.text()
    name = "pass_" + hashlib.sha256(body.encode()).hexdigest()[:12]
    text = body.replace(_NAME, name)
    return PassKernel(name, text, with_prelude(text), writer.signature, writer.by_blocks)


class _KernelWriter(TileWriter):
    @property
    def by_blocks(self) -> bool:
        return bool(self.reductions) or self.program.mode == ROWS

    def text(self) -> str:
        self.out.add(*self.signature.structure(), "")
        parameters = [*self.signature.parameters(), *_THREAD_PARAMETERS]
        self.out.add(f"kernel void {_NAME}(", *(f"    {text}," for text in parameters[:-1]), f"    {parameters[-1]})")
        with self.out.block(""):
            self.declare_scalars()
            if self.program.mode == ROWS:
                self.write_rows()
            elif self.by_blocks:
                self.write_blocks()
            else:
                self._write_elements()
        return "\n".join(self.out.lines) + "\n"

    def _write_elements(self) -> None:
        """Neighbouring threads take neighbouring elements."""
        collects = [number for number, sink in enumerate(self.program.sinks) if sink.op == "collect"]
        self.out.add(*(f"uint above{number} = 0u;" for number in collects))
        with self.out.block(f"for (uint step = 0u; step < {ELEMENTS_PER_THREAD}u; step++)"):
            self.out.add(f"const uint j = (group * {ELEMENTS_PER_THREAD}u + step) * members + member;")
            self.out.add("if (j >= a.count) break;")
            if self.is_flat:
                self.out.add("const long column = a.first_element + long(j);")
            else:
                self.out.add("const INDEX index = INDEX(a.first_element) + j;")
                self.out.add("const INDEX row = index / INDEX(a.columns);")
                self.out.add("const INDEX column = index - row * INDEX(a.columns);")
            self.row_offsets()
            self.declare_values([arg for sink in self.program.sinks for arg in sink.args], set())
            self.feed_sinks("a.first_element + long(j)")
        for number in collects:
            self.out.add(f"const uint all_above{number} = simd_sum(above{number});")
            add = f"atomic_fetch_add_explicit(&sink{number}_counts[1], all_above{number}, memory_order_relaxed);"
            self.out.add(f"if (simd_lane == 0u) {add}")
