"""A model in the format that a target has, before it is quantized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.convert import in_format
from lbrx.jobs.convert.file_types import FileType
from lbrx.jobs.quantize.coded import is_coded, refuse_to_requantize
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.jobs.quantize.targets import MlxTarget

_CONFIG_TYPES = {"float16": "f16", "bfloat16": "bf16"}


def check_output_format(out: Path, options: QuantizeOptions) -> None:
    """Raise if a name is not that of an output in the format of the target.

    >>> check_output_format(Path("out.gguf"), QuantizeOptions("q4_k_m"))
    """
    is_gguf = isinstance(options.target, FileType)
    if is_gguf and out.suffix != ".gguf":
        raise UsageError(f"{out}: a GGUF model is a file; expected a name that ends in .gguf")
    if not is_gguf and out.suffix == ".gguf":
        raise UsageError(f"{out}: {options.to} is not made in GGUF files; expected the name of a directory")


def in_target_format(contents: Contents, options: QuantizeOptions) -> Contents:
    """The model in the format of the target, before it is quantized."""
    target = options.target
    if isinstance(target, FileType) and contents.format == "gguf":
        return contents
    plain_type = _plain_type(options)
    if plain_type is not None and _is_quantized(contents):
        return in_format(contents, "gguf", plain_type)  # decoded straight into the type
    if plain_type is None:
        _check_source(contents, options)
    plain = _decoded(in_format(contents, "safetensors"))
    if isinstance(target, FileType):
        return in_format(plain, "gguf")
    return in_format(plain, "mlx") if isinstance(target, MlxTarget) else plain


def _plain_type(options: QuantizeOptions) -> str | None:
    """The type of plain numbers that all tensors are decoded to, or None if some are quantized."""
    target, others = options.target, options.overrides or options.output_type or options.embedding_type
    return target.base if isinstance(target, FileType) and not target.is_quantized and not others else None


def _decoded(contents: Contents) -> Contents:
    """A model without quantized tensors, which would keep their codings in another format."""
    config = contents.config or {}
    dtype_name = _CONFIG_TYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "f32")
    tensors = tuple(
        tensor.mapped(lambda values: values.dequantize().to(dtype_name), type_name=dtype_name)
        if is_coded(tensor.type_name)
        else tensor
        for tensor in contents.tensors
    )
    return replace(contents, tensors=tensors)


def _is_quantized(contents: Contents) -> bool:
    is_mlx = contents.format == "mlx" and bool((contents.config or {}).get("quantization"))
    return is_mlx or any(is_coded(tensor.type_name) for tensor in contents.tensors)


def _check_source(contents: Contents, options: QuantizeOptions) -> None:
    """A quantized source is decoded on the way to another format, which has to be allowed."""
    if options.allow_requantize:
        return
    coded = next((tensor for tensor in contents.tensors if is_coded(tensor.type_name)), None)
    if coded is not None:
        refuse_to_requantize(coded, str(options.to))
    form = "for MLX" if _is_quantized(contents) else contents.decoded_from and f"as {contents.decoded_from}"
    if form:
        raise UsageError(
            f"the model is quantized {form} already; quantize the original model, or give --allow-requantize"
        )
