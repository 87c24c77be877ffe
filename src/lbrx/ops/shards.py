"""Split tensors into shards, join them, and multiply by sharded weights.

A column-parallel weight is split along its outputs: each shard computes some columns of the result. A row-parallel
weight is split along its inputs: each shard takes some columns of the activations, and the results are added in shard
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.arrays import Floats, Values, floats, row_vector
from lbrx.errors import ShapeError, UsageError
from lbrx.ops.linear import linear
from lbrx.tensors.codecs.codec import Codec, codec, is_codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.creation import concatenate
from lbrx.tensors.shape import normalize_axis
from lbrx.tensors.storage import Bytes, ReadStorage, Storage
from lbrx.tensors.tensor import Tensor, TensorMetadata


@dataclass(frozen=True, slots=True)
class BlockColumns(ReadStorage):
    """Some blocks of every row of an encoded storage, as one contiguous run. It has no address."""

    storage: Storage
    rows: int
    row_bytes: int
    first_byte: int  # within a row
    width: int  # in bytes

    @property
    def nbytes(self) -> int:
        return self.rows * self.width

    def read_into(self, offset: int, buffer: Bytes) -> None:
        if not buffer.size:
            return
        first, stop = offset // self.width, -(-(offset + buffer.size) // self.width)
        whole = self.storage.read_at(first * self.row_bytes, (stop - first) * self.row_bytes)
        columns = whole.reshape(stop - first, self.row_bytes)[:, self.first_byte : self.first_byte + self.width]
        start = offset - first * self.width
        buffer[:] = np.ascontiguousarray(columns).reshape(-1)[start : start + buffer.size]


def shard(tensor: Tensor, count: int, axis: int = 0) -> list[Tensor]:
    """Split a tensor into views along an axis, as evenly as possible. Quantized tensors stay quantized.

    Quantized rows are split only between blocks.

    >>> import lbrx
    >>> [part.shape for part in shard(lbrx.tensor(np.zeros((5, 64), np.float32)), 2)]
    [(3, 64), (2, 64)]
    """
    if count < 1:
        raise UsageError(f"cannot split into {count} shards; expected at least 1")
    along = normalize_axis(axis, tensor.ndim)
    size, unit = tensor.shape[along], _unit(tensor, along)
    if size % unit or size // unit < count:
        blocks = f" in blocks of {unit}" if unit > 1 else ""
        raise ShapeError(
            f"axis {along} of a tensor of shape {tensor.shape} has {size} elements{blocks}, too few for {count} shards"
        )
    smaller, larger = divmod(size // unit, count)
    ends = [unit * (smaller * number + min(number, larger)) for number in range(count + 1)]
    return [part(tensor, along, start, stop) for start, stop in pairwise(ends)]


def part(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Return elements ``start`` to ``stop`` - 1 along an axis as a view. Quantized tensors stay quantized.

    Quantized rows can be split only between blocks.

    >>> import lbrx
    >>> part(lbrx.tensor(np.ones((2, 96), np.float32)).quantize("q8_0").realize(), 1, 32, 96)
    Tensor(q8_0, shape=(2, 64), device=cpu, in memory)
    """
    along = normalize_axis(axis, tensor.ndim)
    size, unit = tensor.shape[along], _unit(tensor, along)
    if not 0 <= start <= stop <= size or start % unit or (stop % unit and stop != size):
        blocks = f" that are multiples of the block size {unit}" if unit > 1 else ""
        raise ShapeError(
            f"cannot take elements {start} to {stop} of axis {along} of a tensor of shape {tensor.shape}; "
            f"expected bounds from 0 to {size}{blocks}"
        )
    return _part(tensor, along, start, stop)


def _unit(tensor: Tensor, axis: int) -> int:
    """Return the number of elements along an axis that cannot be separated."""
    blocks = tensor.encoded().expr
    is_cut = isinstance(blocks, Blocks) and is_codec(blocks.codec) and axis == tensor.ndim - 1
    return codec(tensor.type_name).block_elements if is_cut else 1


