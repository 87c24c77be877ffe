"""Which passes a GPU can run; the others run on the CPU."""

from __future__ import annotations

from functools import cache

from lbrx.devices.metal.codegen.elements import LEFT_TO_THE_CPU, MEMORY_TYPES
from lbrx.devices.metal.codegen.signature import Signature
from lbrx.devices.metal.driver.commands import LARGEST_BYTES_ARGUMENT
from lbrx.engine.program import BLOCK_REDUCTIONS, RANK_OPS, ROWS, Program

_MOST_BUFFERS = 30  # of 31 that Metal has; one is for the arguments


@cache
def why_not(program: Program) -> str | None:
    """Why Metal cannot run a pass, in words, or None if it can.

    >>> from lbrx.engine.program import FLAT, Leaf, Sink
    >>> why_not(Program(FLAT, (Leaf("source", "f64", "unit"),), (), (), (Sink("store", "f32", (0,)),)))
    'a GPU has no f64'
    """
    if any(instruction.op in RANK_OPS for instruction in program.body):
        return "the Metal backend cannot rank along rows"
    if any(instruction.op in LEFT_TO_THE_CPU for instruction in program.body):
        return "the Metal backend has no pow, floordiv and mod"
    stored = [sink.type for sink in program.sinks if sink.op in ("store", "row_store")]
    if any(name == "f64" for name in (*program.value_types(), *stored)):
        return "a GPU has no f64"
    assert all(leaf.dtype in MEMORY_TYPES for leaf in program.leaves)
    sink_ops = {sink.op for sink in program.sinks}
    if "collect" in sink_ops and (program.mode == ROWS or sink_ops & BLOCK_REDUCTIONS):
        return "elements along rows cannot be collected"
    signature = Signature(program)
    if len(signature.buffers) > _MOST_BUFFERS:
        return f"a kernel takes at most {_MOST_BUFFERS} buffers, this pass has {len(signature.buffers)}"
    if signature.nbytes > LARGEST_BYTES_ARGUMENT:
        return f"a kernel takes at most {LARGEST_BYTES_ARGUMENT} bytes of numbers, this pass has {signature.nbytes}"
    return None
