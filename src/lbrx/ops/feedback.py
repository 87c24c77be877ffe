"""Encode a matrix so that the errors of its products are small, not those of its elements.

The columns of a block are rounded one after the other. What rounding takes away is made up for by the columns behind
it, as the Gram matrix of the inputs says: the sum over inputs x of x x'. This is the method of GPTQ, with the scales of
each block searched when it is reached, on the columns as they are then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from lbrx.base.threads import run_chunks
from lbrx.devices.cpu.build.native import address, run
from lbrx.ops.feedback_blocks import SEARCHED_TYPES, encode_searched
from lbrx.ops.feedback_factors import ColumnFactors
from lbrx.ops.feedback_grids import GRID_TYPES, encode_on_grid
from lbrx.ops.matmul import matmul
from lbrx.registry import CODECS
from lbrx.settings import settings
from lbrx.tensors.codecs.code_bits import Bytes
from lbrx.tensors.codecs.codec import Codec, codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage
from lbrx.tensors.tensor import Tensor, tensor

Floats = npt.NDArray[np.float32]
_WITHOUT_GAIN = ("tq1_0", "tq2_0", "q1_0")
_ROWS_AT_A_TIME = 32  # of a step of a thread


def gains_from_feedback(type_name: str) -> bool:
    """Whether a type becomes better. The scales of ternary and one-bit types depend too much on single values.

    >>> gains_from_feedback("q4_k"), gains_from_feedback("tq2_0"), gains_from_feedback("f16")
    (True, False, False)
    """
    return type_name in CODECS and type_name not in _WITHOUT_GAIN


def encode_with_feedback(values: Floats, type_name: str, importance: Floats, factors: ColumnFactors) -> Bytes:
    """Return the blocks of a matrix [rows, columns], as bytes [rows, bytes].

    ``importance`` has the mean square of the input of each column, and ``factors`` come from
    `lbrx.ops.feedback_factors.feedback_factors`, which also say in which order columns are rounded.

    >>> from lbrx.ops.feedback_factors import feedback_factors
    >>> random = np.random.default_rng(1)
    >>> inputs = random.normal(size=(256, 64)) @ random.normal(size=(64, 64))
    >>> weight, gram = random.normal(size=(8, 64)).astype(np.float32), inputs.T @ inputs
    >>> importance = gram.diagonal().astype(np.float32) / len(inputs)
    >>> blocks = encode_with_feedback(weight, "q4_0", importance, feedback_factors(gram, 0.0))
    >>> plain = tensor(weight).quantize("q4_0", importance).numpy()
    >>> coded = decoded(blocks, "q4_0").reshape(weight.shape)
    >>> bool(np.square((coded - weight) @ inputs.T).sum() < 0.5 * np.square((plain - weight) @ inputs.T).sum())
    True
    """
    if type_name in SEARCHED_TYPES:
        return encode_searched(values, type_name, factors)
    if type_name in GRID_TYPES:
        encode = partial(_encoded, codec(type_name))
        return encode_on_grid(values, type_name, importance, factors, encode)
    record = codec(type_name)
    rows, columns = values.shape
    width = record.block_elements
    order, upper = factors.ordered((width,), inner=False)
    left = np.ascontiguousarray(values[:, order], np.float32)
    out = np.empty((rows, columns // width, record.block_bytes), np.uint8)
    for start in range(0, columns, width):
        stop = start + width
        part = np.ascontiguousarray(left[:, start:stop])
        own = np.ascontiguousarray(upper[start:stop, start:stop])
        blocks = _encoded(record, part, importance[order[start:stop]])
        errors = _fixed(part, own, decoded(blocks, type_name))
        out[:, order[start] // width] = blocks
        if stop < columns:
            left[:, stop:] -= matmul(errors, np.ascontiguousarray(upper[start:stop, stop:]))
    return out.reshape(rows, -1)


def _encoded(record: Codec, values: Floats, importance: Floats) -> Bytes:
    """Blocks of single columns of blocks, [rows, bytes]."""
    weights = importance if record.takes_imatrix else None
    storage = tensor(values).quantize(record.name, weights).realize().storage
    assert storage is not None
    blocks: Bytes = storage.read_at(0, storage.nbytes).reshape(len(values), record.block_bytes).copy()
    return blocks


def decoded(blocks: Bytes, type_name: str) -> Floats:
    """The values of blocks [count, bytes], as [count, elements]."""
    record = codec(type_name)
    flat = np.ascontiguousarray(blocks).reshape(-1)
    shape = (flat.size // record.block_bytes, record.block_elements)
    result: Floats = Tensor(Blocks(CpuStorage(flat), type_name, shape)).dequantize().numpy()
    return result


def _fixed(part: Floats, factors: Floats, values: Floats) -> Floats:
    """Errors for later columns, if columns become these values one after the other."""
    rows, columns = part.shape
    errors = np.empty_like(part)
    arrays = part, values, errors

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            first = number * _ROWS_AT_A_TIME
            count = min(_ROWS_AT_A_TIME, rows - first)
            given, rounded, out = (address(each) + first * each.strides[0] for each in arrays)
            run("codecs.feedback", "fixed", given, count, columns, address(factors), rounded, out)

        return step

    run_chunks(-(-rows // _ROWS_AT_A_TIME), settings.threads, worker)
    return errors
