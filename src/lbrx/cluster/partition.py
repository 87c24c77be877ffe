"""How a tensor is cut into shards: along an axis, by bytes, or into given sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs.codec import codec, is_codec
from lbrx.tensors.dtype import DType, dtype
from lbrx.tensors.shape import Shape


@dataclass(frozen=True, slots=True)
class Partition:
    """An axis, and where its shards begin and end.

    >>> Partition.by_axis((10, 4), 0, parts=3).bounds
    (0, 4, 7, 10)
    >>> Partition.uneven((10, 4), 0, sizes=(1, 9)).shapes((10, 4))
    [(1, 4), (9, 4)]
    """

    axis: int
    bounds: tuple[int, ...]

    @classmethod
    def by_axis(cls, shape: Shape, axis: int, parts: int, *, unit: int = 1) -> Partition:
        """Shards whose sizes differ by ``unit`` at most, the larger ones first.

        Rows of quantized tensors are cut between blocks: then ``unit`` is the number of elements of a block.

        >>> Partition.by_axis((4, 160), 1, parts=2, unit=32).bounds
        (0, 96, 160)
        """
        length = _length(shape, axis)
        if unit < 1 or length % unit:
            raise ShapeError(f"an axis of {length} has no whole number of blocks of {unit}")
        units = length // unit
        if parts < 1 or parts > max(units, 1):
            blocks = f" in blocks of {unit}" if unit > 1 else ""
            raise UsageError(
                f"{parts} parts of an axis of {length}{blocks} were asked for; expected 1 to {max(units, 1)}"
            )
        sizes = [unit * (units // parts + (number < units % parts)) for number in range(parts)]
        return cls(axis, tuple(accumulate(sizes, initial=0)))

    @classmethod
    def by_bytes(cls, shape: Shape, type_name: DType | str, max_bytes: int, axis: int = 0) -> Partition:
        """As many indices of an axis in a shard as fit into ``max_bytes``, at least one; of a quantized row, one block.

        >>> Partition.by_bytes((10, 4), "f32", 48).bounds
        (0, 3, 6, 9, 10)
        >>> Partition.by_bytes((2, 96), "q8_0", 68, axis=1).bounds
        (0, 32, 64, 96)
        """
        length = _length(shape, axis)
        if max_bytes < 1:
            raise UsageError(f"shards of {max_bytes} bytes were asked for; expected at least 1")
        unit = (
            codec(type_name).block_elements
            if isinstance(type_name, str) and is_codec(type_name) and axis == len(shape) - 1
            else 1
        )
        unit_bytes = _nbytes(type_name, (*shape[:axis], unit, *shape[axis + 1 :]))
        step = max(max_bytes // max(unit_bytes, 1), 1) * unit
        return cls(axis, (*range(0, length, step), length) if length else (0, 0))

    @classmethod
    def uneven(cls, shape: Shape, axis: int, sizes: Sequence[int]) -> Partition:
        """Shards of these sizes."""
        length = _length(shape, axis)
        if sum(sizes) != length or any(size < 0 for size in sizes):
            raise ShapeError(f"shards of {tuple(sizes)} along an axis of {length}; expected sizes that add up to it")
        return cls(axis, tuple(accumulate(sizes, initial=0)))

    @property
    def parts(self) -> int:
        return len(self.bounds) - 1

    def ranges(self) -> list[tuple[int, int]]:
        """The first and one past the last index of each shard."""
        return list(pairwise(self.bounds))

    def shapes(self, shape: Shape) -> list[Shape]:
        """The shape of each shard."""
        return [(*shape[: self.axis], high - low, *shape[self.axis + 1 :]) for low, high in self.ranges()]


def _length(shape: Shape, axis: int) -> int:
    if not 0 <= axis < len(shape):
        raise ShapeError(f"a tensor of shape {shape} has no axis {axis}")
    return shape[axis]


def _nbytes(type_name: DType | str, shape: Shape) -> int:
    return (
        codec(type_name).nbytes(shape)
        if isinstance(type_name, str) and is_codec(type_name)
        else dtype(type_name).nbytes(prod(shape))
    )
