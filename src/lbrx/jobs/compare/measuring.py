"""Measuring two models against each other in constant memory: a tensor is walked in runs of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from lbrx.files.output.options import CountCallback
from lbrx.jobs.compare.diff import diff_models
from lbrx.jobs.compare.records import BLOCK_ELEMENTS, BlockError, Comparison, sorted_by_error
from lbrx.ops.difference import Sums, compare
from lbrx.tensors.tensor import Tensor

DEFAULT_BLOCKS = 8
_RUN_ELEMENTS = 1 << 24  # of a tensor at a time


def compare_models(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    *,
    blocks: int = DEFAULT_BLOCKS,
    pattern: str | None = None,
    progress: CountCallback | None = None,
) -> Comparison:
    """How B differs from A, which is what it should be: every tensor that both have, and its worst ``blocks`` blocks.

    >>> import lbrx
    >>> a = {"w": lbrx.normal((4, 512), seed=1)}
    >>> found = compare_models(a, {"w": a["w"].quantize("q8_0")})
    >>> found.tensors[0].relative_error < 0.01, len(found.tensors[0].worst_blocks)
    (True, 8)
    """
    worst: dict[str, tuple[BlockError, ...]] = {}

    def measure(name: str, first: Tensor, second: Tensor, _base: Tensor | None) -> Sums:
        sums, worst[name] = compare_tensors(first, second, blocks)
        return sums

    models = diff_models(a, b, pattern=pattern, progress=progress, measure=measure)
    types = {diff.name: (_type_of(a, diff.name), _type_of(b, diff.name)) for diff in models.tensors}
    return Comparison(tuple(sorted_by_error(models, types, worst)), models)


def _type_of(model: Mapping[str, Tensor], name: str) -> str:
    from lbrx.jobs.compare.models import ComparedModel

    return model.type_of(name) if isinstance(model, ComparedModel) else model[name].type_name


def compare_tensors(a: Tensor, b: Tensor, blocks: int) -> tuple[Sums, tuple[BlockError, ...]]:
    """The sums over two tensors of one shape, and the blocks that differ most."""
    total = Sums()
    errors = np.empty(0)
    positions = np.empty((0, 3), np.int64)
    for row, first, second in _runs(_matrix(a), _matrix(b)):
        total += compare(first, second)
        for column, width, lengths in _block_lengths(first, second):
            row_numbers, block_numbers = np.divmod(np.arange(lengths.size), lengths.shape[1])
            starts = column + BLOCK_ELEMENTS * block_numbers
            blocks_here = np.stack([row + row_numbers, starts, starts + width], axis=1)
            errors, positions = _largest(np.append(errors, lengths), np.concatenate([positions, blocks_here]), blocks)
    average = (total.squares_a / max(-(-total.elements // BLOCK_ELEMENTS), 1)) ** 0.5
    return total, tuple(
        BlockError(row, first, end, _ratio(error, average))
        for (row, first, end), error in zip(positions.tolist(), errors.tolist(), strict=True)
        if error > 0 or error != error
    )


def _ratio(error: float, average: float) -> float:
    return error / average if average else float("inf")


def _matrix(tensor: Tensor) -> Tensor:
    """The values with two axes, as floats."""
    values = tensor.dequantize()
    floats = values if values.dtype.is_float else values.to("f64")
    if floats.ndim == 2:
        return floats
    return floats.reshape(1, -1) if floats.ndim < 2 else floats.reshape(-1, floats.shape[-1])


def _runs(a: Tensor, b: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    rows, columns = a.shape
    step = max(_RUN_ELEMENTS // max(columns, 1), 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield start, a[start:stop], b[start:stop]


def _block_lengths(a: Tensor, b: Tensor) -> Iterator[tuple[int, int, npt.NDArray[np.float64]]]:
    """The length of the difference in every block, row by row: first those of whole blocks, then those at the ends."""
    difference = a - b
    rows, columns = a.shape
    whole = columns // BLOCK_ELEMENTS
    if whole and rows:
        parts = difference[:, : whole * BLOCK_ELEMENTS].reshape(rows, whole, BLOCK_ELEMENTS)
        yield 0, BLOCK_ELEMENTS, parts.norm(axis=-1).numpy().astype(np.float64)
    end = whole * BLOCK_ELEMENTS
    if end < columns and rows:
        yield end, columns - end, difference[:, end:].norm(axis=-1, keepdims=True).numpy().astype(np.float64)


def _largest(
    errors: npt.NDArray[np.float64], positions: npt.NDArray[np.int64], count: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The largest errors, NaN above all, those of equal size in the order of their positions."""
    if errors.size > 4 * count and count:
        bound = np.partition(errors, errors.size - count)[errors.size - count]  # NaN is sorted to the end
        is_large = np.isnan(errors) | ~(errors < bound)
        errors, positions = errors[is_large], positions[is_large]
    keys = np.where(np.isnan(errors), np.inf, errors)
    order = np.lexsort((positions[:, 1], positions[:, 0], -keys))[:count]
    return errors[order], positions[order]
