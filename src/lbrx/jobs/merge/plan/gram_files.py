"""Gram matrices of the inputs of a model's matrices in a folder, one file for all matrices with the same input.

A file has the upper triangle of the matrix, row by row, in f32. The index has the file of each tensor and is written
last, so that a layer is there as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError
from lbrx.files.formats.strict_json import json_bytes, read_json
from lbrx.jobs.merge.methods.parameters import InputGram

Floats = npt.NDArray[np.float32]
_INDEX_NAME = "index.json"


@dataclass(frozen=True, eq=False)
class MeasuredInput:
    """The sum of x x' over ``count`` inputs x of some tensors: by name, the axis that is multiplied."""

    total: Floats
    count: int
    axes: Mapping[str, int]


class GramFolder:
    """The Gram matrices of one model on one text.

    >>> import tempfile
    >>> folder = GramFolder(Path(tempfile.mkdtemp()))
    >>> total = np.array([[4.0, 2.0], [2.0, 6.0]], np.float32)
    >>> folder.add_layer([MeasuredInput(total, 2, {"w": 1})], [], is_last=True)
    >>> GramFolder(folder.path).gram("w").mean.tolist()
    [[2.0, 1.0], [1.0, 3.0]]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._layers: int
        self.is_complete: bool
        self._tensors: dict[str, list[Any]]  # file, size, count, axis
        self.reload()

    def reload(self) -> None:
        """Read the index, which another process may have written."""
        path = self.path / _INDEX_NAME
        known = read_json(path) if path.is_file() else {}
        self._layers, self.is_complete = known.get("layers", 0), known.get("is_complete", False)
        self._tensors = known.get("tensors", {})

    def gram(self, tensor: str) -> InputGram | None:
        """Return the mean Gram matrix of a tensor, or None if it is not multiplied with inputs."""
        if not self.is_complete:
            raise FileError(f"{self.path}: the inputs of a model were not measured to the end; merge again")
        if tensor not in self._tensors:
            return None
        name, size, count, axis = self._tensors[tensor]
        return InputGram(_read_triangle(self.path / name, size) / count, axis)

    def begun(self) -> tuple[int, list[Floats]] | None:
        """Return how many layers an earlier run measured, and the hidden states behind them."""
        path = self.path / _hidden_name(self._layers)
        if not self._layers:
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                return self._layers, [stored[name] for name in stored.files]
        except (OSError, ValueError, EOFError, BadZipFile):
            return None  # missing or damaged

    def add_layer(self, inputs: Sequence[MeasuredInput], hidden: Sequence[Floats], *, is_last: bool) -> None:
        """Store the inputs of the next layer, and the hidden states behind it to continue from."""
        system.make_directory(self.path)
        for number, each in enumerate(inputs):
            name = f"{self._layers}-{number}.triangle"
            write_atomically(self.path / name, _triangle(each.total))
            entry = [name, len(each.total), each.count]
            self._tensors.update({tensor: [*entry, axis] for tensor, axis in each.axes.items()})
        if hidden and not is_last:
            buffer = BytesIO()
            np.savez(buffer, *hidden)
            write_atomically(self.path / _hidden_name(self._layers + 1), buffer.getvalue())
        index = {"layers": self._layers + 1, "is_complete": is_last, "tensors": self._tensors}
        write_atomically(self.path / _INDEX_NAME, json_bytes(index))
        system.remove_file(self.path / _hidden_name(self._layers))
        self._layers, self.is_complete = self._layers + 1, is_last

    def forget(self) -> None:
        """Begin anew: the layers cannot be continued."""
        system.remove_tree(self.path)
        self._layers, self.is_complete, self._tensors = 0, False, {}


def _hidden_name(layers: int) -> str:
    return f"hidden-{layers}.npz"


def _triangle(matrix: Floats) -> bytes:
    return b"".join(row[number:].tobytes() for number, row in enumerate(matrix))


def _read_triangle(path: Path, size: int) -> npt.NDArray[np.float64]:
    values = np.fromfile(path, np.float32) if path.is_file() else np.empty(0, np.float32)
    if values.size != size * (size + 1) // 2:
        raise FileError(f"{path}: is damaged; remove its folder and merge again")
    matrix = np.empty((size, size))
    first = 0
    for number in range(size):
        row = values[first : first + size - number]
        matrix[number, number:] = row
        matrix[number:, number] = row
        first += size - number
    return matrix
