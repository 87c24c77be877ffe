"""The rows of new tokens, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.blas import one_blas_thread
from lbrx.errors import UsageError
from lbrx.jobs.lora.svd import RowBlocks
from lbrx.jobs.transplant.neighbours import nearest_points, weights_of
from lbrx.jobs.transplant.options import SHARED_METHODS, TransplantOptions
from lbrx.jobs.transplant.pursuit import Pursuit
from lbrx.jobs.transplant.tokens import Matches, Vocabulary
from lbrx.memory import budget
from lbrx.models.tokenizers.tokenizer_file import library_errors
from lbrx.tensors.creation import normal
from lbrx.tensors.tensor import Tensor

BATCH = 128  # tokens; results depend on it only as far as BLAS rounds
_COVARIANCE_ROWS = 4096
_SMALL_NOISE = 0.02  # if the rows have no proper covariance

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Matrix:
    """An embedding or a head of the model, and that of the donor, which is None if the method does not read it."""

    name: str
    own: Tensor
    donor: Tensor | None
    is_head: bool


class RowMaker:
    """Makes the rows of one matrix for tokens that the model lacks."""

    def __init__(
        self, matrix: Matrix, matches: Matches, own: Vocabulary, donor: Vocabulary, options: TransplantOptions
    ) -> None:
        self._matrix, self._matches, self._options = matrix, matches, options
        self._own, self._donor = own, donor
        self._columns = matrix.own.shape[1]
        self._combine = self._maker()

    def batches(self) -> Iterator[Floats]:
        """Yield the rows of the new tokens in their order."""
        ids, options = self._matches.new_ids, self._options
        for start in range(0, ids.size, BATCH):
            batch = ids[start : start + BATCH]
            with budget().reserve(self._batch_bytes(batch.size), f"{batch.size} new rows of {self._matrix.name!r}"):
                rows = self._combine(start, batch)
                if options.noise:
                    rows = rows + options.noise * self._normal("noise", start, batch.size)
                yield (rows * options.scale).astype(np.float32)

    def _batch_bytes(self, size: int) -> int:
        if self._options.method not in SHARED_METHODS:
            return 16 * size * self._columns
        assert self._matrix.donor is not None
        columns, shared = self._matrix.donor.shape[1] + self._columns, self._matches.shared_donor.size
        distances = 4 * size * shared if self._options.method == "common_interpolation" else 0
        return 8 * size * self._options.k * columns + distances

    def _maker(self) -> Callable[[int, Numbers], npt.NDArray[Any]]:
        method = self._options.method
        if method in SHARED_METHODS:
            return self._shared_maker()
        if method == "subword":
            return self._subword_maker()
        if method == "mean":
            mean = _mean(self._matrix.own)
            return lambda _start, batch: np.broadcast_to(mean, (batch.size, self._columns))
        if method == "john_hewitt":
            return self._gaussian_maker()
        if method == "randn":
            return lambda start, batch: self._normal("rows", start, batch.size)
        return lambda _start, batch: np.zeros((batch.size, self._columns), np.float32)

    def _normal(self, what: str, start: int, count: int) -> Floats:
        shape = (self._matches.new_ids.size, self._columns)
        drawn = normal(shape, self._options.seed, f"{self._matrix.name} {what}")
        values: Floats = drawn[start : start + count].numpy()
        return values

    def _shared_maker(self) -> Callable[[int, Numbers], Doubles]:
        options, matches, donor = self._options, self._matches, self._matrix.donor
        assert donor is not None
        count = matches.shared_donor.size
        if count < options.k:
            raise UsageError(
                f"k is {options.k}, but the model and the donor share only {count} tokens; expected at most {count}, "
                "or a method that needs no shared tokens, such as subword"
            )
        points = RowBlocks(donor.rows(matches.shared_donor))

        def atoms_of(numbers: Numbers) -> Floats:
            atoms: Floats = donor.rows(matches.shared_donor[numbers.reshape(-1)]).to("f32").numpy()
            return atoms.reshape(*numbers.shape, -1)

        def combine(_start: int, batch: Numbers) -> Doubles:
            targets: Floats = donor.rows(batch).to("f32").numpy()
            if options.method == "omp":
                numbers, weights = Pursuit(points, targets, options.k).run(atoms_of)
            else:
                numbers, distances = nearest_points(points, targets, options.k, cosine=options.cosine)
                atoms = atoms_of(numbers)
                weights = weights_of(targets, atoms, distances, options.weights, cosine=options.cosine)
            return self._combined(matches.shared_own[np.maximum(numbers, 0)], weights)

        return combine

    def _combined(self, rows: Numbers, weights: Doubles) -> Doubles:
        """Return the sums of the model's rows, [batch, k], with these weights."""
        values = self._matrix.own.rows(rows.reshape(-1)).to("f32").numpy().reshape(*rows.shape, self._columns)
        with one_blas_thread():
            return np.stack([weight @ part for weight, part in zip(weights, values, strict=True)])

    def _subword_maker(self) -> Callable[[int, Numbers], Doubles]:
        tokenizer = self._own.tokenizer.loaded()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        names = {token_id: token for token, token_id in self._donor.tokenizer.ids.items()}

        def combine(_start: int, batch: Numbers) -> Doubles:
            made = np.zeros((batch.size, self._columns))
            for number, token_id in enumerate(batch.tolist()):
                text = self._donor.meanings[token_id].text
                with library_errors(f"{self._own.tokenizer.label}: cannot encode a token of the donor"):
                    encoded = tokenizer.encode(names[token_id] if text is None else text, add_special_tokens=False)
                ids = np.array([each for each in encoded.ids if each < self._own.rows], np.int64)
                if ids.size:
                    rows = self._matrix.own.rows(ids).to("f32").numpy()
                    made[number] = self._piece_weights(ids.size) @ rows
            return made

        return combine

    def _piece_weights(self, count: int) -> Doubles:
        """Return the weights of the pieces of a token: the last one is the most important in an embedding, the first
        in a head.
        """
        kind = self._options.subword
        if kind == "sum":
            return np.ones(count)
        if kind == "mean":
            return np.full(count, 1 / count)
        if kind == "first_last":
            weights: Doubles = np.zeros(count)
            weights[0 if self._matrix.is_head else -1] = 1
            return weights
        rising: Doubles = np.arange(1, count + 1) / (count * (count + 1) / 2)
        return rising[::-1] if self._matrix.is_head else rising

    def _gaussian_maker(self) -> Callable[[int, Numbers], npt.NDArray[Any]]:
        """Return a function that draws rows with the mean and the covariance of the model's rows."""
        own, columns = self._matrix.own, self._columns
        mean, product = _mean(own), np.zeros((columns, columns))
        with budget().reserve(24 * columns * columns, f"the covariance of {self._matrix.name!r}"), one_blas_thread():
            for start in range(0, own.shape[0], _COVARIANCE_ROWS):
                part = own[start : start + _COVARIANCE_ROWS].to("f32").numpy().astype(np.float64) - mean
                product += part.T @ part
            try:
                factor = np.linalg.cholesky(product / own.shape[0])
            except np.linalg.LinAlgError:  # fewer tokens than columns
                return lambda start, batch: _SMALL_NOISE * self._normal("rows", start, batch.size)
        return lambda start, batch: mean + self._normal("rows", start, batch.size).astype(np.float64) @ factor.T


def _mean(matrix: Tensor) -> Doubles:
    total = np.zeros(matrix.shape[1])
    for start in range(0, matrix.shape[0], _COVARIANCE_ROWS):
        total += matrix[start : start + _COVARIANCE_ROWS].to("f32").numpy().sum(axis=0, dtype=np.float64)
    return total / matrix.shape[0]
