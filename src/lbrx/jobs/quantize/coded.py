"""Tensors with what becomes of them, and the totals that a dry run shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.files.formats.header import TypeTotal, type_totals
from lbrx.files.formats.shards import tensor_nbytes
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES
from lbrx.jobs.quantize.choice import Choice

if TYPE_CHECKING:
    from lbrx.jobs.quantize.group_codes import GroupCoding
from lbrx.tensors.coded import SCHEMES


@dataclass(frozen=True, slots=True)
class CodedTensor:
    """A tensor of the source, the type it gets, and the tensors that the output has of it."""

    source: PlannedTensor
    choice: Choice
    parts: tuple[PlannedTensor, ...]
    grouped: GroupCoding | None = None  # for integers in groups

    @property
    def elements(self) -> int:
        return math.prod(self.source.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its parts."""
        return sum(tensor_nbytes(part.spec) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Quantization:
    """A model as it will be written, and how each of its tensors came to its type."""

    contents: Contents
    coded: tuple[CodedTensor, ...]
    total_error: float | None = None  # measured, where types were chosen for a size
    old_names: Mapping[str, str] | None = None  # by the new ones, where layers were removed
    front: tuple[tuple[int, float], ...] = ()  # bytes and error of the best choices for other sizes

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.coded)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(tensor.nbytes for tensor in self.coded)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / max(self.parameters, 1)

    def type_totals(self) -> list[TypeTotal]:
        """One row for each type, the one with most bytes first."""
        return type_totals((tensor.choice.type_name, tensor.elements, tensor.nbytes) for tensor in self.coded)


def is_coded(type_name: str) -> bool:
    """Whether a tensor of this type is quantized already.

    >>> is_coded("q4_k"), is_coded("bf16"), is_coded("int4")
    (True, False, True)
    """
    ggml_type = GGML_TYPES.get(type_name)
    return type_name in SCHEMES or (ggml_type is not None and ggml_type.dtype is None)


def refuse_to_requantize(tensor: PlannedTensor, wanted: str) -> None:
    """Raise for a quantized tensor that would be quantized again, and say how to do that nevertheless."""
    if not is_coded(tensor.type_name) or wanted in FLOAT_TYPES:
        return
    raise UsageError(
        f"tensor {tensor.name!r} is {tensor.type_name} already, and would lose more as {wanted}; "
        "quantize the original model, or give --allow-requantize"
    )


def misfit_warnings(choices: Iterable[Choice]) -> Iterator[str]:
    """One warning for each type that did not fit some tensors."""
    counts: dict[tuple[str, str, str], int] = {}
    for choice in choices:
        if choice.misfit is not None:
            key = (choice.misfit, choice.type_name, choice.reason)
            counts[key] = counts.get(key, 0) + 1
    for (_, chosen, reason), count in counts.items():
        yield f"{count} tensor{'s' * (count != 1)} of type {chosen}: {reason}"
