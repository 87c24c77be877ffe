"""Types chosen so that a model meets a size with the least measured error.

The error of a tensor is its squared error as a share of its sum of squares: how much noise it adds to what is computed
with it. Matrices of blocks count alike, whatever their size; embedding and output, which every token passes, count as
many times as they are larger than the usual matrix of a block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median_low
from typing import TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import format_bytes
from lbrx.errors import UsageError
from lbrx.files.formats import gguf
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.files.formats.header import TensorSpec
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES, FileType, file_type_of_base
from lbrx.jobs.imatrix.files import Importance
from lbrx.jobs.quantize.allocation import Coding, allocate, front
from lbrx.jobs.quantize.choice import Choice, fitted, fixed_choice
from lbrx.jobs.quantize.coded import refuse_to_requantize
from lbrx.jobs.quantize.importance import Importances
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.jobs.quantize.samples import relative_errors, sample_rows
from lbrx.jobs.quantize.sensitivity import Sensitivity, Trial, read_sensitivities, weights_by_divergence
from lbrx.models.architectures.gguf_roles import Role, role_of
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.tensor import Tensor

REASON = "least error for the size"
Measuring: TypeAlias = Callable[[int, int, str], None]  # tensors measured, total tensors, the current one


@dataclass(frozen=True, slots=True)
class Selection:
    """The types chosen, the file type that names the file best, and the sum of the tensors' weighted errors."""

    choices: Mapping[str, Choice]
    file_type: FileType
    total_error: float
    front: tuple[tuple[int, float], ...]  # bytes and error of the best choices of other sizes


@dataclass(frozen=True, slots=True)
class _Limit:
    """What must not be exceeded: a unit for the sizes of tensors, and how much there may be of it."""

    size_of: Callable[[PlannedTensor, str], int]
    total: int
    describe: Callable[[int], str]


def choose_for_size(
    contents: Contents, options: QuantizeOptions, importances: Importances, measuring: Measuring | None = None
) -> Selection:
    """Choose a type for every tensor of a GGUF model that no option names.

    ``contents`` has the metadata of the output, whose bytes count; ``measuring`` is called with how far it is.
    If the size is not possible, the error says what is.
    """
    fixed = {tensor.name: fixed_choice(tensor, options) for tensor in contents.tensors}
    free = _free(contents, fixed, options)
    limit = _limit(contents, options)
    taken = sum(limit.size_of(t, choice.type_name) for t in contents.tensors if (choice := fixed[t.name]) is not None)
    types = [_candidates(tensor, options.candidates, importances) for tensor in free]
    smallest = taken + sum(
        min(limit.size_of(tensor, name) for name in names) for tensor, names in zip(free, types, strict=True)
    )
    if smallest > limit.total:
        raise UsageError(
            f"{limit.describe(limit.total)} is too little for this model; with the types "
            f"{', '.join(options.candidates)} the least is {limit.describe(smallest)}"
        )
    sensitivities = None if options.sensitivity is None else read_sensitivities(options.sensitivity)
    codings = _measured(free, types, importances, limit, sensitivities, measuring)
    chosen = allocate(codings, limit.total - taken)
    assert chosen is not None
    named = {tensor.name: Choice(coding.name, REASON) for tensor, coding in zip(free, chosen, strict=True)}
    choices = {name: choice or named[name] for name, choice in fixed.items()}
    others = tuple((taken + size, error) for size, error in front(codings))
    return Selection(choices, _file_type(contents, choices), sum(coding.error for coding in chosen), others)


def trials(contents: Contents, options: QuantizeOptions, importances: Importances) -> list[Trial]:
    """What to measure of each tensor whose type is chosen."""
    fixed = {tensor.name: fixed_choice(tensor, options) for tensor in contents.tensors}
    found = []
    for tensor in _free(contents, fixed, options):
        names = _candidates(tensor, options.candidates, importances)
        nbytes = {name: _bytes(tensor, name) for name in names if name not in FLOAT_TYPES}
        if nbytes:
            encode = partial(_encoded, importances.of(tensor))
            found.append(Trial.of(tensor.name, math.prod(tensor.shape), nbytes, encode))
    return found


def _encoded(importance: Importance | None, type_name: str, values: Tensor, item: int) -> Tensor:
    decoded, takes = values.dequantize().to("f32"), codec(type_name).takes_imatrix
    return decoded.quantize(type_name, importance[item] if takes and importance is not None else None).realize()


