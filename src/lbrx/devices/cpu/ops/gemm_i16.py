"""A quantized weight times many vectors, as products of i16 or i8: faster than f32 where the processor has them.

The vectors are coded and the bounds are those of `lbrx.devices.cpu.ops.gemv_quantized`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import run_together
from lbrx.devices.cpu.ops.coded_groups import CODED_GROUPS
from lbrx.devices.cpu.simd.processor import DOT_BYTES
from lbrx.engine.arrays import Floats
from lbrx.engine.blas import in_ranges
from lbrx.memory.scratch import borrowing
from lbrx.settings import settings
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import drop_behind

_PANEL_VECTORS, _CODED_COLUMNS = 16, 32
_MOST_VECTORS = 512
TILE_ROWS = 64
_SPAN_BYTES = 32 << 20  # of rows that are multiplied before their pages may be dropped
Multiply = Callable[[list[int], Floats], None]


class Form(NamedTuple):
    """How codes lie in memory while they are multiplied: the kernel modules, and the bytes of a code."""

    products: str
    rows: str
    code_bytes: int
    suffix: str = ""  # of the coders


WORDS = Form("gemm_i16", "quantized_rows_i16", 2)
FORMS = {16: WORDS, 8: Form("gemm_i8", "quantized_rows_i8", 1) if DOT_BYTES else WORDS._replace(suffix="_in_8_bits")}
"""By the bits of the vectors."""


def gemm_i16(x: Floats, blocks: Blocks, out: Floats, bits: int = 16) -> bool:
    """``x`` [n, k], coded in so many bits, times the rows of a weight [m, k] into ``out`` [n, m].

    Returns False if a number is not finite or the weight is a view of decoded blocks: what is in ``out`` then means
    nothing.
    """
    if not isinstance(blocks, Blocks):
        return False
    group, form = CODED_GROUPS[blocks.codec], FORMS[bits]
    has_half_sums = group.has_lows and group.scaled == _CODED_COLUMNS // 2
    return in_coded_panels(x, out, has_half_sums, lambda *given: _multiply(form, blocks, *given), form)


@cache
def _task(module: str, name: str) -> tuple[Any, int]:
    return compiled(module, name, 4), code_address(module, name, 4)


def in_coded_panels(x: Floats, out: Floats, has_half_sums: bool, multiply: Multiply, form: Form = WORDS) -> bool:
    """Code vectors and multiply them, up to 512 at a time. Returns False if a number is not finite.

    ``multiply`` gets the numbers of a job that describe the coded vectors, from the columns on, and their result.
    """
    starts = range(0, x.shape[0], _MOST_VECTORS)
    parts = ((x[at : at + _MOST_VECTORS], out[at : at + _MOST_VECTORS]) for at in starts)
    return all(_some_vectors(*part, has_half_sums, multiply, form) for part in parts)


def _some_vectors(x: Floats, out: Floats, has_half_sums: bool, multiply: Multiply, form: Form) -> bool:
    vectors, columns = x.shape
    panels = -(-vectors // _PANEL_VECTORS)
    scale_bytes = 4 * _PANEL_VECTORS * columns // _CODED_COLUMNS
    watched = np.zeros(1, np.float32)
    with borrowing() as borrow:
        sizes = form.code_bytes * _PANEL_VECTORS * columns, scale_bytes, scale_bytes * (1 + has_half_sums)
        coded = [address(borrow(panels * size)) for size in sizes]
        job = np.array([address(x), vectors, *coded, address(watched)], np.int64)
        coder = ("code_panels_by_halves" if has_half_sums else "code_panels") + form.suffix
        run_together(*_task(form.products, coder), address(job), columns, panels, 1, most=1)
        if watched[0] != 0:
            return False
        multiply([columns, *coded, vectors], out)
    return True


def _multiply(form: Form, blocks: Blocks, numbers: list[int], out: Floats) -> None:
    """All rows of a weight times coded vectors."""
    block_codec, storage, (rows, columns) = codec(blocks.codec), blocks.storage, (out.shape[1], numbers[0])
    row_bytes = columns // block_codec.block_elements * block_codec.block_bytes
    group = CODED_GROUPS[blocks.codec]
    task = _task(form.products, f"by_{group.scaled}{'_with_lows' if group.has_lows else ''}")
    take, together = code_address(form.rows, blocks.codec, 8), group.scaled * form.code_bytes // 4

    def multiply(first: int, stop: int) -> None:
        start, length = first * row_bytes, (stop - first) * row_bytes
        window = storage.read_at(start, length)
        target = address(out) + 4 * first, rows
        ahead = TILE_ROWS * settings.threads
        job = np.array([address(window), *numbers, *target, together, ahead, take], np.int64)
        run_together(*task, address(job), row_bytes, stop - first, TILE_ROWS, most=TILE_ROWS)
        drop_behind(storage, start, length)

    in_spans(rows, row_bytes, storage.address is not None, multiply)


def in_spans(rows: int, row_bytes: int, is_in_memory: bool, multiply: Callable[[int, int], None]) -> None:
    """Multiply rows that lie in memory a span after the other, whose tiles threads share; others a tile to a thread."""
    if not is_in_memory:
        in_ranges(rows, TILE_ROWS, multiply)
        return
    span = max(_SPAN_BYTES // row_bytes // TILE_ROWS, 1) * TILE_ROWS
    for first in range(0, rows, span):
        multiply(first, min(first + span, rows))
