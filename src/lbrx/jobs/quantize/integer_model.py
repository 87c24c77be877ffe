"""A Hugging Face model whose linear layers and embeddings become integers with scales, in SafeTensors files."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from lbrx.errors import UsageError
from lbrx.files.checkpoint.integer_parts import separate_parts
from lbrx.files.formats.header import QUANTIZATION_KEY
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.quantize.choice import Choice
from lbrx.jobs.quantize.coded import CodedTensor, Quantization, refuse_to_requantize
from lbrx.jobs.quantize.mlx_model import is_layer
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.jobs.quantize.targets import IntegerTarget
from lbrx.tensors.creation import full
from lbrx.tensors.tensor import Tensor


def quantize_integers(contents: Contents, options: QuantizeOptions) -> Quantization:
    """What becomes of a SafeTensors model; nothing is computed."""
    target = options.target
    assert isinstance(target, IntegerTarget)
    coded = []
    descriptions: dict[str, object] = {}
    for tensor in contents.tensors:
        choice = _choose(tensor, target, options)
        if choice.type_name == tensor.type_name:
            coded.append(CodedTensor(tensor, choice, (tensor,)))
            continue
        if not options.allow_requantize:
            refuse_to_requantize(tensor, choice.type_name)
        parts, description = _parts(tensor, choice, target)
        descriptions |= description
        coded.append(CodedTensor(tensor, choice, parts))
    tensors = tuple(part for tensor in coded for part in tensor.parts)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        clash = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{clash!r} is the name of a tensor and of a part of a quantized one; rename it")
    metadata = {**contents.metadata}
    if descriptions:
        metadata[QUANTIZATION_KEY] = json.dumps(descriptions, ensure_ascii=False, separators=(",", ":"))
    return Quantization(replace(contents, tensors=tensors, metadata=metadata), tuple(coded))


def _choose(tensor: PlannedTensor, target: IntegerTarget, options: QuantizeOptions) -> Choice:
    if not is_layer(tensor):
        return Choice(tensor.type_name, "not a linear layer or an embedding")
    is_output, is_embedding = tensor.name.endswith("lm_head.weight"), tensor.name.endswith("embed_tokens.weight")
    if is_output and options.leave_output:
        return Choice(tensor.type_name, "--leave-output")
    override = options.override_of(tensor.name)
    choice = Choice(target.scheme, "base coding")
    if override is not None:
        choice = Choice(override.type_name, f"--tensor-type {override.pattern}")
    if is_output and options.output_type is not None:
        choice = Choice(options.output_type.lower(), "--output-type")
    if is_embedding and options.embedding_type is not None:
        choice = Choice(options.embedding_type.lower(), "--embedding-type")
    if choice.type_name == target.scheme and tensor.shape[-1] % target.group_size:
        return Choice(
            tensor.type_name, f"rows of {tensor.shape[-1]} are not a multiple of the group size {target.group_size}"
        )
    return choice


def _parts(
    tensor: PlannedTensor, choice: Choice, target: IntegerTarget
) -> tuple[tuple[PlannedTensor, ...], dict[str, object]]:
    """The tensors of a coded weight, and what the file's metadata says of them."""
    if choice.type_name != target.scheme:
        cast = tensor.mapped(lambda values: values.dequantize().to(choice.type_name), type_name=choice.type_name)
        return (cast,), {}
    stand_in = full(tensor.shape, 0.0, "f32")  # types and names are the same whatever the values
    outline, metadata = _separated(tensor.name, target, stand_in)
    parts = tuple(
        tensor.renamed(name).mapped(
            partial(_part, tensor.name, name, target), shape=part.shape, type_name=part.type_name
        )
        for name, part in outline.items()
    )
    return parts, json.loads(metadata[QUANTIZATION_KEY])


def _separated(name: str, target: IntegerTarget, values: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
    coded = values.quantize(target.scheme, group_size=target.group_size)
    return separate_parts({name: coded}, {}, "safetensors")


def _part(name: str, part: str, target: IntegerTarget, values: Tensor) -> Tensor:
    return _separated(name, target, values.dequantize())[0][part]
