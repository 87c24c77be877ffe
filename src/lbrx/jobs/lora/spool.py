"""Tensors put away in a file while the rest of them is computed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import MmapStorage
from lbrx.tensors.tensor import Tensor


class Spool:
    """A file to which arrays are appended, and which gives them back as tensors that take no memory.

    >>> import tempfile
    >>> from lbrx.tensors.dtype import dtype
    >>> with tempfile.TemporaryDirectory() as directory, Spool(Path(directory) / "spool") as spool:
    ...     spool.put("w", np.ones((1, 2)), dtype("bf16"))
    ...     spool.tensors()
    {'w': Tensor(bf16, shape=(1, 2), device=cpu, in spool)}
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = system.open_write(path, must_be_new=True)
        self._end = 0
        self._slots: dict[str, tuple[int, DType, tuple[int, ...]]] = {}

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        system.remove_file(self._path)

    def put(self, name: str, values: npt.NDArray[Any], dtype: DType) -> None:
        """Append an array, rounded to a dtype."""
        stored = np.ascontiguousarray(values, dtype.numpy)
        system.pwrite_all(self._descriptor, stored, self._end, self._path)
        self._slots[name] = (self._end, dtype, values.shape)
        self._end += stored.nbytes

    def extend(self, name: str, rows: npt.NDArray[Any], dtype: DType) -> None:
        """Append rows to the array that was put last, or begin a new one."""
        start, _, shape = self._slots.get(name, (self._end, dtype, (0, *rows.shape[1:])))
        self.put(name, rows, dtype)
        self._slots[name] = (start, dtype, (shape[0] + len(rows), *shape[1:]))

    def tensors(self) -> dict[str, Tensor]:
        """All stored tensors, in order."""
        tensors = {}
        for name, (start, dtype, shape) in self._slots.items():
            storage = MmapStorage.from_file(self._path, start, dtype.nbytes(int(np.prod(shape))))
            tensors[name] = Tensor(Source(storage, dtype, Layout.contiguous(shape)))
        return tensors