def _part(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    blocks = tensor.encoded().expr
    if not isinstance(blocks, Blocks) or not is_codec(blocks.codec) or 0 < axis < tensor.ndim - 1:
        return tensor[(*(slice(None) for _ in range(axis)), slice(start, stop))]
    block_codec = codec(blocks.codec)
    shape = (*tensor.shape[:axis], stop - start, *tensor.shape[axis + 1 :])
    if axis == 0:
        before = block_codec.nbytes((start, *tensor.shape[1:]))
        storage = blocks.storage.piece(before, block_codec.nbytes(shape))
    else:
        storage = _block_columns(blocks, block_codec, start, stop)
    return Tensor(Blocks(storage, blocks.codec, shape), TensorMetadata(tensor.name, tensor.quantization))


def _block_columns(blocks: Blocks, block_codec: Codec, start: int, stop: int) -> Storage:
    row_bytes = block_codec.nbytes(blocks.shape[-1:])
    rows = blocks.storage.nbytes // row_bytes
    return BlockColumns(
        blocks.storage, rows, row_bytes, block_codec.nbytes((start,)), block_codec.nbytes((stop - start,))
    )


def matrix(stack: Tensor, number: int) -> Tensor:
    """Return one matrix of a stack [count, m, k], such as one expert's weight. Quantized tensors stay quantized.

    >>> import lbrx
    >>> matrix(lbrx.tensor(np.ones((4, 2, 32), np.float32)).quantize("q8_0").realize(), 3)
    Tensor(q8_0, shape=(2, 32), device=cpu, in memory)
    """
    if stack.ndim != 3 or not -stack.shape[0] <= number < stack.shape[0]:
        raise ShapeError(f"there is no matrix {number} in a tensor of shape {stack.shape}; expected [count, m, k]")
    number %= stack.shape[0]
    one = _part(stack, 0, number, number + 1)
    if not isinstance(one.expr, Blocks):
        return Tensor(one[0].expr, stack.metadata)
    return Tensor(Blocks(one.expr.storage, one.expr.codec, one.shape[1:]), one.metadata)


def gather(shards: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join shards into the whole tensor. Quantized shards are decoded.

    >>> import lbrx
    >>> whole = lbrx.tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> gather(shard(whole, 2, axis=1), axis=1).numpy().tolist()
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    """
    if not shards:
        raise UsageError("cannot gather: there are no shards")
    return concatenate([one.dequantize() for one in shards], axis)


def column_parallel_linear(x: Values, shards: Sequence[Tensor], bias: Values | None = None) -> Floats:
    """`linear` with a weight that is split along axis 0.

    For up to four vectors, the result is bit for bit that of the whole weight. For more, the bound of `linear` holds.

    >>> import lbrx
    >>> weight = lbrx.tensor(np.eye(4, dtype=np.float32))
    >>> column_parallel_linear(np.arange(4, dtype=np.float32), shard(weight, 2, axis=0))
    array([0., 1., 2., 3.], dtype=float32)
    """
    values = floats(x)
    out = np.concatenate([linear(values, one) for one in shards], axis=-1)
    return out if bias is None else out + row_vector(bias, out.shape[-1], "the bias of linear")


def row_parallel_linear(x: Values, shards: Sequence[Tensor], bias: Values | None = None) -> Floats:
    """`linear` with a weight that is split along axis 1. The bound of `linear` holds, plus one rounding per shard.

    >>> import lbrx
    >>> weight = lbrx.tensor(np.ones((1, 4), np.float32))
    >>> row_parallel_linear(np.arange(4, dtype=np.float32), shard(weight, 2, axis=1))
    array([6.], dtype=float32)
    """
    values = floats(x)
    columns = [one.shape[1] for one in shards]
    if values.ndim == 0 or values.shape[-1] != sum(columns):
        raise ShapeError(
            f"activations of shape {values.shape} do not match shards with {' + '.join(map(str, columns))} inputs"
        )
    ends = [0, *accumulate(columns)]
    out = np.zeros((*values.shape[:-1], shards[0].shape[0]), np.float32)
    for one, (start, stop) in zip(shards, pairwise(ends), strict=True):
        out += linear(values[..., start:stop], one)
    return out if bias is None else out + row_vector(bias, out.shape[-1], "the bias of linear")
