"""Importance matrices: how much each column of each weight matters, measured by llama.cpp's ``llama-imatrix``.

Newer files are GGUF, with the tensors ``name.in_sum2`` (sums of squared activations) and ``name.counts``. Legacy files
are a sequence of entries: the name, how often it was called, and the sums of averages over the calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, TensorNotFound, nearest
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.gguf_values import StringArray
from lbrx.tensors.storage import MmapStorage

Importance = npt.NDArray[np.float32]
SUMS_SUFFIX, COUNTS_SUFFIX = ".in_sum2", ".counts"
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceMatrix(Mapping[str, Importance]):
    """The importances by the name of the weight in GGUF, such as ``blk.0.ffn_down.weight``.

    An entry has one row for each matrix of its weight, or, from a legacy file, is one long row for all of them.
    """

    path: Path
    entries: Mapping[str, Importance]
    datasets: tuple[str, ...]
    chunk_count: int

    def __getitem__(self, name: str) -> Importance:
        if name not in self.entries:
            raise TensorNotFound(f"{self.path}: has no importances of {name!r}{nearest(name, self.entries)}")
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def read_imatrix(path: str | Path) -> ImportanceMatrix:
    """Read an importance matrix of either format.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "imatrix.dat"
    >>> _ = path.write_bytes(struct.pack("<ii1sii2f", 1, 1, b"w", 2, 2, 6.0, 8.0))
    >>> read_imatrix(path)["w"].tolist()
    [3.0, 4.0]
    """
    location = Path(path)
    data = MmapStorage.from_file(location)
    is_gguf = data.read_at(0, min(data.nbytes, len(_GGUF_MAGIC))).tobytes() == _GGUF_MAGIC
    return _read_gguf(location) if is_gguf else _read_legacy(location, data.read_at(0, data.nbytes).tobytes())


def _read_gguf(path: Path) -> ImportanceMatrix:
    checkpoint = open_checkpoint(path)
    names = [name.removesuffix(SUMS_SUFFIX) for name in checkpoint if name.endswith(SUMS_SUFFIX)]
    if not names:
        raise FormatError(f"{path}: has no tensor that ends in {SUMS_SUFFIX!r}; expected an importance matrix")
    entries: dict[str, Importance] = {}
    for name in names:
        if name + COUNTS_SUFFIX not in checkpoint:
            raise FormatError(f"{path}: has {name + SUMS_SUFFIX!r}, but not {name + COUNTS_SUFFIX!r}")
        sums, counts = (checkpoint[name + suffix].numpy() for suffix in (SUMS_SUFFIX, COUNTS_SUFFIX))
        entries[name] = _averages(path, name, sums, counts)
    datasets, chunks = (checkpoint.metadata.get(f"imatrix.{key}") for key in ("datasets", "chunk_count"))
    if datasets is not None and not isinstance(datasets, StringArray):
        raise FormatError(f"{path}: 'imatrix.datasets' is {datasets!r:.60}; expected an array of texts")
    if chunks is not None and (isinstance(chunks, bool) or not isinstance(chunks, int)):
        raise FormatError(f"{path}: 'imatrix.chunk_count' is {chunks!r:.60}; expected a whole number")
    return ImportanceMatrix(path, entries, tuple(datasets or ()), chunks or 0)


def _averages(path: Path, name: str, sums: Importance, counts: Importance) -> Importance:
    """Sums over counts; a matrix that was never used counts evenly."""
    if sums.dtype != np.float32 or counts.dtype != np.float32 or counts.size == 0 or sums.size % counts.size:
        raise FormatError(
            f"{path}: {name!r} has sums of {sums.dtype} {sums.shape} and counts of {counts.dtype} {counts.shape}; "
            "expected f32 and one count for each matrix"
        )
    calls = counts.reshape(-1, 1)
    averages = sums.reshape(calls.size, -1) / np.where(calls > 0, calls, np.float32(1.0))
    result: Importance = np.where(calls > 0, averages, np.float32(1.0)).astype(np.float32)
    return result


class _Cursor:
    """Reads numbers and bytes from a file's contents, never past their end."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        self.position = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, nbytes: int, what: str) -> bytes:
        if nbytes < 0 or nbytes > self.left:
            raise FormatError(
                f"{self.path}: {what} takes {nbytes} bytes at byte {self.position}, but {self.left} are left; "
                "expected a legacy importance matrix"
            )
        self.position += nbytes
        return self.data[self.position - nbytes : self.position]

    def number(self, what: str) -> int:
        value: int = struct.unpack("<i", self.take(4, what))[0]
        return value


def _read_legacy(path: Path, data: bytes) -> ImportanceMatrix:
    cursor = _Cursor(path, data)
    count = cursor.number("the number of entries")
    if not 1 <= count <= cursor.left // 12:
        raise FormatError(f"{path}: is not an importance matrix; expected a GGUF or legacy file of llama-imatrix")
    entries: dict[str, Importance] = {}
    for _ in range(count):
        name, values = _read_entry(cursor)
        if name in entries:
            raise FormatError(f"{path}: has two entries of {name!r}")
        entries[name] = values
    chunk_count = cursor.number("the number of chunks") if cursor.left else 0
    return ImportanceMatrix(path, entries, _read_dataset(cursor), chunk_count)


def _read_entry(cursor: _Cursor) -> tuple[str, Importance]:
    raw_name = cursor.take(cursor.number("the length of a name"), "a name")
    try:
        name = raw_name.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{cursor.path}: the name {raw_name[:64]!r} is not UTF-8") from error
    calls = cursor.number(f"the number of calls of {name!r}")
    size = cursor.number(f"the number of values of {name!r}")
    if size < 1:
        raise FormatError(f"{cursor.path}: {name!r} has {size} values; expected at least one")
    sums = np.frombuffer(cursor.take(4 * size, f"values of {name!r}"), "<f4").astype(np.float32)
    return name, sums / np.float32(calls) if calls > 0 else sums


def _read_dataset(cursor: _Cursor) -> tuple[str, ...]:
    if not cursor.left:
        return ()
    name = cursor.take(cursor.number("the length of the dataset's name"), "the dataset's name")
    return (name.decode(errors="replace"),) if name else ()
