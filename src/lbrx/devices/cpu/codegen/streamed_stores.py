"""Results larger than the caches, written past them.

A processor that stores into a cache line reads the line first. For a result that will have left the caches before
anybody looks at it that is a third of all traffic of ``x + y``, so a kernel puts some elements aside and moves them out
as whole lines, which some processors then write without reading.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

from lbrx.devices.cpu.codegen.lines import SourceLines
from lbrx.devices.cpu.simd.processor import LINE_BYTES, PIECE_BYTES
from lbrx.engine.program import FLAT, Program, Sink
from lbrx.tensors.dtype import DTYPES

PAYS = platform.machine() in ("x86_64", "AMD64")
LEAST_BYTES = 32 << 20  # of a result


def can_stream(program: Program) -> bool:
    """Whether the kernel of a program can write past the caches: if all it does is to store one flat result."""
    if program.mode != FLAT or [sink.op for sink in program.sinks] != ["store"]:
        return False
    return not DTYPES[program.sinks[0].type].is_packed


def pays(nbytes: int) -> bool:
    """Whether a result of so many bytes should be written past the caches."""
    return PAYS and nbytes >= LEAST_BYTES


def write_pieces(out: SourceLines, flag: str, sink: Sink, elements: Callable[[str, str], None]) -> None:
    """Lines that store elements ``start`` to ``stop`` at ``out0``, piece by piece if the flag is set.

    ``elements`` writes the lines for the elements from one name to another. A piece that is not whole, or that does not
    begin where a cache line does, is stored as usual.
    """
    item_bytes = DTYPES[sink.type].itemsize
    items = PIECE_BYTES // item_bytes
    out.add(f"aside = stack_bytes({PIECE_BYTES})", "whole = out0", f"is_streamed = {flag} != 0")
    out.add(f"step = {items} if is_streamed else max(stop - start, 1)")
    out.open("for piece in range(start, stop, step):")
    out.add("piece_end = min(piece + step, stop)", f"target = whole + {item_bytes} * piece")
    out.add(f"is_aside = is_streamed and piece_end - piece == {items} and target % {LINE_BYTES} == 0")
    out.add(f"out0 = aside - {item_bytes} * piece if is_aside else whole")
    elements("piece", "piece_end")
    out.open("if is_aside:")
    out.add("stream_out(aside, target)")
    out.close()
    out.close()
    out.open("if is_streamed:")
    out.add("finish_streaming()")
    out.close()
