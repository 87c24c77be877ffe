"""Attention without a matrix of all scores, for long runs of queries and for single ones.

Scores are within d 2**-23 of the sum of the magnitudes of their products. Tiles are f32, or f16 if queries, keys and
values are all f16; then weights are rounded to f16, which adds 2**-10 of the largest magnitude of the values.
"""

from __future__ import annotations

import struct
from typing import Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.profiler import Work
from lbrx.devices.metal.context.tuning import chosen, shape_class
from lbrx.devices.metal.driver import Constants, GpuFamily
from lbrx.devices.metal.ops.arrays import DeviceArray, empty
from lbrx.devices.metal.ops.launching import (
    SIMD_WIDTH,
    Grid,
    Operand,
    float_number,
    launch,
    nbytes_of,
    output,
    uints,
)
from lbrx.engine.attention_options import AttentionOptions
from lbrx.errors import ShapeError

LARGEST_HEAD = 256
VECTOR_QUERIES = 4
"""Up to so many queries are worked on one by one."""
PARTS = ("1", "2", "4", "8", "16")
"""Threadgroups that can share the keys of one query."""
_VECTOR_SIMDGROUPS = 8
_COMBINING_THREADS = 64
_LEAST_KEYS_PER_PART = 256
_GROUPS_TO_FILL = {GpuFamily.APPLE7: 64, GpuFamily.APPLE8: 80, GpuFamily.APPLE9: 128, GpuFamily.APPLE10: 128}
_BLOCKS = ((4, 32), (4, 16), (4, 8), (2, 16), (2, 8))  # simdgroups, and keys in a block: the best that fits comes first
_SCORE_PADDING = 4
_DEFAULT_OPTIONS = AttentionOptions()
Kernel = Literal["long", "vector"]


@dataclass(frozen=True, slots=True)
class Block:
    """How a threadgroup divides its work, and the threadgroup memory that it takes."""

    simdgroups: int
    keys: int
    memory: dict[int, int]

    @property
    def name(self) -> str:
        return f"{self.simdgroups}x{self.keys}"


