"""Integers in groups that are chosen with importances of columns: weights of MLX, GPTQ, AWQ and compressed-tensors.

A weight is encoded as a whole when its first part is written: memory holds a byte for each of its elements. Weights
that were encoded with error feedback are read from a folder instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, UsageError
from lbrx.files.checkpoint import opening
from lbrx.files.output.contents import Contents, LatestParts, PlannedTensor
from lbrx.files.output.save import save
from lbrx.jobs.imatrix.files import ImportanceMatrix
from lbrx.jobs.quantize.importance import read_importances
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.models.architectures import known_family
from lbrx.models.inference.spec import spec_of_config
from lbrx.models.inference.watching import gguf_tensors
from lbrx.ops import matmul
from lbrx.ops.feedback_factors import ColumnFactors
from lbrx.ops.group_feedback import GroupCodes, GroupSpec, encode_groups
from lbrx.tensors.creation import concatenate
from lbrx.tensors.tensor import Tensor

Floats = npt.NDArray[np.float32]
Parts = Mapping[str, Tensor]
_ROWS_BYTES = 64 << 20  # of values that are encoded at a time


@dataclass(frozen=True, slots=True)
class GroupCoding:
    """How a weight is encoded: its groups, and a function that makes its tensors, by their names, of the codes."""

    spec: GroupSpec
    parts: Callable[[GroupCodes], Parts]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of a model besides its weights: importances of columns, and weights that are encoded already.

    ``names`` has the name in GGUF of each tensor, and the number of an expert if it is one.
    """

    names: Mapping[str, tuple[str, int | None]]
    matrix: ImportanceMatrix | None
    folder: Path | None

    @property
    def is_used(self) -> bool:
        return self.matrix is not None

    def importance(self, tensor: PlannedTensor) -> Floats:
        """The weight of each column, a row for each matrix of a stack; ones if nothing is known of the tensor."""
        matrices, columns = math.prod(tensor.shape[:-2]), tensor.shape[-1]
        gguf_name, item = self.names.get(tensor.name, ("", None))
        if self.matrix is None or gguf_name not in self.matrix.entries:
            return np.ones((matrices, columns), np.float32)
        entry = np.asarray(self.matrix[gguf_name], np.float32)
        if entry.size % columns or (item is None and entry.size not in (columns, matrices * columns)):
            raise FormatError(
                f"{self.matrix.path}: has {entry.size} importances of {gguf_name!r}, expected a multiple of {columns}"
            )
        rows = entry.reshape(-1, columns)
        if item is not None:
            rows = rows[min(item, len(rows) - 1)][None]
        return np.ascontiguousarray(np.broadcast_to(rows, (matrices, columns)))

    def applied(
        self, tensor: PlannedTensor, plain: tuple[PlannedTensor, ...], coding: GroupCoding
    ) -> tuple[PlannedTensor, ...]:
        """The parts of a weight, with other values than the ``plain`` ones."""

        def made(name: str) -> Tensor:
            return _latest.of(tensor, lambda: self._encoded(tensor, coding))[name]

        return tuple(replace(part, make=partial(made, part.name)) for part in plain)

    def _encoded(self, tensor: PlannedTensor, coding: GroupCoding) -> Parts:
        stored = None if self.folder is None else stored_codes(self.folder, tensor.name)
        if stored is not None:
            return coding.parts(stored)
        importance = self.importance(tensor)
        values = tensor.make().dequantize().to("f32").reshape(-1, tensor.shape[-1])
        per_matrix = values.shape[0] // len(importance)
        pieces = [
            encode_rows(tensor.name, values[first * per_matrix : (first + 1) * per_matrix], coding.spec, weights)
            for first, weights in enumerate(importance)
        ]
        return coding.parts(joined(pieces))


_latest: LatestParts[Parts] = LatestParts()


def read_calibration(contents: Contents, options: QuantizeOptions) -> Calibration:
    """What is known of a model with Hugging Face or MLX names."""
    if options.imatrix is None:
        return Calibration({}, None, None)
    config = contents.config or {}
    family = known_family(config)
    if family is None or family.gguf is None:
        raise UsageError("importances have the names of GGUF, which this family of models does not have")
    names = [each.name for each in contents.tensors]
    found = gguf_tensors(spec_of_config(config, "config.json", frozenset(names)), names)
    return Calibration(found, read_importances(options).matrix, options.feedback)


def encode_rows(
    name: str,
    values: Tensor,
    spec: GroupSpec,
    importance: Floats,
    factors: ColumnFactors | None = None,
    correction: Floats | None = None,
) -> GroupCodes:
    """Encode a matrix, some rows at a time; with a ``correction`` M, that of W + W M."""
    return joined([encode_groups(rows, spec, importance, factors) for rows in finite_rows(name, values, correction)])


def finite_rows(name: str, values: Tensor, correction: Floats | None = None) -> Iterator[Floats]:
    """Yield the values of a matrix, some rows at a time; with a ``correction`` M, those of W + W M."""
    rows, columns = values.shape
    count = max(_ROWS_BYTES // (4 * columns), 1)
    for first in range(0, rows, count):
        part = np.ascontiguousarray(values[first : first + count].numpy())
        if not np.isfinite(part).all():
            raise UsageError(f"tensor {name!r} has values that are not finite")
        yield part if correction is None else part + matmul(part, correction)


def joined(pieces: list[GroupCodes]) -> GroupCodes:
    """The rows of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    codes, lows, steps = (np.concatenate([getattr(each, part) for each in pieces]) for part in GroupCodes.__slots__)
    return GroupCodes(codes, lows, steps)


def codes_path(folder: Path, name: str) -> Path:
    """The file of a weight's codes in a folder."""
    return folder / f"{name}.safetensors"


def stored_codes(folder: Path, name: str) -> GroupCodes | None:
    """The codes of a weight in a folder, or None."""
    path = codes_path(folder, name)
    if not path.exists():
        return None
    stored = opening.open(path)
    return GroupCodes(*(stored[part].numpy() for part in GroupCodes.__slots__))


def stored_group_values(folder: Path, name: str, rows: slice = slice(None)) -> Tensor | None:
    """The values of some rows of a weight in a folder, as an expression of its file, or None."""
    path = codes_path(folder, name)
    if not path.exists():
        return None
    stored = opening.open(path)
    codes, lows, steps = (stored[part][rows] for part in GroupCodes.__slots__)
    count, columns = codes.shape
    grouped = codes.reshape(count, lows.shape[1], -1).to("f32")
    return (lows.reshape(count, -1, 1) + grouped * steps.reshape(count, -1, 1)).reshape(count, columns)


def store(path: Path, codes: GroupCodes) -> None:
    """Keep the codes of a weight in a file."""
    save(path, {part: getattr(codes, part) for part in GroupCodes.__slots__})


def store_joined(path: Path, pieces: Sequence[Path]) -> None:
    """Keep the codes in several files, one after the other, in one file."""
    opened = [opening.open(piece) for piece in pieces]
    save(path, {part: concatenate([each[part] for each in opened]) for part in GroupCodes.__slots__})
