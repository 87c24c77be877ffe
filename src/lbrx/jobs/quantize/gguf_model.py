"""A GGUF model quantized: types chosen, tensors coded, metadata brought up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lbrx.errors import UsageError
from lbrx.files.formats.gguf_encode import encode_pair
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES, FileType
from lbrx.jobs.convert.gguf_retype import FILE_TYPE_KEY, retyped_metadata
from lbrx.jobs.imatrix.files import Importance
from lbrx.jobs.quantize.budget import Measuring, choose_for_size
from lbrx.jobs.quantize.choice import Choice, choose_types
from lbrx.jobs.quantize.coded import CodedTensor, Quantization, misfit_warnings, refuse_to_requantize
from lbrx.jobs.quantize.feedback_pieces import stored_blocks
from lbrx.jobs.quantize.importance import Importances, check_importances, read_importances
from lbrx.jobs.quantize.options import KeyOverride, QuantizeOptions
from lbrx.jobs.quantize.pruning import pruned
from lbrx.models.architectures.gguf_roles import layer_of
from lbrx.tensors.tensor import Tensor

ARCHITECTURE_KEY = "general.architecture"


def check_requantized(contents: Contents, options: QuantizeOptions) -> None:
    """Raise for quantized tensors that would get another type, before anything is measured."""
    if options.allow_requantize or options.has_size or options.prune_layers:
        return
    assert isinstance(options.target, FileType)
    choices = choose_types(contents, options.target, options)
    for tensor in contents.tensors:
        if choices[tensor.name].type_name != tensor.type_name:
            refuse_to_requantize(tensor, choices[tensor.name].type_name)


def quantize_gguf(contents: Contents, options: QuantizeOptions, measuring: Measuring | None = None) -> Quantization:
    """Plan the quantization of a GGUF model. Only errors of samples are computed, if there is a size to meet."""
    old_names = None
    if options.prune_layers:
        left = pruned(contents, options.prune_layers)
        contents, old_names = left.contents, left.old_names
    importances = read_importances(options, old_names)
    contents = replace(contents, metadata=_metadata(contents, options, importances))
    file_type, total_error = options.target, None
    others: tuple[tuple[int, float], ...] = ()
    assert isinstance(file_type, FileType)
    if options.has_size:
        selection = choose_for_size(contents, options, importances, measuring)
        choices, file_type, total_error = selection.choices, selection.file_type, selection.total_error
        others = selection.front
    else:
        choices = choose_types(contents, file_type, options)
    warnings = [
        *misfit_warnings(choices.values()),
        *_without_experts(file_type, choices),
        *check_importances(importances, file_type, contents.tensors, choices),
    ]
    coded = tuple(_coded(tensor, choices[tensor.name], options, importances) for tensor in contents.tensors)
    result = replace(
        contents,
        tensors=tuple(part for tensor in coded for part in tensor.parts),
        metadata=_with_file_type(contents.metadata, file_type, options),
        warnings=(*contents.warnings, *warnings),
    )
    return Quantization(result, coded, total_error, old_names, others)


def _without_experts(file_type: FileType, choices: Mapping[str, Choice]) -> Iterable[str]:
    """A warning if a file type for experts is used for a model without."""
    if file_type.name == "mxfp4_moe" and all(choice.type_name != "mxfp4" for choice in choices.values()):
        yield "the model has no stacks of experts, which mxfp4_moe is for: its matrices become q8_0"


def _coded(tensor: PlannedTensor, choice: Choice, options: QuantizeOptions, importances: Importances) -> CodedTensor:
    if choice.type_name == tensor.type_name:
        return CodedTensor(tensor, choice, (tensor,))
    if not options.allow_requantize:
        refuse_to_requantize(tensor, choice.type_name)
    blocks = None if options.feedback is None else stored_blocks(options.feedback, tensor, choice.type_name)
    if blocks is not None:
        return CodedTensor(tensor, choice, (PlannedTensor.of(tensor.name, blocks),))
    weights = importances.for_type(tensor, choice.type_name)
    part = tensor.mapped(lambda values: _recoded(values, choice.type_name, weights), type_name=choice.type_name)
    return CodedTensor(tensor, choice, (part,))


def _recoded(values: Tensor, type_name: str, weights: Importance | None) -> Tensor:
    decoded = values.dequantize()
    return decoded.to(type_name) if type_name in FLOAT_TYPES else decoded.quantize(type_name, weights)


def _metadata(contents: Contents, options: QuantizeOptions, importances: Importances) -> dict[str, Typed]:
    """All key-values of the output; the file type is changed if another one is chosen later."""
    assert isinstance(options.target, FileType)
    pairs, tensors = retyped_metadata(contents.metadata, options.target), contents.tensors
    for override in options.key_overrides:
        _check_key(override, pairs, tensors)
        pairs[override.key] = _typed_as_before(override, pairs)
    return pairs | importances.metadata()


def _check_key(override: KeyOverride, pairs: Mapping[str, Typed], tensors: Iterable[PlannedTensor]) -> None:
    """Raise for keys that have to agree with the tensors."""
    architecture = pairs[ARCHITECTURE_KEY].value if ARCHITECTURE_KEY in pairs else None
    if override.key == ARCHITECTURE_KEY and override.typed.value != architecture:
        raise UsageError(
            f"--override-kv {override.key}: the model is of the architecture {architecture!r}, which cannot be changed"
        )
    if override.key == f"{architecture}.block_count":
        layers = 1 + max((layer_of(tensor.name) or 0 for tensor in tensors), default=0)
        if override.typed.value != layers:
            raise UsageError(
                f"--override-kv {override.key}: the model has tensors of {layers} layers; "
                "use --prune-layers to remove some"
            )


def _with_file_type(metadata: Mapping[str, Any], file_type: FileType, options: QuantizeOptions) -> dict[str, Any]:
    if any(override.key == FILE_TYPE_KEY for override in options.key_overrides):
        return dict(metadata)
    return {**metadata, FILE_TYPE_KEY: Typed(file_type.number, "u32")}


def _typed_as_before(override: KeyOverride, pairs: Mapping[str, Typed]) -> Typed:
    """The value in the type that the key has, if both are whole or both are floating-point numbers and it fits."""
    before = pairs.get(override.key)
    if before is None or before.type == override.typed.type:
        return override.typed
    classes = {before.type[0], override.typed.type[0]}
    if before.element_type is not None or not (classes <= {"u", "i"} or classes == {"f"}):
        return override.typed
    typed = Typed(override.typed.value, before.type)
    try:
        encode_pair(override.key, typed)
    except UsageError:
        return override.typed
    return typed