def attention(
    context: MetalContext,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    options: AttentionOptions = _DEFAULT_OPTIONS,
    *,
    out: DeviceArray | None = None,
    out_dtype: str | None = None,
    kernel: Kernel | None = None,
    variant: str | None = None,
) -> DeviceArray:
    """softmax(scale q k^T) v: queries [heads, n, d], keys [kv_heads, m, d], values [kv_heads, m, any], up to 256.

    `lbrx.ops.attention` explains the options. A query that sees no key gives zeros. The result has the type of q, or
    ``out_dtype``. ``variant`` is one of `block_names`, or of PARTS if there are few queries.

    >>> import numpy as np
    >>> from lbrx.devices.metal.ops.arrays import download, upload
    >>> context = MetalContext.open("emulated")
    >>> one = upload(context, np.ones((1, 2, 4), np.float32))
    >>> values = upload(context, np.arange(8, dtype=np.float32).reshape(1, 2, 4))
    >>> download(context, attention(context, one, one, values))[0]
    array([[0., 1., 2., 3.],
           [2., 3., 4., 5.]], dtype=float32)
    """
    options.check(q.shape, k.shape, v.shape)
    if max(q.shape[2], v.shape[2]) > LARGEST_HEAD:
        raise ShapeError(f"attention: heads of {q.shape[2]} and {v.shape[2]} elements; at most {LARGEST_HEAD} fit")
    heads, queries, size = q.shape
    keys, value_size = k.shape[1], v.shape[2]
    result = output(context, out, out_dtype or q.dtype, (heads, queries, value_size), "attention")
    if not result.size:
        return result
    constants = {
        "q_type": float_number(q, "attention: q"),
        "k_type": float_number(k, "attention: k"),
        "v_type": float_number(v, "attention: v"),
        "out_type": float_number(result, "attention: the output"),
        "causal": options.causal,
        "has_window": options.window is not None,
        "has_softcap": options.softcap is not None,
    }
    numbers = (queries, keys, heads // k.shape[0], options.offset, min(options.window or 0, 0xFFFFFFFF))
    operands = (q, k, v, result, struct.pack("<5Iff", *numbers, options.scale_of(size), options.softcap or 1.0))
    work = Work(
        nbytes_of(q, k, v, result),
        2 * heads * queries * keys * (size + value_size) // (2 if options.causal and queries == keys else 1),
        f"{heads}x{queries}x{size} {k.shape[0]}x{keys}x{value_size}",
    )
    if kernel == "vector" or (kernel is None and queries <= VECTOR_QUERIES):
        _one_by_one(context, constants, operands, size, result, keys, work, variant)
        return result
    tile = "f16" if q.dtype == k.dtype == v.dtype == "f16" else "f32"
    block = _block(context, tile, size, value_size, queries, variant)
    grid = Grid((-(-queries // (8 * block.simdgroups)), heads), (SIMD_WIDTH * block.simdgroups,))
    launch(
        context,
        "attention",
        "attention",
        {
            **constants,
            "block_keys": block.keys,
            "rows_are_aligned": all(array.is_aligned(array.shape[2]) for array in (q, k, v)),
        },
        operands,
        grid,
        work,
        threadgroup_bytes=block.memory,
        defines=(("TILE", "half" if tile == "f16" else "float"), *_sizes(size, value_size)),
    )
    return result


def _one_by_one(
    context: MetalContext,
    constants: Constants,
    operands: tuple[Operand, ...],
    head_size: int,
    out: DeviceArray,
    keys: int,
    work: Work,
    variant: str | None,
) -> None:
    """A threadgroup for every query, or several that share its keys; a second kernel combines their results."""
    heads, queries, size = out.shape
    question = vector_question(heads * queries, keys, size)
    default = _default_parts(context.info.family, heads * queries, keys)
    parts = int(chosen(context, question, PARTS, default, variant))
    partial = None if parts == 1 else empty(context, "f32", (heads * queries, parts, size + 2))
    grid = Grid((queries, heads, parts), (SIMD_WIDTH * _VECTOR_SIMDGROUPS,))
    split = {**constants, "is_split": parts > 1}
    defines = _sizes(head_size, size)
    operands = (*operands, partial)
    launch(context, "attention_vector", "attention_vector", split, operands, grid, work, defines=defines)
    if partial is not None:
        types = {"out_type": constants["out_type"]}
        combining = Work(nbytes_of(partial, out), 3 * partial.size, f"{heads * queries}x{parts}x{size}")
        grid = Grid((heads * queries,), (_COMBINING_THREADS,))
        operands = (partial, out, uints(parts))
        launch(context, "attention_vector", "attention_combine", types, operands, grid, combining, defines=defines)


def _sizes(head_size: int, value_size: int) -> tuple[tuple[str, str], ...]:
    """Sizes of heads, for which a shader is compiled."""
    return ("HEAD_SIZE", str(head_size)), ("VALUE_SIZE", str(value_size))


def vector_question(rows: int, keys: int, value_size: int) -> str:
    """What the choice of the number of parts is remembered by."""
    return f"attention_vector {shape_class(rows, keys, value_size)}"


def _default_parts(family: GpuFamily, rows: int, keys: int) -> str:
    """As many parts as it takes to keep all cores busy, if each has enough keys."""
    wanted = min(_GROUPS_TO_FILL[family] // max(rows, 1), keys // _LEAST_KEYS_PER_PART)
    return next((name for name in reversed(PARTS) if int(name) <= wanted), PARTS[0])


def block_names(context: MetalContext, tile: str, size: int, value_size: int) -> tuple[str, ...]:
    """Variants whose tiles fit into the device's threadgroup memory."""
    return tuple(block.name for block in _fitting(context, tile, size, value_size))


def attention_question(tile: str, size: int, value_size: int, queries: int) -> str:
    """What the choice of a variant is remembered by."""
    return f"attention {tile} {shape_class(size, value_size, queries)}"


def _block(context: MetalContext, tile: str, size: int, value_size: int, queries: int, variant: str | None) -> Block:
    fitting = _fitting(context, tile, size, value_size)
    question = attention_question(tile, size, value_size, queries)
    name = chosen(context, question, [block.name for block in fitting], fitting[0].name, variant)
    return next(block for block in fitting if block.name == name)


def _fitting(context: MetalContext, tile: str, size: int, value_size: int) -> list[Block]:
    blocks = [_layout(tile, size, value_size, simdgroups, keys) for simdgroups, keys in _BLOCKS]
    return [block for block in blocks if sum(block.memory.values()) <= context.info.threadgroup_memory_bytes]


def _layout(tile: str, size: int, value_size: int, simdgroups: int, keys: int) -> Block:
    """Threadgroup memory of the kernel: tiles, scores, weights, diagonal matrices; see attention.metal."""
    item = 2 if tile == "f16" else 4
    padding, queries = 16 // item, 8 * simdgroups
    stride = -(-max(size, value_size) // 8) * 8 + padding
    memory = {
        0: (queries + keys) * stride * item,
        1: queries * (keys + _SCORE_PADDING) * 4,
        2: queries * (keys + padding) * item,
        3: simdgroups * 64 * 4,
    }
    return Block(simdgroups, keys, memory)
