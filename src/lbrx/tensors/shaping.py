"""Views of tensors: indexing, axes and shapes. Nothing is copied or computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lbrx.errors import ShapeError, UsageError
from lbrx.tensors import views
from lbrx.tensors.functions import function
from lbrx.tensors.reductions import Reductions
from lbrx.tensors.shape import Index, checked_shape, normalize_axis


class Shaping(Reductions):
    """Views of the elements of a tensor."""

    __slots__ = ()

    def __len__(self) -> int:
        if not self.expr.shape:
            raise ShapeError("a tensor without axes has no length")
        return self.expr.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Index | Sequence[int] | npt.NDArray[Any]) -> Self:
        """Return a view: basic indexing (integers, slices, None, Ellipsis), or a list of row numbers.

        >>> import lbrx
        >>> x = lbrx.tensor([[1, 2], [3, 4], [5, 6]])
        >>> x[1:, 0].tolist(), x[[2, 0]].tolist()
        ([3, 5], [[5, 6], [1, 2]])
        """
        if isinstance(index, Reductions) or (isinstance(index, np.ndarray) and index.dtype == bool):
            raise ShapeError("tensors do not support boolean indexing; use lbrx.where() to choose elements")
        if isinstance(index, (list, np.ndarray)) and np.ndim(index):
            return self.rows(index)
        return self._made(views.sliced(self.expr, index))  # type: ignore[arg-type]

    def view(self, *ranges: range | slice) -> Self:
        """Return a view of ranges of the axes: ``t.view(range(1, 3))`` is ``t[1:3]``, but ranges must fit.

        Like every slice, the view is a tensor over the same storage. It reads and copies no data.

        >>> import lbrx
        >>> x = lbrx.tensor([[1, 2], [3, 4], [5, 6]])
        >>> x.view(range(1, 3)).tolist(), x.view(range(3), range(1)).tolist()
        ([[3, 4], [5, 6]], [[1], [3], [5]])
        """
        shape = self.expr.shape
        if len(ranges) > len(shape):
            raise ShapeError(f"{len(ranges)} ranges for a tensor of shape {shape}; expected at most one for each axis")
        return self[tuple(_range_as_slice(each, axis, shape[axis]) for axis, each in enumerate(ranges))]

    def transpose(self, *axes: int) -> Self:
        """Reorder the axes. The default reverses them.

        >>> import lbrx
        >>> x = lbrx.zeros((2, 3, 4))
        >>> x.transpose().shape, x.transpose(0, 2, 1).shape
        ((4, 3, 2), (2, 4, 3))
        """
        return self._made(views.transposed(self.expr, axes or tuple(reversed(range(len(self.expr.shape))))))

    def permute(self, *axes: int) -> Self:
        """Reorder the axes.

        >>> import lbrx
        >>> lbrx.zeros((2, 3, 4)).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        return self._made(views.transposed(self.expr, axes))

    @property
    def T(self) -> Self:
        """The tensor with its axes reversed.

        >>> import lbrx
        >>> lbrx.zeros((2, 3)).T.shape
        (3, 2)
        """
        return self.transpose()

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """Return the same elements in another shape. One size may be -1.

        >>> import lbrx
        >>> lbrx.zeros((2, 6)).reshape(3, -1).shape
        (3, 4)
        """
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return self._made(views.reshaped(self.expr, [int(size) for size in sizes]))  # type: ignore[arg-type]

    def flatten(self) -> Self:
        """Return all elements as a vector.

        >>> import lbrx
        >>> lbrx.zeros((2, 3)).flatten().shape
        (6,)
        """
        return self.reshape(-1 if self.expr.shape and 0 not in self.expr.shape else int(not self.expr.shape))

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Self:
        """Remove the axes of size 1, or only the given ones.

        >>> import lbrx
        >>> lbrx.zeros((1, 3, 1)).squeeze().shape, lbrx.zeros((1, 3, 1)).squeeze(0).shape
        ((3,), (3, 1))
        """
        shape = self.expr.shape
        given = (axis,) if isinstance(axis, int) else axis
        dropped = [a for a, size in enumerate(shape) if size == 1] if given is None else given
        axes = {normalize_axis(each, len(shape)) for each in dropped}
        for each in sorted(axes):
            if shape[each] != 1:
                raise ShapeError(f"axis {each} has size {shape[each]}; only axes of size 1 can be squeezed")
        return self.reshape([size for number, size in enumerate(shape) if number not in axes])

    def expand_dims(self, axis: int | Sequence[int]) -> Self:
        """Insert axes of size 1 at these positions of the result.

        >>> import lbrx
        >>> lbrx.zeros((2, 3)).expand_dims(0).shape, lbrx.zeros((2, 3)).expand_dims((0, -1)).shape
        ((1, 2, 3), (1, 2, 3, 1))
        """
        given = (axis,) if isinstance(axis, int) else tuple(axis)
        rank = len(self.expr.shape) + len(given)
        axes = {normalize_axis(each, rank) for each in given}
        if len(axes) < len(given):
            raise ShapeError(f"axis {axis} contains the same axis twice")
        sizes = iter(self.expr.shape)
        return self.reshape([1 if number in axes else next(sizes) for number in range(rank)])

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Repeat the tensor to a shape without copying.

        >>> import lbrx
        >>> lbrx.tensor([1, 2]).broadcast_to((2, 2)).tolist()
        [[1, 2], [1, 2]]
        """
        return self._made(views.broadcast(self.expr, checked_shape(shape)))

    def split(self, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Self]:
        """Split into views of equal parts along an axis, or at the given indices.

        >>> import lbrx
        >>> [part.tolist() for part in lbrx.arange(6).split(3)], [len(part) for part in lbrx.arange(6).split([1, 4])]
        ([[0, 1], [2, 3], [4, 5]], [1, 3, 2])
        """
        number = normalize_axis(axis, len(self.expr.shape))
        size = self.expr.shape[number]
        if isinstance(indices_or_sections, int):
            if indices_or_sections < 1 or size % indices_or_sections:
                raise ShapeError(
                    f"cannot split {size} elements along axis {axis} into {indices_or_sections} equal parts"
                )
            step = size // indices_or_sections
            indices = list(range(step, size, step)) if size else [0] * (indices_or_sections - 1)
        else:
            indices = [int(index) for index in indices_or_sections]
        before = (slice(None),) * number
        return [self[(*before, slice(a, b))] for a, b in zip([0, *indices], [*indices, size], strict=True)]

    def rows(self, numbers: Sequence[int] | npt.NDArray[Any]) -> Self:
        """Return the rows (axis 0) with these numbers. The view gathers them while it is read.

        >>> import lbrx
        >>> lbrx.tensor([[1, 2], [3, 4]]).rows([1, 1, 0]).tolist()
        [[3, 4], [3, 4], [1, 2]]
        """
        return self._made(views.gathered(self.expr, np.asarray(numbers, dtype=np.int64)))

    def shard(self, count: int, axis: int = 0) -> list[Self]:
        """Split the tensor into views along an axis, as evenly as possible. `lbrx.gather` joins them again.

        Shards of a quantized tensor stay quantized. They are split between blocks.

        >>> import lbrx
        >>> [part.shape for part in lbrx.zeros((5, 2)).shard(2)]
        [(3, 2), (2, 2)]
        """
        shards: list[Self] = function("shard")(self, count, axis)
        return shards


def _range_as_slice(given: range | slice, axis: int, size: int) -> slice:
    if isinstance(given, slice):
        return given
    if not isinstance(given, range):
        raise UsageError(f"view() takes ranges, not {given!r}; reshape() changes the shape, raw() gives the bytes")
    if not given:
        return slice(0, 0)
    low, high = min(given[0], given[-1]), max(given[0], given[-1])
    if low < 0 or high >= size:
        raise ShapeError(f"{given} does not fit into axis {axis} of size {size}")
    return slice(given.start, None if given.stop < 0 else given.stop, given.step)
