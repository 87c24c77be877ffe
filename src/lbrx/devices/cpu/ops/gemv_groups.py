"""A few vectors times codes whose scales and offsets are stored apart, as sums of products of integers.

These are MLX's codings and integers with zero points, in rows of whole blocks of 32 codes. The vectors are coded as i16
in blocks of 32. That changes a result by at most 1 / 65278 of the sum, over blocks, of the vector's largest magnitude
in the block times the magnitudes of the weights there. As scale x sum(code x) and offset x sum(x) are added at the end,
rounding changes it by at most (k / 32 + 16) 2**-24 of the sum of |x| (|scale code| + |offset|). MLX's mxfp8 is
multiplied in f32, within the second bound.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS, address_of
from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import check_status, run_together
from lbrx.devices.cpu.ops.row_jobs import NANOSECONDS_PER_BYTE, CodedJob, job_scratch, least_rows
from lbrx.engine.arrays import Floats
from lbrx.tensors.coded import Blocks, Decode
from lbrx.tensors.expr import Expr, Source
from lbrx.tensors.storage import CpuStorage, MmapStorage

_BLOCK, _TOGETHER = 32, 4  # elements of a block; blocks whose numbers lie together
_JOB, _WATCHED = struct.Struct("=16q"), struct.Struct("=f")
_WATCHED_AT, _SCRATCH_START = 128, 192
_NUMBER_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3, "float8_e8m0fnu": 4, "float8_e4m3fn": 5}
_FLOAT_CODES = {"mlx_mxfp4": "mxfp4", "mlx_nvfp4": "nvfp4", "mlx_mxfp8": "mxfp8"}


class GroupWeight(NamedTuple):
    """Addresses and numbers of a weight, as jobs take them."""

    kernel: str  # the function of the kernel modules
    bits: int
    scaled: int  # elements that have one scale in a kernel: a block or half of one
    codes: int
    scales: int
    offsets: int = 0  # none
    blocks_per_scale: int = 1
    scale_type: int = 0
    offset_type: int = 0
    are_zero_points: bool = False
    added: int = 0  # to every code, which kernels have as an unsigned or, of 8 bits, as a signed number

    @property
    def scale_numbers(self) -> tuple[int, ...]:
        """The numbers of `take_scales`."""
        return tuple(map(int, self[4:]))


def group_weight(expr: Expr) -> GroupWeight | None:
    """The weight [m, k] that an expression is, if all of its parts lie in memory and groups are whole blocks."""
    decode = expr.values if isinstance(expr, Blocks) else expr
    assert isinstance(decode, Decode)
    known = _known.get(decode)
    if known is None:
        known = _look_up(decode)
        _known[decode] = known
    for storage in known.files:
        storage.read_at(0, 0)  # raises an error if the bytes are no longer there
    return known.weight


class _Known(NamedTuple):
    """What is known of an expression; ``files`` has a storage for each mapped file."""

    weight: GroupWeight | None
    files: tuple[MmapStorage, ...] = ()


_known: WeakKeyDictionary[Decode, _Known] = WeakKeyDictionary()


def _look_up(decode: Decode) -> _Known:
    coding, first = decode.codec, decode.layout.offset
    group = coding.block_elements
    parts = [part for part in decode.parts if part is not None]
    is_whole = decode.layout.is_contiguous and not first % group and not decode.shape[-1] % max(group, _BLOCK)
    if decode.rows is not None or not is_whole or (group % _BLOCK and coding.name != "mlx_nvfp4"):
        return _Known(None)
    if not all(isinstance(part, Source) and part.rows is None and part.layout.is_contiguous for part in parts):
        return _Known(None)
    storages = [part.storage for part in parts if isinstance(part, Source)]
    if not all(isinstance(each, (CpuStorage, MmapStorage)) and each.address is not None for each in storages):
        return _Known(None)
    bits, numbers = 8 * coding.block_bytes // group, [np.dtype(each) for each in coding.numbers]
    sizes = coding.block_bytes, *(each.itemsize for each in numbers)
    codes, scales, *offsets = (
        _start(part, first // group * size) for part, size in zip(decode.parts, sizes, strict=True)
    )
    scale_type, *offset_types = (_NUMBER_TYPES[each.name] for each in numbers)
    if coding.name in _FLOAT_CODES:
        weight = GroupWeight(_FLOAT_CODES[coding.name], bits, group, codes, scales, scale_type=scale_type)
    else:
        is_affine = coding.name == "mlx_affine"
        added = (128 if is_affine else 0) if bits == 8 else (0 if is_affine else -(1 << (bits - 1)))
        kernel = f"{'affine' if is_affine else 'integers'}_{bits}"
        kinds = scale_type, offset_types[0], not is_affine
        weight = GroupWeight(kernel, bits, _BLOCK, codes, scales, offsets[0], group // _BLOCK, *kinds, added)
    files = {id(each.file): each for each in storages if isinstance(each, MmapStorage)}
    return _Known(weight, tuple(files.values()))


def _start(part: Expr | None, offset: int) -> int:
    """The address of a byte of a stored part; 0 for a part that is not given."""
    if not isinstance(part, Source):
        return 0
    return (part.storage.address or 0) + part.dtype.nbytes(part.layout.offset) + offset


class _Layout(NamedTuple):
    """Offsets of the coded vectors in a thread's scratch memory, and the kernels of a product."""

    scratch_bytes: int
    codes: int
    scales: int
    sums: int
    row_bytes: int
    least_rows: int
    code: Any
    multiply: Any
    multiply_address: int


