"""The stored tensors that quantized weights are decoded from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.header import FileHeader, TensorEntry, quoted
from lbrx.tensors.coded import Blocks
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.tensor import Tensor

EXPONENTS = "f8_e8m0"
HALVES = ("f16", "bf16")
MAX_SMALL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Parts:
    """The stored tensors of a checkpoint by name, and the settings of its quantization.

    ``value_type`` is the dtype of decoded weights. All errors name the file and the tensor.
    """

    entries: Mapping[str, tuple[FileHeader, TensorEntry]]
    stored: Callable[[str], Tensor]
    settings: Mapping[str, Any]
    value_type: str
    where: str

    def has(self, name: str) -> bool:
        return name in self.entries

    def type_of(self, name: str) -> str:
        return self.entries[name][1].type_name

    def shape_of(self, name: str) -> Shape:
        return self.entries[name][1].shape

    def error(self, name: str, text: str) -> FormatError:
        """Return an error about a tensor."""
        place = self.entries[name][0].path if name in self.entries else self.where
        return FormatError(f"{place}: tensor {quoted(name)} {text}")

    def part(self, name: str, part: str, types: tuple[str, ...], shape: Shape | None = None) -> Source:
        """Return the part of a weight; another type or shape than expected is an error."""
        if part not in self.entries:
            raise self.error(name, f"is quantized, but its part {quoted(part)} is missing")
        entry = self.entries[part][1]
        if entry.type_name not in types:
            raise self.error(part, f"is {entry.type_name}, expected {' or '.join(types)} as a part of {quoted(name)}")
        if shape is not None and entry.shape != shape:
            raise self.error(part, f"has shape {entry.shape}, expected {shape} as a part of {quoted(name)}")
        expr = self.stored(part).expr
        if isinstance(expr, Blocks):  # bytes of a type that is not a dtype
            return Source(expr.storage, DTYPES["u8"], Layout.contiguous(entry.shape))
        if not isinstance(expr, Source) or not expr.is_whole:
            raise self.error(part, f"is not contiguous, expected rows in order as a part of {quoted(name)}")
        return expr

    def integers(self, name: str, part: str) -> list[int]:
        """Return the elements of a small part."""
        source = self.part(name, part, ("i32", "i64", "u8"))
        values: list[int] = np.frombuffer(self._small(part, source), source.dtype.numpy).tolist()
        return values

    def _small(self, name: str, source: Source) -> bytes:
        """The bytes of a part that is read to build an expression."""
        nbytes = source.storage.nbytes
        if nbytes > MAX_SMALL_BYTES:
            raise self.error(name, f"has {nbytes} bytes, expected at most {MAX_SMALL_BYTES}")
        return source.storage.read_at(0, nbytes).tobytes()

    def is_zero(self, name: str) -> bool:
        """Whether all bytes of a small tensor are zero."""
        return not any(self._small(name, self.part(name, name, ("f32", *HALVES))))

    def groups(self, name: str, part: str, columns: int) -> Source:
        """Return the group of each column."""
        return self.part(name, part, ("i32",), (columns,))

    def check_groups(self, name: str, part: str, count: int) -> None:
        """Raise if a column is in a group that does not exist."""
        bad = next((group for group in self.integers(name, part) if not 0 <= group < count), None)
        if bad is not None:
            raise self.error(part, f"has the group {bad}, but {quoted(name)} has {count} groups")

    def numbers(self, name: str, part: str) -> tuple[float, ...]:
        """Return the elements of a small part of f32."""
        source = self.part(name, part, ("f32",))
        return tuple(np.frombuffer(self._small(part, source), "<f4").tolist())

    def record(self, name: str, part: str) -> Mapping[str, Any]:
        """Return the JSON object in the bytes of a part."""
        source = self.part(name, part, ("u8",))
        try:
            values = json.loads(self._small(part, source).decode())
        except (ValueError, RecursionError) as broken:
            raise self.error(part, "is not a JSON object") from broken
        if not isinstance(values, dict):
            raise self.error(part, "is not a JSON object")
        return values

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive number of the settings."""
        value = self.settings.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FormatError(f"{self.where}: {key!r} of the quantization is {value!r:.60}, expected a positive number")
        return value