def _free(contents: Contents, fixed: Mapping[str, Choice | None], options: QuantizeOptions) -> list[PlannedTensor]:
    """The tensors whose types are chosen."""
    free = [tensor for tensor in contents.tensors if fixed[tensor.name] is None]
    if not options.allow_requantize:
        for tensor in free:
            refuse_to_requantize(tensor, "another type")
    return free


def _candidates(tensor: PlannedTensor, names: Sequence[str], importances: Importances) -> list[str]:
    """The types that a tensor can have, from those allowed and the one it has, each once."""
    fitting = [fitted(name, REASON, tensor.shape).type_name for name in names]
    if importances.of(tensor) is None:
        fitting = [name for name in fitting if name in FLOAT_TYPES or not codec(name).needs_imatrix]
    own = [tensor.type_name] if tensor.type_name in FLOAT_TYPES else []
    if not fitting and not own:
        raise UsageError(f"tensor {tensor.name!r} has no importances, which all candidates need; give another type")
    return list(dict.fromkeys([*fitting, *own]))


def _measured(
    tensors: Sequence[PlannedTensor],
    types: Sequence[Sequence[str]],
    importances: Importances,
    limit: _Limit,
    sensitivities: Mapping[str, Sensitivity] | None,
    measuring: Measuring | None,
) -> list[list[Coding]]:
    errors: list[dict[str, float]] = []
    for tensor, names in zip(tensors, types, strict=True):
        if measuring is not None:
            measuring(len(errors), len(tensors), tensor.name)
        sample, importance = sample_rows(tensor, importances.of(tensor))
        tried = (
            [] if sensitivities is None or tensor.name not in sensitivities else [sensitivities[tensor.name].type_name]
        )
        wanted = list(dict.fromkeys([*names, *tried]))
        errors.append(dict(zip(wanted, relative_errors(sample, importance, wanted), strict=True)))
    weights = _weights(tensors)
    if sensitivities is not None:
        weights = weights_by_divergence([tensor.name for tensor in tensors], errors, weights, sensitivities)
    return [
        [Coding(name, limit.size_of(tensor, name), weight * own[name]) for name in names]
        for tensor, names, own, weight in zip(tensors, types, errors, weights, strict=True)
    ]


def _weights(tensors: Sequence[PlannedTensor]) -> list[float]:
    """How much the relative error of each tensor counts."""
    heads = (Role.OUTPUT, Role.EMBEDDING)
    blocks = [math.prod(tensor.shape) for tensor in tensors if role_of(tensor.name) not in heads]
    usual = median_low(blocks) if blocks else 1
    return [
        max(math.prod(tensor.shape) / usual, 1.0) if role_of(tensor.name) in heads and blocks else 1.0
        for tensor in tensors
    ]


def _limit(contents: Contents, options: QuantizeOptions) -> _Limit:
    if options.target_bytes is not None:
        specs = [TensorSpec(tensor.name, tensor.type_name, tensor.shape) for tensor in contents.tensors]
        # The header is the same whatever types its tensors have.
        header_bytes = len(gguf.lay_out("header", specs, contents.metadata).header)
        return _Limit(
            _padded_bytes,
            options.target_bytes - header_bytes,
            lambda size: f"a file of {size + header_bytes:,} bytes ({format_bytes(size + header_bytes)})",
        )
    assert options.target_bpw is not None
    parameters = sum(math.prod(tensor.shape) for tensor in contents.tensors)
    return _Limit(
        _bytes,
        math.floor(options.target_bpw * parameters / 8),
        lambda size: f"{math.ceil(8e4 * size / max(parameters, 1)) / 1e4:.4f} bits per weight",
    )


def _bytes(tensor: PlannedTensor, type_name: str) -> int:
    return GGML_TYPES[type_name].nbytes(tensor.shape)


def _padded_bytes(tensor: PlannedTensor, type_name: str) -> int:
    """The bytes of a tensor up to where the next one begins."""
    return -(-_bytes(tensor, type_name) // gguf.DEFAULT_ALIGNMENT) * gguf.DEFAULT_ALIGNMENT


def _file_type(contents: Contents, choices: Mapping[str, Choice]) -> FileType:
    """That of the type that most parameters have."""
    elements: Counter[str] = Counter()
    for tensor in contents.tensors:
        elements[choices[tensor.name].type_name] += math.prod(tensor.shape)
    return file_type_of_base(max(elements, key=lambda name: (elements[name], name)))
