"""Files of importance matrices: how much each column of each weight matters.

Files of ``llama-imatrix`` are GGUF, with the tensors ``name.in_sum2`` (sums of squared activations) and
``name.counts``. Legacy files are a sequence of entries: the name, how often it was called, and the sums of averages
over the calls. A call is a chunk of tokens.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, TensorNotFound, nearest
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.files.formats.gguf_values import StringArray
from lbrx.tensors.storage import MmapStorage

Importance = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
SUMS_SUFFIX, COUNTS_SUFFIX = ".in_sum2", ".counts"
CHUNK_SIZE = 512  # tokens, where a file does not say
IDENTITY_KEY = "lbrx.imatrix.identity"
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
    is_measured: bool = False  # by lbrx

    def __getitem__(self, name: str) -> Importance:
        if name not in self.entries:
            raise TensorNotFound(f"{self.path}: has no importances of {name!r}{nearest(name, self.entries)}")
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums of squared activations of a weight, and how many activations there were.

    ``squares`` is [matrices, columns], and ``counts`` has a number for each matrix; or, from files that do not separate
    the matrices, there is one long row and one count.
    """

    squares: Numbers
    counts: Numbers

    def means(self) -> Importance:
        """Sums over counts; a matrix that was never used counts evenly."""
        counts = self.counts[:, None]
        averages = self.squares / np.where(counts > 0, counts, 1.0)
        result: Importance = np.where(counts > 0, averages, 1.0).astype(np.float32)
        return result

    def plus(self, other: Sums, where: str) -> Sums:
        """The sums of two texts.

        >>> first, second = Sums(np.ones((2, 2)), np.array([1.0, 3.0])), Sums(np.full((1, 4), 5.0), np.array([2.0]))
        >>> both = first.plus(second, "a.dat")
        >>> both.squares.tolist(), both.counts.tolist()
        ([[6.0, 6.0], [6.0, 6.0]], [3.0, 5.0])
        """
        sizes, counts = (self.squares.size, other.squares.size), (self.counts.size, other.counts.size)
        if sizes[0] != sizes[1] or (counts[0] != counts[1] and 1 not in counts):
            raise FormatError(
                f"{where}: has {sizes[1]} sums and {counts[1]} counts; expected {sizes[0]} and {counts[0]}"
            )
        shape = (max(counts), -1)
        return Sums(self.squares.reshape(shape) + other.squares.reshape(shape), self.counts + other.counts)


@dataclass(frozen=True, slots=True, eq=False)
class RawMatrix:
    """An importance matrix as sums. A chunk is ``chunk_size`` tokens."""

    entries: Mapping[str, Sums]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = CHUNK_SIZE
    identity: str = ""  # of the model, the text and the settings, if lbrx measured it


def read_imatrix(path: str | Path) -> ImportanceMatrix:
    """Read an importance matrix of either format.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "imatrix.dat"
    >>> _ = path.write_bytes(struct.pack("<ii1sii2f", 1, 1, b"w", 2, 2, 6.0, 8.0))
    >>> read_imatrix(path)["w"].tolist()
    [[3.0, 4.0]]
    """
    raw = read_sums(path)
    entries = {name: sums.means() for name, sums in raw.entries.items()}
    return ImportanceMatrix(Path(path), entries, raw.datasets, raw.chunk_count, bool(raw.identity))


def read_sums(path: str | os.PathLike[str]) -> RawMatrix:
    """Read the sums of an importance matrix of either format."""
    location = Path(path)
    data = MmapStorage.from_file(location)
    is_gguf = data.read_at(0, min(data.nbytes, len(_GGUF_MAGIC))).tobytes() == _GGUF_MAGIC
    return _read_gguf(location) if is_gguf else _read_legacy(location, data.read_at(0, data.nbytes))


