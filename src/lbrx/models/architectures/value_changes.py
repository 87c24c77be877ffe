"""Convert the values of a tensor between Hugging Face and GGUF, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.records import HeadOrder, Weight
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.creation import stack
from lbrx.tensors.storage_views import GatheredStorage, JoinedStorage
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.tensor import tensor as as_tensor

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


def ordered(tensor: Tensor, order: HeadOrder, config: Config, *, back: bool = False) -> Tensor:
    """Return a tensor with its heads in the order of GGUF, or ``back`` in that of Hugging Face."""
    groups, heads = config.count(order.groups), config.count(order.heads)
    if groups == heads or heads % groups:
        return tensor
    size, shape = config.size(order.size), tensor.shape
    numbers = np.arange(heads).reshape(groups, -1).T.reshape(-1)
    if back:
        numbers = np.argsort(numbers)
    if order.axis == 0:
        first = config.size(order.first)
        rows = (numbers[:, None] * size + np.arange(size)).reshape(-1) + first
        matrix = tensor if tensor.ndim == 2 else tensor.reshape(shape[0], -1)
        picked = picked_rows(matrix, np.concatenate([np.arange(first), rows]))
        return picked if tensor.ndim == 2 else picked.reshape(shape)
    runs = (np.arange(shape[0])[:, None] * heads + numbers).reshape(-1)
    blocks = _ggml_blocks(tensor)
    if blocks is not None and size % codec(blocks.codec).block_elements:
        tensor = tensor.dequantize()
    return reshaped(picked_rows(reshaped(tensor, (shape[0] * heads, size)), runs), shape)


def _factors(weight: Weight, config: Config, type_name: str) -> Iterator[float | Tensor]:
    """Yield the factors that values in GGUF include, but for ones."""
    for scale in weight.gguf_scales:
        if isinstance(scale, str):
            factor = config.real(scale)
            if factor != 1:
                yield float(np.float32(factor))
            continue
        factors = [np.float32(config.real(expression)) for _, expression in scale]
        if any(each != 1 for each in factors):
            column = np.repeat(np.array(factors, np.float32), config.shape([size for size, _ in scale]))
            yield as_tensor(column[:, None]).to(type_name)


def to_gguf(tensor: Tensor, weight: Weight, config: Config) -> Tensor:
    """Return the values of a tensor as GGUF stores them.

    llama.cpp rotates adjacent elements of a head, transformers those that are half a head apart. The norms of
    Gemma multiply by 1 + weight; GGUF stores the sum. GPT-2 stores matrices transposed. GPT-NeoX stores queries, keys
    and values of each head next to each other; GGUF has all queries first, then all keys.
    The decays of state spaces are stored as logarithms of their negation.
    """
    if weight.grouped_by is not None:
        return picked_rows(tensor, _separate_rows(tensor.shape[0], weight.grouped_by, config))
    if weight.order is not None:
        tensor = ordered(tensor, weight.order, config)
    if weight.is_log:
        return -tensor.to("f32").exp()
    for factor in _factors(weight, config, "f32"):
        tensor = tensor.to("f32") * factor
    if weight.is_transposed:
        return tensor.T
    if weight.paired_by is not None:
        return picked_rows(tensor, pair_rows(tensor.shape[0], config.count(weight.paired_by)))
    return tensor.to("f32") + 1 if weight.adds_one else tensor


def to_hf(tensor: Tensor, weight: Weight, config: Config) -> Tensor:
    """Return the inverse of ``to_gguf``. Subtracting 1 in f64 is exact; logarithms and quotients are not."""
    if weight.grouped_by is not None:
        return picked_rows(tensor, np.argsort(_separate_rows(tensor.shape[0], weight.grouped_by, config)))
    for factor in _factors(weight, config, "f64"):
        tensor = tensor.to("f64") / factor
    if weight.is_log:
        tensor = (-tensor.to("f64")).log()
    if weight.order is not None:
        return ordered(tensor, weight.order, config, back=True)
    if weight.is_transposed:
        return tensor.T
    if weight.paired_by is not None:
        return picked_rows(tensor, half_rows(tensor.shape[0], config.count(weight.paired_by)))
    return tensor.to("f64") - 1 if weight.adds_one else tensor
