"""Embeddings of several models brought to one vocabulary, as expressions that gather rows while they are read.

A row that a model lacks is taken from the models that have it: its only owner, else the base, else the mean of all
owners. Only models that are merged into the tensor count, and the base; where none of them has the token, the others
of the recipe do. What nobody has is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError
from lbrx.jobs.merge.vocabulary.records import NO_ROW, RowNumbers, VocabularyPlan
from lbrx.tensors.creation import full, where
from lbrx.tensors.tensor import Tensor, tensor

_ZERO = -1  # donors that are not a model
_MEAN = -2

_MEAN_BLOCK_BYTES = 16 << 20

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Donors:
    """For every row of the output the model that lends it to those that lack it, or _ZERO or _MEAN.

    ``owners`` are the models that the mean is taken over, row by row.
    """

    model: RowNumbers
    row: RowNumbers
    owners: Mapping[int, Mask]
    is_forced: Mask


class Alignment:
    """The tensors of one output tensor, such as the embeddings of all models."""

    def __init__(self, plan: VocabularyPlan, models: Sequence[int], tensors: Mapping[int, Tensor]) -> None:
        for model, embedding in tensors.items():
            needed = int(plan.row_numbers[model].max(initial=NO_ROW)) + 1
            if embedding.shape[0] < needed:
                raise ShapeError(
                    f"tensor {embedding.name!r} of model {model} has {embedding.shape[0]} rows, "
                    f"but its tokens need {needed}"
                )
        self._plan = plan
        self._tensors = tensors
        self._donors = _donors(plan, models, tuple(tensors))

    def tensor(self, model: int) -> Tensor:
        """A model's tensor with the rows of the output."""
        plan, own = self._plan, self._tensors[model]
        numbers = plan.row_numbers[model]
        is_own = (numbers != NO_ROW) & ~self._donors.is_forced
        if is_own.all():
            is_same = plan.size <= own.shape[0] and np.array_equal(numbers, np.arange(plan.size))
            return (own if plan.size == own.shape[0] else own[: plan.size]) if is_same else own.rows(numbers)
        rows = self._rows(model, np.arange(plan.size))
        is_padding = ~plan.is_token & (numbers == NO_ROW)
        return where(_column(is_padding, own.ndim), self._mean_row(model), rows) if is_padding.any() else rows

    def _rows(self, model: int, wanted: RowNumbers) -> Tensor:
        """Some rows of the output as a model has them; padding that it lacks is zero."""
        donors, own = self._donors, self._tensors[model]
        numbers = self._plan.row_numbers[model][wanted]
        is_own = (numbers != NO_ROW) & ~donors.is_forced[wanted]
        donor = np.where(is_own, model, donors.model[wanted])
        lent_rows = np.where(is_own, numbers, donors.row[wanted])
        if _ZERO in donor or not donor.size:
            result = full((wanted.size, *own.shape[1:]), 0.0, own.dtype.compute)
        else:
            result = None
        if _MEAN in donor:
            result = _chosen(donor == _MEAN, self._mean_of_owners(wanted, donor == _MEAN), result)
        for lender in sorted(set(donor.tolist()) - {_ZERO, _MEAN}):
            is_lent = donor == lender
            result = _chosen(is_lent, self._tensors[lender].rows(np.where(is_lent, lent_rows, 0)), result)
        assert result is not None
        return result

    def _mean_of_owners(self, wanted: RowNumbers, is_mean: Mask) -> Tensor:
        total: Tensor | None = None
        count = np.zeros(wanted.size, np.float32)
        for owner, is_owner in self._donors.owners.items():
            is_used = is_owner[wanted] & is_mean
            if not is_used.any():
                continue
            embedding = self._tensors[owner]
            numbers = np.where(is_used, self._plan.row_numbers[owner][wanted], 0)
            part = where(_column(is_used, embedding.ndim), embedding.rows(numbers), 0.0)
            total = part if total is None else total + part
            count += is_used
        assert total is not None
        return total / tensor(np.maximum(count, 1).reshape(-1, *(1,) * (total.ndim - 1)))

    def _mean_row(self, model: int) -> Tensor:
        """The mean of a model's rows of all tokens, read block by block."""
        own = self._tensors[model]
        tokens = np.flatnonzero(self._plan.is_token)
        row_bytes = 4 * int(np.prod(own.shape[1:], dtype=np.int64))
        block_rows = max(1, _MEAN_BLOCK_BYTES // max(row_bytes, 1))
        total = np.zeros(own.shape[1:], np.float64)
        for start in range(0, tokens.size, block_rows):
            block = self._rows(model, tokens[start : start + block_rows]).to(own.dtype.compute)
            total += block.numpy().sum(axis=0, dtype=np.float64)
        mean = (total / max(tokens.size, 1)).astype(own.dtype.compute.numpy)
        return tensor(mean.reshape(1, *own.shape[1:]))


def _donors(plan: VocabularyPlan, models: Sequence[int], available: Sequence[int]) -> _Donors:
    first = [index for index in available if index in models or index == plan.base]
    others = [index for index in available if index not in first]
    own = {index: plan.row_numbers[index] != NO_ROW for index in available}
    is_owned = np.logical_or.reduce([own[index] for index in first])  # the merged models are among them
    owners = {index: own[index] for index in first} | {index: own[index] & ~is_owned for index in others}
    donor = _by_rule(plan, owners)
    row = np.zeros(plan.size, np.int64)
    for index in available:
        row = np.where(donor == index, plan.row_numbers[index], row)
    is_forced = np.zeros(plan.size, bool)
    for override in plan.overrides:
        if override.model is not None and override.model not in available:
            raise UsageError(
                f"token id {override.token_id} takes its row from model {override.model}, which has no such tensor"
            )
        donor[override.token_id] = _ZERO if override.model is None else override.model
        row[override.token_id] = override.row
        is_forced[override.token_id] = override.is_forced
    return _Donors(donor, row, owners, is_forced)


def _by_rule(plan: VocabularyPlan, owners: Mapping[int, Mask]) -> RowNumbers:
    """The only owner, else the base, else the mean; zero where there is no owner, and for padding."""
    donor = np.full(plan.size, _ZERO, np.int64)
    count = np.zeros(plan.size, np.int64)
    for index, is_owner in owners.items():
        donor[is_owner] = index
        count += is_owner
    donor[count > 1] = _MEAN
    if plan.base is not None and plan.base in owners:
        donor[(count > 1) & owners[plan.base]] = plan.base
    donor[~plan.is_token] = _ZERO
    return donor


def _chosen(mask: Mask, chosen: Tensor, otherwise: Tensor | None) -> Tensor:
    return chosen if otherwise is None else where(_column(mask, chosen.ndim), chosen, otherwise)


def _column(mask: Mask, axes: int) -> Tensor:
    """One truth value per row, to be broadcast along the row."""
    return tensor(mask.reshape(-1, *(1,) * (axes - 1)))
