"""A few vectors times quantized blocks, as sums of products of integers.

The vectors are first coded as i16 in blocks of 32, with codes up to 32639. That changes a result by at most 1 / 65278
of the sum, over blocks, of the vector's largest magnitude in the block times the magnitudes of the weights there: about
as much as rounding the vector to f16 would. If activations may have 8 bits, codes are i8 up to 127, and it is 1 / 254
of that sum. Sums of products are exact; those of scaled sums are within (k / 32 + 8) 2**-24 of the sum of the
magnitudes of their terms, of which an offset or a minimum of the codes is one.

A job for `gemv_tasks.coded_rows` is eleven int64: the address of the codec's function, a status, the addresses of rows
and results, columns, the addresses of the coded vectors' codes, scales and sums, the number of vectors, columns of the
result, and the address of the vectors, which only the coder reads. The function takes the address of rows, their
number, and then numbers 4 to 8, 3 and 9 of the job.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS, address_of
from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import check_status, run_together
from lbrx.devices.cpu.kernels.coded_names import coded_name
from lbrx.devices.cpu.ops.coded_groups import CODED_GROUPS
from lbrx.devices.cpu.ops.row_jobs import (
    NANOSECONDS_PER_BYTE,
    SCRATCH_START,
    CodedJob,
    StoredRows,
    check_job,
    in_rows,
    job_scratch,
    least_rows,
    task,
)
from lbrx.engine.arrays import Floats
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import Bytes

_GROUP_COLUMNS = 256
_GROUP_CODE_BYTES, _GROUP_SCALE_BYTES, _GROUP_SUM_BYTES = 512, 32, 64  # of a coded vector; sums of blocks take half
_CODED_JOB, _WATCHED_NUMBER = struct.Struct("=11q"), struct.Struct("=f")
_WATCHED = 96


class _CodedLayout(NamedTuple):
    """Offsets of the coded vectors in a thread's scratch memory, and the kernels of a product."""

    scratch_bytes: int
    codes: int
    scales: int
    sums: int
    row_bytes: int
    least_rows: int
    function: int
    code: Any


@cache
def _coded_layout(codec_name: str, vectors: int, columns: int, bits: int) -> _CodedLayout:
    block_codec, groups = codec(codec_name), vectors * -(-columns // _GROUP_COLUMNS)
    scales = SCRATCH_START + _GROUP_CODE_BYTES * groups
    sums = scales + _GROUP_SCALE_BYTES * groups
    row_bytes = columns // block_codec.block_elements * block_codec.block_bytes
    return _CodedLayout(
        *(sums + _GROUP_SUM_BYTES * groups, SCRATCH_START, scales, sums, row_bytes, least_rows(row_bytes)),
        code_address("gemv_quantized", coded_name(codec_name, bits), 9),
        compiled("coded_vectors", coded_name(CODED_GROUPS[codec_name].coder, bits), 1),
    )


def coded_job(blocks: Blocks, vectors: int, rows: int, bits: int) -> CodedJob | None:
    """What `gemv_quantized` does, to be run later; None if the rows are not in memory or have to be decoded."""
    if not isinstance(blocks, Blocks):
        return None
    storage, columns = blocks.storage, blocks.shape[-1]
    if storage.address is None:
        return None
    layout = _coded_layout(blocks.codec, vectors, columns, bits)

    def words(scratch: Any, x: Any, out: Any) -> tuple[Any, ...]:
        return _words(layout, storage.address or 0, (vectors, columns, rows), scratch, x, out)

    coder = address_of(layout.code)
    coding, (_, rows_task) = (coder, vectors, columns), task("coded_rows")
    work = rows_task, layout.row_bytes, rows, layout.least_rows
    return CodedJob(coding, layout.scratch_bytes, coder, _WATCHED, *work, words, (storage,))


def _words(
    layout: _CodedLayout, weights: int, shape: tuple[int, int, int], scratch: Any, x: Any, out: Any
) -> tuple[Any, ...]:
    """The numbers of a job of ``coded_rows``; addresses may be those of memory that is planned later."""
    vectors, columns, rows = shape
    coded = scratch + layout.codes, scratch + layout.scales, scratch + layout.sums
    return layout.function, 0, weights, out, columns, *coded, vectors, rows, x


def gemv_quantized(x: Floats, blocks: Blocks, out: Floats, bits: int = 16) -> bool:
    """Returns False, with nothing written, if a number is not finite or the weight is a view of decoded blocks."""
    if not isinstance(blocks, Blocks):
        return False
    vectors, columns = x.shape
    layout, storage = _coded_layout(blocks.codec, vectors, columns, bits), blocks.storage
    memory, start = job_scratch.borrow_buffer(layout.scratch_bytes)
    row_bytes, rows, weights_start = layout.row_bytes, out.shape[1], storage.address
    words = _words(layout, weights_start or 0, (vectors, columns, rows), start, address(x), address(out))
    _CODED_JOB.pack_into(memory, 0, *words)
    check_status(layout.code(RESULT_ADDRESS, EXCEPTION_ADDRESS, start))
    if _WATCHED_NUMBER.unpack_from(memory, _WATCHED)[0] != 0:
        return False
    if weights_start is not None:  # the usual case, without detours: calls are many and short
        storage.read_at(0, rows * row_bytes)  # raises an error if they are no longer there
        nanoseconds = rows * row_bytes * NANOSECONDS_PER_BYTE
        run_together(*task("coded_rows"), start, row_bytes, rows, layout.least_rows, nanoseconds=nanoseconds)
        check_job(memory)
        return True

    def window(first: int, stop: int) -> Bytes:
        return storage.read_at(first * row_bytes, (stop - first) * row_bytes)

    in_rows("coded_rows", layout.function, words[4:10], StoredRows(row_bytes, window, None), out)
    return True
