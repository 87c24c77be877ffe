"""What happens to the values of a tensor on its way between Hugging Face and GGUF, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.models.architectures.dimensions import Dimensions
from lbrx.tensors.coded import Blocks
from lbrx.tensors.creation import concat
from lbrx.tensors.storage_views import GatheredStorage, JoinedStorage, storage_piece
from lbrx.tensors.tensor import Tensor

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of values and its inverse. ``is_exact`` tells whether both are exact in the tensor's own type."""

    to_gguf: Callable[[Tensor, Dimensions], Tensor]
    to_hf: Callable[[Tensor, Dimensions], Tensor]
    is_exact: bool = True


def pair_rows(rows: int, heads: int) -> RowNumbers:
    """Which rows of a projection stand where when the halves of each head become pairs of neighbours.

    >>> pair_rows(8, heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return np.arange(rows, dtype=np.int64).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def half_rows(rows: int, heads: int) -> RowNumbers:
    """The inverse of ``pair_rows``.

    >>> pair_rows(8, heads=1)[half_rows(8, heads=1)].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return np.arange(rows, dtype=np.int64).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def picked_rows(tensor: Tensor, numbers: RowNumbers) -> Tensor:
    """The rows with these numbers, gathered as they are read; those of ggml's types stay in their blocks.

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
    """Tensors of one type and shape as one with an axis more, read one after the other.

    >>> import lbrx
    >>> stacked([lbrx.tensor([1, 2], "bf16"), lbrx.tensor([3, 4], "bf16")]).shape
    (2, 2)
    """
    blocks = [stored for stored in map(_ggml_blocks, tensors) if stored is not None]
    if len(blocks) < len(tensors):
        return concat([tensor[None] for tensor in tensors])
    joined = JoinedStorage([each.storage for each in blocks])
    return Tensor(Blocks(joined, blocks[0].codec, (len(blocks), *blocks[0].shape)), tensors[0].metadata)


def stack_part(tensor: Tensor, number: int) -> Tensor:
    """One tensor of a stack.

    >>> import lbrx
    >>> stack_part(lbrx.tensor([[1, 2], [3, 4]], "f32"), 1).numpy()
    array([3., 4.], dtype=float32)
    """
    blocks = _ggml_blocks(tensor)
    if blocks is None:
        return tensor[number]
    part_bytes = blocks.storage.nbytes // tensor.shape[0]
    piece = storage_piece(blocks.storage, number * part_bytes, part_bytes)
    return Tensor(Blocks(piece, blocks.codec, tensor.shape[1:]), tensor.metadata)


def _ggml_blocks(tensor: Tensor) -> Blocks | None:
    """The blocks of a tensor if each of its rows is a run of them."""
    expr = tensor.expr
    return expr if isinstance(expr, Blocks) and expr.codec in GGML_TYPES else None


def _to_pairs(heads: Callable[[Dimensions], int]) -> Change:
    return Change(
        lambda tensor, sizes: picked_rows(tensor, pair_rows(tensor.shape[0], heads(sizes))),
        lambda tensor, sizes: picked_rows(tensor, half_rows(tensor.shape[0], heads(sizes))),
    )


# llama.cpp rotates neighbouring elements of a head, transformers those that are half a head apart.
HALVES_TO_PAIRS_QUERY = _to_pairs(lambda sizes: sizes.heads)
HALVES_TO_PAIRS_KEY = _to_pairs(lambda sizes: sizes.key_heads)
# The norms of Gemma multiply by 1 + weight; GGUF has the sum. It is undone in f64, where the difference is exact.
SHIFTED = Change(
    lambda tensor, _: tensor.to("f32") + 1,
    lambda tensor, _: tensor.to("f64") - 1,
    is_exact=False,
)