def _read_gguf(path: Path) -> RawMatrix:
    checkpoint = open_checkpoint(path)
    names = [name.removesuffix(SUMS_SUFFIX) for name in checkpoint if name.endswith(SUMS_SUFFIX)]
    if not names:
        raise FormatError(f"{path}: has no tensor that ends in {SUMS_SUFFIX!r}; expected an importance matrix")
    entries: dict[str, Sums] = {}
    for name in names:
        if name + COUNTS_SUFFIX not in checkpoint:
            raise FormatError(f"{path}: has {name + SUMS_SUFFIX!r}, but not {name + COUNTS_SUFFIX!r}")
        squares, counts = (checkpoint[name + suffix].numpy() for suffix in (SUMS_SUFFIX, COUNTS_SUFFIX))
        entries[name] = _sums(path, name, squares, counts)
    datasets = checkpoint.metadata.get("imatrix.datasets")
    if datasets is not None and not isinstance(datasets, StringArray):
        raise FormatError(f"{path}: 'imatrix.datasets' is {datasets!r:.60}; expected an array of texts")
    chunks, size = _whole(checkpoint, "imatrix.chunk_count", 0), _whole(checkpoint, "imatrix.chunk_size", CHUNK_SIZE)
    return RawMatrix(entries, tuple(datasets or ()), chunks, size, str(checkpoint.metadata.get(IDENTITY_KEY, "")))


def _whole(checkpoint: Checkpoint, key: str, otherwise: int) -> int:
    value: Any = checkpoint.metadata.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"{checkpoint.path}: {key!r} is {value!r:.60}; expected a whole number")
    return value


def _sums(path: Path, name: str, squares: Importance, counts: Importance) -> Sums:
    if squares.dtype != np.float32 or counts.dtype != np.float32 or counts.size == 0 or squares.size % counts.size:
        raise FormatError(
            f"{path}: {name!r} has sums of {squares.dtype} {squares.shape} and counts of {counts.dtype} "
            f"{counts.shape}; expected f32 and one count for each matrix"
        )
    return Sums(squares.reshape(counts.size, -1).astype(np.float64), counts.reshape(-1).astype(np.float64))


class _Cursor:
    """Reads numbers and bytes from a file's contents, never past their end."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.position = 0

    @property
    def left(self) -> int:
        return self.data.size - self.position

    def take(self, nbytes: int, what: str) -> bytes:
        if nbytes < 0 or nbytes > self.left:
            raise FormatError(
                f"{self.path}: {what} takes {nbytes} bytes at byte {self.position}, but {self.left} are left; "
                "expected a legacy importance matrix"
            )
        self.position += nbytes
        return self.data[self.position - nbytes : self.position].tobytes()

    def number(self, what: str) -> int:
        value: int = struct.unpack("<i", self.take(4, what))[0]
        return value


def _read_legacy(path: Path, data: npt.NDArray[np.uint8]) -> RawMatrix:
    cursor = _Cursor(path, data)
    count = cursor.number("the number of entries")
    if not 1 <= count <= cursor.left // 12:
        raise FormatError(f"{path}: is not an importance matrix; expected a GGUF or legacy file of llama-imatrix")
    entries: dict[str, Sums] = {}
    for _ in range(count):
        name, sums = _read_entry(cursor)
        if name in entries:
            raise FormatError(f"{path}: has two entries of {name!r}")
        entries[name] = sums
    chunk_count = cursor.number("the number of chunks") if cursor.left else 0
    return RawMatrix(entries, _read_dataset(cursor), chunk_count)


def _read_entry(cursor: _Cursor) -> tuple[str, Sums]:
    raw_name = cursor.take(cursor.number("the length of a name"), "a name")
    try:
        name = raw_name.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{cursor.path}: the name {raw_name[:64]!r} is not UTF-8") from error
    calls = max(cursor.number(f"the number of calls of {name!r}"), 1)
    size = cursor.number(f"the number of values of {name!r}")
    if size < 1:
        raise FormatError(f"{cursor.path}: {name!r} has {size} values; expected at least one")
    values = np.frombuffer(cursor.take(4 * size, f"values of {name!r}"), "<f4").astype(np.float64)
    return name, Sums(CHUNK_SIZE * values[None], np.array([CHUNK_SIZE * calls], np.float64))


def _read_dataset(cursor: _Cursor) -> tuple[str, ...]:
    if not cursor.left:
        return ()
    name = cursor.take(cursor.number("the length of the dataset's name"), "the dataset's name")
    return (name.decode(errors="replace"),) if name else ()
