"""The importance matrix of a model that is quantized: which rows of it belong to which tensor."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, UsageError
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES, FileType
from lbrx.jobs.imatrix.files import Importance, ImportanceMatrix, read_imatrix
from lbrx.jobs.imatrix.generated import GENERATED, GENERATED_ENDING
from lbrx.jobs.quantize.choice import Choice
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.models.architectures.gguf_roles import EMBEDDING_NAMES, OUTPUT_NAME
from lbrx.tensors.codecs.codec import codec

_POOR_WITHOUT = ("iq1_m", "iq2_s", "iq3_xxs")  # these can be encoded without importances, but not well


@dataclass(frozen=True, slots=True)
class Importances:
    """The importances of a model's tensors.

    ``old_names`` are those that tensors had before layers were removed. Importances of the names in ``left_out`` are
    not used, because options say so.
    """

    matrix: ImportanceMatrix | None = None
    old_names: Mapping[str, str] | None = None
    left_out: frozenset[str] = frozenset()

    def of(self, tensor: PlannedTensor) -> Importance | None:
        """A row for each matrix of the tensor, or None if there are none for it."""
        name = (self.old_names or {}).get(tensor.name, tensor.name)
        if self.matrix is None or name not in self.matrix.entries:
            return None
        entry, columns = self.matrix[name], tensor.shape[-1]
        matrices = math.prod(tensor.shape[:-2])
        if entry.size == columns * matrices:
            return entry.reshape(matrices, columns)
        if tensor.name in EMBEDDING_NAMES:  # rows of an embedding are looked up, not multiplied with
            return None
        raise FormatError(
            f"{self.matrix.path}: has {entry.size} importances of {name!r}, "
            f"expected {columns * matrices} for its shape {tensor.shape}"
        )

    def for_type(self, tensor: PlannedTensor, type_name: str) -> Importance | None:
        """The importances of a tensor, if the coding can make use of them."""
        if type_name in FLOAT_TYPES or not codec(type_name).takes_imatrix:
            return None
        return self.of(tensor)

    def metadata(self) -> dict[str, Typed]:
        """What a quantized file says of its importance matrix: no paths, and of one that lbrx measured its digest."""
        if self.matrix is None:
            return {}
        name = f"sha256:{_digest(self.matrix)}" if self.matrix.is_measured else self.matrix.path.name
        pairs: dict[str, Any] = {"quantize.imatrix.file": Typed(name, "str")}
        if self.matrix.datasets:
            pairs["quantize.imatrix.dataset"] = Typed(_dataset_name(self.matrix.datasets[0]), "str")
        pairs["quantize.imatrix.entries_count"] = Typed(len(self.matrix), "u32")
        if self.matrix.chunk_count > 0:
            pairs["quantize.imatrix.chunks_count"] = Typed(self.matrix.chunk_count, "u32")
        return pairs


def _digest(matrix: ImportanceMatrix) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(matrix.entries.items()):
        digest.update(name.encode() + b"\0" + values.astype("<f4").tobytes())
    return digest.hexdigest()


def _dataset_name(dataset: str) -> str:
    """The name of a text without its directory.

    >>> _dataset_name("texts/a.txt"), _dataset_name("out/model-Q4_K_M.generated.txt")
    ('a.txt', 'generated')
    """
    name = Path(dataset).name
    return GENERATED if name.endswith(GENERATED_ENDING) else name


def read_importances(options: QuantizeOptions, old_names: Mapping[str, str] | None = None) -> Importances:
    """The importances of a file, all of which have to be numbers; without a file, none."""
    path = options.imatrix
    if path is None:
        return Importances()
    whole = read_imatrix(path)
    matrix = _selected(whole, options.include_weights, options.exclude_weights)
    for name, values in matrix.entries.items():
        if not np.isfinite(values).all():
            raise FormatError(f"{path}: the importances of {name!r} are not all finite")
    return Importances(matrix, old_names, frozenset(whole) - frozenset(matrix))


def _selected(matrix: ImportanceMatrix, included: Sequence[str], excluded: Sequence[str]) -> ImportanceMatrix:
    """The importances of the tensors whose names contain one of some texts, and none of others."""
    for option, parts in (("--include-weights", included), ("--exclude-weights", excluded)):
        unknown = [part for part in parts if not any(part in name for name in matrix)]
        if unknown:
            raise UsageError(f"{option} {unknown[0]}: no name in {matrix.path} contains it")
    entries = {
        name: values
        for name, values in matrix.entries.items()
        if (not included or any(part in name for part in included)) and not any(part in name for part in excluded)
    }
    if not entries:
        raise UsageError(f"--exclude-weights leaves no importances of {matrix.path}")
    return replace(matrix, entries=entries)


def check_importances(
    importances: Importances, file_type: FileType, tensors: Iterable[PlannedTensor], choices: Mapping[str, Choice]
) -> list[str]:
    """Warnings of tensors that have no importances; an error where a coding is useless without."""
    missing = []
    for tensor in tensors:
        type_name = choices[tensor.name].type_name
        if type_name in FLOAT_TYPES or type_name == tensor.type_name or importances.of(tensor) is not None:
            continue
        if _needs_importances(tensor.name, type_name, file_type):
            where = "" if importances.matrix is None else f", and {importances.matrix.path} has none of them"
            raise UsageError(
                f"tensor {tensor.name!r}: {type_name} in a {file_type.name} file needs importances{where}; "
                "give an importance matrix with --imatrix, or another type"
            )
        expected = codec(type_name).takes_imatrix and tensor.name not in (*EMBEDDING_NAMES, *importances.left_out)
        if importances.matrix is not None and expected:
            missing.append(tensor.name)
    if not missing or importances.matrix is None:
        return []
    return [f"{importances.matrix.path}: has no importances of {len(missing)} tensors, such as {missing[0]!r}"]


def _needs_importances(name: str, type_name: str, file_type: FileType) -> bool:
    """Whether a tensor cannot be encoded without importances, or is useless, as llama.cpp has it."""
    if codec(type_name).needs_imatrix:
        return True
    is_poor = type_name in _POOR_WITHOUT or (file_type.name == "q2_k_s" and type_name == "q2_k")
    return is_poor and name not in (*EMBEDDING_NAMES, OUTPUT_NAME)
