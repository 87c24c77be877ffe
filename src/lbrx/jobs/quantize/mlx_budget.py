"""Codings of MLX chosen so that a model has a size, with the least sum of errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.formats.header import TensorSpec
from lbrx.files.formats.shards import tensor_nbytes
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES
from lbrx.jobs.imatrix.files import Importance
from lbrx.jobs.quantize.allocation import Coding, allocate, front
from lbrx.jobs.quantize.budget import REASON, Measuring
from lbrx.jobs.quantize.choice import Choice
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.jobs.quantize.samples import Floats, relative_errors, sample_rows
from lbrx.jobs.quantize.sensitivity import Trial, read_sensitivities, weights_by_divergence
from lbrx.jobs.quantize.targets import find_mlx_mode, mlx_name
from lbrx.tensors.codecs.mlx import MlxMode, dequantize, encoded_mlx
from lbrx.tensors.tensor import Tensor

Decided = Callable[[PlannedTensor], tuple[MlxMode | str, str] | None]
"""The coding or the type of a tensor that the size does not decide, with the reason; or None."""


@dataclass(frozen=True, slots=True)
class MlxSelection:
    """The codings that were chosen, the usual one, and the sum of the errors."""

    modes: dict[str, MlxMode]
    choices: dict[str, Choice]
    usual: MlxMode
    total_error: float
    front: tuple[tuple[int, float], ...]


def choose_mlx_for_size(
    contents: Contents, options: QuantizeOptions, decided: Decided, measuring: Measuring | None = None
) -> MlxSelection:
    """Choose a coding for every weight that no option names; if the size is not possible, the error says what is."""
    assert options.target_bpw is not None
    modes: dict[str, MlxMode] = {}
    choices: dict[str, Choice] = {}
    free, taken = [], 0
    for tensor in contents.tensors:
        fixed = decided(tensor)
        if fixed is None:
            free.append(tensor)
            continue
        choice, reason = fixed
        name = mlx_name(choice) if isinstance(choice, MlxMode) else choice
        taken += _nbytes(tensor, choice)
        choices[tensor.name] = Choice(name, reason)
        if isinstance(choice, MlxMode):
            modes[tensor.name] = choice
    parameters = sum(math.prod(tensor.shape) for tensor in contents.tensors)
    limit = math.floor(options.target_bpw * parameters / 8)
    codings = _measured(free, options, measuring)
    smallest = taken + sum(min(coding.size for coding in own) for own in codings)
    chosen = allocate(codings, limit - taken)
    if chosen is None:
        raise UsageError(
            f"{options.target_bpw} bits per weight is too little for this model; with the codings "
            f"{', '.join(options.candidates)} the least is {math.ceil(8e4 * smallest / max(parameters, 1)) / 1e4:.4f}"
        )
    for tensor, coding in zip(free, chosen, strict=True):
        mode = _mode(coding.name, options)
        choices[tensor.name] = Choice(coding.name, REASON)
        if mode is not None:
            modes[tensor.name] = mode
    usual = Counter(modes.values()).most_common(1)
    ordered = {tensor.name: choices[tensor.name] for tensor in contents.tensors}
    error = sum(coding.error for coding in chosen)
    others = tuple((taken + size, each) for size, each in front(codings))
    return MlxSelection(modes, ordered, usual[0][0] if usual else MlxMode(), error, others)


def trials_of_mlx(contents: Contents, options: QuantizeOptions, decided: Decided) -> list[Trial]:
    """What to measure of each weight whose coding is chosen. Its scales are counted as those of 16-bit models."""
    found = []
    for tensor in contents.tensors:
        if decided(tensor) is not None:
            continue
        modes = {name: mode for name in _candidates(tensor, options) if (mode := _mode(name, options)) is not None}
        half = replace(tensor, type_name="bf16")
        nbytes = {name: _nbytes(half, mode) for name, mode in modes.items()}
        if nbytes:
            encode = partial(_left_of, options, tensor.type_name)
            found.append(Trial.of(tensor.name, math.prod(tensor.shape), nbytes, encode))
    return found


def _left_of(options: QuantizeOptions, dtype_name: str, name: str, values: Tensor, _item: int) -> Tensor:
    mode = _mode(name, options)
    assert mode is not None
    return _left(mode, dtype_name, values)


def _left(mode: MlxMode, dtype_name: str, values: Tensor) -> Tensor:
    """What is left of values in a coding, in the type of the model."""
    source = values.dequantize().to(dtype_name if dtype_name in FLOAT_TYPES else "f32")
    coded = encoded_mlx(source, mode)
    return dequantize(coded.weight, coded.scales, coded.biases, mode).to(source.type_name).realize()


def _candidates(tensor: PlannedTensor, options: QuantizeOptions) -> list[str]:
    fitting = [
        name
        for name in options.candidates
        if (mode := _mode(name, options)) is None or tensor.shape[-1] % mode.group_size == 0
    ]
    own = [tensor.type_name] if tensor.type_name in FLOAT_TYPES else []
    return list(dict.fromkeys([*fitting, *own]))


def _mode(name: str, options: QuantizeOptions) -> MlxMode | None:
    """The coding of a name; None for a floating-point type."""
    mode = find_mlx_mode(name)
    is_affine = mode is not None and mode.mode == "affine"
    return find_mlx_mode(name, options.group_size) if is_affine else mode


def _nbytes(tensor: PlannedTensor, choice: MlxMode | str) -> int:
    """Bytes of a weight and its scales and biases."""
    if isinstance(choice, str):
        return tensor_nbytes(TensorSpec(tensor.name, choice, tensor.shape))
    elements = math.prod(tensor.shape)
    scale_bytes = 1
    if choice.mode == "affine":  # a scale and a bias
        scale_bytes = 2 * (2 if tensor.type_name in ("f16", "bf16") else 4)
    return elements * choice.bits // 8 + elements // choice.group_size * scale_bytes


def _measured(
    tensors: Sequence[PlannedTensor], options: QuantizeOptions, measuring: Measuring | None
) -> list[list[Coding]]:
    known = {} if options.sensitivity is None else read_sensitivities(options.sensitivity)
    errors: list[dict[str, float]] = []
    names = [_candidates(tensor, options) for tensor in tensors]
    for tensor, own in zip(tensors, names, strict=True):
        if measuring is not None:
            measuring(len(errors), len(tensors), tensor.name)
        tried = [known[tensor.name].type_name] if tensor.name in known else []
        wanted = list(dict.fromkeys([*own, *tried]))
        sample, _ = sample_rows(tensor, None)
        decoded = partial(_decoded, options, tensor.type_name)
        errors.append(dict(zip(wanted, relative_errors(sample, None, wanted, decoded), strict=True)))
    weights = [1.0] * len(tensors)
    if known:
        weights = weights_by_divergence([tensor.name for tensor in tensors], errors, weights, known)
    return [
        [Coding(name, _nbytes(tensor, _mode(name, options) or name), weight * found[name]) for name in own]
        for tensor, own, found, weight in zip(tensors, names, errors, weights, strict=True)
    ]


def _decoded(
    options: QuantizeOptions, type_name: str, values: Tensor, name: str, _importance: Importance | None
) -> Floats:
    mode = _mode(name, options)
    left = values.to(name) if mode is None else _left(mode, type_name, values)
    result: Floats = left.to("f32").numpy()
    return result
