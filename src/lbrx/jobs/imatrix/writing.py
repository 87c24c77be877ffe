"""Writing importance matrices, as GGUF or as the legacy format."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base.atomic_write import write_atomically
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.output.save import save
from lbrx.jobs.imatrix.files import COUNTS_SUFFIX, IDENTITY_KEY, SUMS_SUFFIX, RawMatrix, Sums
from lbrx.tensors.tensor import tensor

LEGACY_SUFFIX = ".dat"


def write_imatrix(path: Path, matrix: RawMatrix) -> None:
    """Write a file that llama.cpp reads: the legacy format if the name ends in ``.dat``, else GGUF."""
    if path.suffix == LEGACY_SUFFIX:
        write_atomically(path, b"".join(_legacy_parts(matrix)))
        return
    tensors = {}
    for name, sums in sorted(matrix.entries.items()):
        tensors[name + SUMS_SUFFIX] = tensor(sums.squares.astype(np.float32))
        tensors[name + COUNTS_SUFFIX] = tensor(sums.counts.astype(np.float32).reshape(-1, 1))
    metadata: dict[str, Any] = {
        "general.type": "imatrix",
        "imatrix.datasets": Typed(list(matrix.datasets), "array[str]"),
        "imatrix.chunk_count": Typed(matrix.chunk_count, "u32"),
        "imatrix.chunk_size": Typed(matrix.chunk_size, "u32"),
    }
    if matrix.identity:
        metadata[IDENTITY_KEY] = matrix.identity
    save(path, tensors, metadata)


def _legacy_parts(matrix: RawMatrix) -> Iterator[bytes]:
    used = {name: sums for name, sums in sorted(matrix.entries.items()) if sums.counts.any()}
    yield struct.pack("<i", len(used))
    for name, sums in used.items():
        raw_name = name.encode()
        calls = math.ceil(sums.counts.max() / matrix.chunk_size)
        values = (sums.means() * np.float32(calls)).astype("<f4")
        yield struct.pack("<i", len(raw_name)) + raw_name + struct.pack("<ii", calls, values.size)
        yield values.tobytes()
    dataset = matrix.datasets[-1].encode() if matrix.datasets else b""
    yield struct.pack("<ii", matrix.chunk_count, len(dataset)) + dataset


def added(matrices: list[tuple[Path, RawMatrix]]) -> RawMatrix:
    """The sum of importance matrices, with all entries that any of them has."""
    entries: dict[str, Sums] = {}
    for path, matrix in matrices:
        for name, sums in matrix.entries.items():
            entries[name] = entries[name].plus(sums, f"{path}: {name!r}") if name in entries else sums
    datasets = tuple(dict.fromkeys(dataset for _, matrix in matrices for dataset in matrix.datasets))
    if len(matrices) == 1:
        return matrices[0][1]
    sizes = [matrix.chunk_size for _, matrix in matrices]
    most = max((float(sums.counts.max()) for sums in entries.values()), default=0.0)
    return RawMatrix(entries, datasets, int(most // sizes[-1]), sizes[-1])
