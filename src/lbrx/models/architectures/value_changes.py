"""Convert the values of a tensor between Hugging Face and GGUF, in both directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import Weight
from lbrx.tensors.coded import Blocks
from lbrx.tensors.creation import stack
from lbrx.tensors.storage_views import GatheredStorage, JoinedStorage
from lbrx.tensors.tensor import Tensor

RowNumbers = npt.NDArray[np.int64]


def pair_rows(rows: int, heads: int) -> RowNumbers:
    """Return the row order of a projection that interleaves the halves of each head.

    >>> pair_rows(8, heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return np.arange(rows, dtype=np.int64).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def half_rows(rows: int, heads: int) -> RowNumbers:
    """Return the inverse of ``pair_rows``.

    >>> pair_rows(8, heads=1)[half_rows(8, heads=1)].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return np.arange(rows, dtype=np.int64).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def separate_rows(rows: int, heads: int, key_heads: int) -> RowNumbers:
    """Return the row order that separates queries, keys and values, which are stored in groups.

    A group is a head of keys: its heads of queries, the key and the value.

    >>> separate_rows(8, heads=4, key_heads=2).tolist()
    [0, 1, 4, 5, 2, 6, 3, 7]
    """
    group = heads // key_heads
    numbers = np.arange(rows, dtype=np.int64).reshape(key_heads, group + 2, -1)
    return np.concatenate([part.reshape(-1) for part in (numbers[:, :group], numbers[:, group], numbers[:, group + 1])])


def _separate_rows(rows: int, grouped_by: tuple[str, str], config: Config) -> RowNumbers:
    heads, key_heads = (config.size(each) for each in grouped_by)
    if not key_heads or heads % key_heads or rows % (heads + 2 * key_heads):
        raise config.wrong(f"{rows} rows are not the queries, keys and values of {heads} and {key_heads} heads")
    return separate_rows(rows, heads, key_heads)


def picked_rows(tensor: Tensor, numbers: RowNumbers) -> Tensor:
    """Return the rows with these numbers, gathered on reading; ggml blocks are not decoded.

    >>> import lbrx
    >>> picked_rows(lbrx.tensor([[1, 2], [3, 4]], "f32"), np.array([1, 0])).numpy()
    array([[3., 4.],
           [1., 2.]], dtype=float32)
    """
    blocks = _ggml_blocks(tensor)
    if blocks is None:
        return tensor.rows(numbers)
    row_bytes = blocks.storage.nbytes // tensor.shape[0]
    gathered = GatheredStorage(blocks.storage, row_bytes, numbers)
    return Tensor(Blocks(gathered, blocks.codec, (numbers.size, *tensor.shape[1:])), tensor.metadata)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one type and shape along a new axis; they are read one after the other.

    >>> import lbrx
    >>> stacked([lbrx.tensor([1, 2], "bf16"), lbrx.tensor([3, 4], "bf16")]).shape
    (2, 2)
    """
    blocks = [stored for stored in map(_ggml_blocks, tensors) if stored is not None]
    if len(blocks) < len(tensors):
        return stack(tensors)
    joined = JoinedStorage([each.storage for each in blocks])
    return Tensor(Blocks(joined, blocks[0].codec, (len(blocks), *blocks[0].shape)), tensors[0].metadata)


def stack_part(tensor: Tensor, number: int) -> Tensor:
    """Return one tensor of a stack.

    >>> import lbrx
    >>> stack_part(lbrx.tensor([[1, 2], [3, 4]], "f32"), 1).numpy()
    array([3., 4.], dtype=float32)
    """
    blocks = _ggml_blocks(tensor)
    if blocks is None:
        return tensor[number]
    part_bytes = blocks.storage.nbytes // tensor.shape[0]
    piece = blocks.storage.piece(number * part_bytes, part_bytes)
    return Tensor(Blocks(piece, blocks.codec, tensor.shape[1:]), tensor.metadata)


def reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor with another shape; rows of ggml blocks must stay whole.

    >>> import lbrx
    >>> reshaped(lbrx.tensor([[1, 2], [3, 4]], "f32"), (4,)).shape
    (4,)
    """
    blocks = _ggml_blocks(tensor)
    if blocks is None:
        return tensor.reshape(*shape)
    return Tensor(Blocks(blocks.storage, blocks.codec, tuple(shape)), tensor.metadata)


def _ggml_blocks(tensor: Tensor) -> Blocks | None:
    """Return the blocks of a tensor if each of its rows consists of whole blocks."""
    expr = tensor.encoded().expr
    return expr if isinstance(expr, Blocks) and expr.codec in GGML_TYPES else None


def to_gguf(tensor: Tensor, weight: Weight, config: Config) -> Tensor:
    """Return the values of a tensor as GGUF stores them.

    llama.cpp rotates adjacent elements of a head, transformers those that are half a head apart. The norms of
    Gemma multiply by 1 + weight; GGUF stores the sum. GPT-2 stores matrices transposed. GPT-NeoX stores queries, keys
    and values of each head next to each other; GGUF has all queries first, then all keys.
    """
    if weight.grouped_by is not None:
        return picked_rows(tensor, _separate_rows(tensor.shape[0], weight.grouped_by, config))
    if weight.is_transposed:
        return tensor.T
    if weight.paired_by is not None:
        return picked_rows(tensor, pair_rows(tensor.shape[0], config.count(weight.paired_by)))
    return tensor.to("f32") + 1 if weight.adds_one else tensor


def to_hf(tensor: Tensor, weight: Weight, config: Config) -> Tensor:
    """Return the inverse of ``to_gguf``. Subtracting 1 in f64 is exact."""
    if weight.grouped_by is not None:
        return picked_rows(tensor, np.argsort(_separate_rows(tensor.shape[0], weight.grouped_by, config)))
    if weight.is_transposed:
        return tensor.T
    if weight.paired_by is not None:
        return picked_rows(tensor, half_rows(tensor.shape[0], config.count(weight.paired_by)))
    return tensor.to("f64") - 1 if weight.adds_one else tensor