@cache
def _layout(name: str, bits: int, vectors: int, columns: int) -> _Layout:
    fours = -(-columns // (_BLOCK * _TOGETHER))
    scales = _SCRATCH_START + 2 * vectors * fours * _TOGETHER * _BLOCK
    sums = scales + 4 * vectors * fours * _TOGETHER
    coder = "no_code" if name == "mxfp8" else f"code_{bits if bits < 5 else 8}"
    row_bytes = columns * bits // 8
    return _Layout(
        *(sums + 4 * vectors * fours * _TOGETHER, _SCRATCH_START, scales, sums, row_bytes, least_rows(row_bytes)),
        compiled("gemv_groups", coder, 1),
        *(compiled("gemv_groups", name, 4), code_address("gemv_groups", name, 4)),
    )


def coded_job(expr: Expr, vectors: int, rows: int, _bits: int = 16) -> CodedJob | None:
    """What `gemv_groups` does, to be run later; None if the weight has to be decoded."""
    weight = group_weight(expr)
    if weight is None:
        return None
    columns, group = expr.shape[-1], weight
    layout = _layout(weight.kernel, weight.bits, vectors, columns)

    def words(scratch: Any, x: Any, out: Any) -> tuple[Any, ...]:
        return _words(group, layout, (vectors, columns, rows), scratch, x, out)

    coder, decode = address_of(layout.code), expr.values if isinstance(expr, Blocks) else expr
    assert isinstance(decode, Decode)
    work = layout.multiply_address, layout.row_bytes, rows, layout.least_rows
    coding, files = (coder, vectors, columns), _known[decode].files
    return CodedJob(coding, layout.scratch_bytes, coder, _WATCHED_AT, *work, words, files, has_status=False)


def _words(
    weight: GroupWeight, layout: _Layout, shape: tuple[int, int, int], scratch: Any, x: Any, out: Any
) -> tuple[Any, ...]:
    """The numbers of a job; addresses may be those of memory that is planned later."""
    vectors, columns, rows = shape
    return (
        *(weight.codes, out, columns),
        *(scratch + layout.codes, scratch + layout.scales, scratch + layout.sums, vectors, rows, x),
        *weight.scale_numbers,
    )


def gemv_groups(x: Floats, expr: Expr, out: Floats, _bits: int = 16) -> bool:
    """Returns False, with nothing written, if an activation is not finite, or if the weight has to be decoded."""
    weight = group_weight(expr)
    if weight is None:
        return False
    vectors, columns = x.shape
    layout = _layout(weight.kernel, weight.bits, vectors, columns)
    memory, start = job_scratch.borrow_buffer(layout.scratch_bytes)
    rows = out.shape[1]
    _JOB.pack_into(memory, 0, *_words(weight, layout, (vectors, columns, rows), start, address(x), address(out)))
    check_status(layout.code(RESULT_ADDRESS, EXCEPTION_ADDRESS, start))
    if _WATCHED.unpack_from(memory, _WATCHED_AT)[0] != 0:
        return False
    run_together(
        *(layout.multiply, layout.multiply_address, start, layout.row_bytes, rows, layout.least_rows),
        nanoseconds=rows * layout.row_bytes * NANOSECONDS_PER_BYTE,
    )
    return True
