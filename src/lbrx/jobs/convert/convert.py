"""``lbrx.convert``: a model in one format in, the same model in another out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from lbrx.errors import DTypeError, UsageError, nearest
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.contents import Contents, Format, PlannedTensor
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.plan import DEFAULT_SHARD_BYTES, NO_LIMIT_BYTES, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.convert.file_types import FLOAT_TYPES
from lbrx.jobs.convert.mlx_repack import with_blocks
from lbrx.jobs.convert.reading import read_contents
from lbrx.registry import load
from lbrx.tensors.dtype import DTYPES, dtype

FORMATS: tuple[Format, ...] = ("gguf", "mlx", "safetensors")

_STEPS: dict[tuple[Format, Format], str] = {
    ("safetensors", "gguf"): "lbrx.jobs.convert.hf_to_gguf:hf_to_gguf",
    ("gguf", "safetensors"): "lbrx.jobs.convert.gguf_to_hf:gguf_to_hf",
    ("safetensors", "mlx"): "lbrx.jobs.convert.mlx_directory:hf_to_mlx",
    ("mlx", "safetensors"): "lbrx.models.architectures.mlx_weights:mlx_to_hf",
    ("gguf", "mlx"): "lbrx.jobs.convert.mlx_gguf:gguf_to_mlx",
    ("mlx", "gguf"): "lbrx.jobs.convert.mlx_gguf:mlx_to_gguf",
}


@takes_run_options
def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    type: str | None = None,
    mmproj: bool = False,
    max_shard_bytes: int | str | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Write a model in another format: ``"gguf"``, ``"mlx"`` or ``"safetensors"``, by default what ``out`` ends in.

    ``type`` converts all weights to ``"f32"``, ``"f16"`` or ``"bf16"``, also quantized ones. Without it, weights keep
    their type, and stay quantized if the format has the same coding. With ``mmproj`` the output is a GGUF file with the
    tower and the projector of a vision-language model, which llama.cpp reads beside the language model.

    The other options, ``threads``, ``memory``, ``device``, ``cluster``, ``strict``, ``overwrite``, ``restart``,
    ``sync``, ``progress`` and ``planned``, are those of `lbrx.files.output.options.RunOptions`. Call it again with the
    same arguments to resume a run that was stopped.

    >>> import lbrx, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> lbrx.save(f"{folder}/a.safetensors", {"w": lbrx.full((4, 2), 1.0, "bf16")})
    >>> convert(f"{folder}/a.safetensors", f"{folder}/b.safetensors", type="f32").written_bytes
    32
    """
    return plan_and_execute(
        partial(plan_conversion, source, out, format=format, type=type, mmproj=mmproj, max_shard_bytes=max_shard_bytes),
        options,
    )


def plan_conversion(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    type: str | None = None,
    mmproj: bool = False,
    max_shard_bytes: int | str | None = None,
) -> ModelPlan:
    """Plan a conversion. Reads headers, configs and tokenizers, but no weights."""
    target = Path(out)
    restore_replaced(Staging(target))  # it may be the source
    wanted = output_format(target, format)
    type = None if type is None else _float_type(type)
    limit_bytes = shard_limit(max_shard_bytes, NO_LIMIT_BYTES if wanted == "gguf" else DEFAULT_SHARD_BYTES)
    with reading(source):
        keeps_codes = type is None and wanted != "safetensors" and not mmproj
        contents = read_contents(Path(source), keeps_codes=keeps_codes)
        if keeps_codes:
            contents = with_blocks(contents)
        converted = _mmproj(contents, type) if mmproj else in_format(contents, wanted, type)
        settings = {"type": type, **({"mmproj": True} if mmproj else {})}
        return plan_output(converted, target, max_shard_bytes=limit_bytes, settings_identity=settings)


def _mmproj(contents: Contents, type: str | None) -> Contents:
    from lbrx.jobs.convert.hf_to_mmproj import hf_to_mmproj

    return hf_to_mmproj(contents, type_name=type)


def in_format(contents: Contents, wanted: Format, type: str | None = None) -> Contents:
    """The same model in a format, with weights of a type if one is given; nothing is computed yet."""
    if type is not None:
        return _in_format_and_type(contents, wanted, type)
    return contents if contents.format == wanted else _step(contents.format, wanted)(contents)


def _in_format_and_type(contents: Contents, wanted: Format, type: str) -> Contents:
    """Blocks are decoded straight into the type; a GGUF file keeps in f32 what llama.cpp wants so."""
    if contents.format == wanted == "gguf":
        from lbrx.jobs.convert.gguf_retype import gguf_with_type

        return gguf_with_type(contents, type)
    if contents.format == "safetensors":
        plain = with_type(contents, type)
    else:
        plain = with_type(_step(contents.format, "safetensors")(contents, type_name=type), type)
    if wanted == "gguf":
        return _step("safetensors", "gguf")(plain, type_name=type)
    return in_format(plain, wanted)


def _step(source: Format, target: Format) -> Callable[..., Contents]:
    step: Callable[..., Contents] = load(_STEPS[source, target])
    return step


def output_format(out: Path, format: str | None) -> Format:
    """The format with this name, or by the ending of the path.

    >>> output_format(Path("model.gguf"), None), output_format(Path("model"), "mlx")
    ('gguf', 'mlx')
    """
    if format is None:
        return "gguf" if out.suffix == ".gguf" else "safetensors"
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}; expected one of {', '.join(FORMATS)}{nearest(format, FORMATS)}")
    return format


def _float_type(name: str) -> str:
    """A float type by any of its names, such as ``float16``."""
    with suppress(DTypeError):
        if (known := dtype(name).name) in FLOAT_TYPES:
            return known
    raise UsageError(
        f"cannot convert to {name!r}; expected one of {', '.join(FLOAT_TYPES)} ('lbrx quantize' writes other types)"
    )


def with_type(contents: Contents, type: str) -> Contents:
    """Floating weights cast to a type, in the config as well."""
    tensors = tuple(_cast(tensor, type) for tensor in contents.tensors)
    config = contents.config
    if config is not None:
        key = "dtype" if "dtype" in config else "torch_dtype"
        config = {**config, key: {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[type]}
    return replace(contents, tensors=tensors, config=config)


def _cast(tensor: PlannedTensor, type: str) -> PlannedTensor:
    dtype = DTYPES.get(tensor.type_name)
    if dtype is None or not dtype.is_float or dtype.name == type:
        return tensor
    return tensor.mapped(lambda values: values.to(type), type_name=type)
