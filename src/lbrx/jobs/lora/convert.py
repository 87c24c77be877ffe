"""``lbrx.convert_lora``: adapters of PEFT, MLX and llama.cpp, each as one of the others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lbrx.base import system
from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.locating import locate
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.model_files import CONFIG_NAME as MODEL_CONFIG_NAME
from lbrx.files.formats.strict_json import read_json
from lbrx.files.output.save import save
from lbrx.jobs.lora.config import CONFIG_NAME
from lbrx.jobs.lora.gguf_adapter import gguf_contents
from lbrx.jobs.lora.mlx_adapter import mlx_contents
from lbrx.jobs.lora.parts import MLX_WEIGHTS_NAME, PREFIX, AdapterParts, check_factors, read_parts
from lbrx.jobs.lora.peft_directory import adapter_directory, peft_config, write_adapter
from lbrx.tensors.tensor import Tensor

FORMATS = ("peft", "mlx", "gguf")
TYPES = ("f32", "bf16", "f16")


def convert_lora(
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    base: str | os.PathLike[str] | None = None,
    type: str | None = None,
) -> Path:
    """Write an adapter in another format: a directory of PEFT or MLX, or a GGUF file for llama.cpp.

    ``format`` is ``"peft"``, ``"mlx"`` or ``"gguf"``. By default it follows from a name that ends in .gguf; otherwise
    an adapter of PEFT becomes one of MLX, and others one of PEFT. ``base`` is the base model, needed for GGUF if the
    adapter does not name a local one; only its config is read.
    ``type`` is that of the factors: by default f32 in GGUF, else unchanged.

    >>> import lbrx, tempfile
    >>> from lbrx.demo.models import demo_models
    >>> models, folder = demo_models(), tempfile.mkdtemp()
    >>> _ = lbrx.extract_lora(models.code, models.base, f"{folder}/adapter", rank=2, modules="q_proj")
    >>> convert_lora(f"{folder}/adapter", f"{folder}/adapter.gguf").name
    'adapter.gguf'
    """
    source, target = locate(os.fspath(adapter)), Path(out)
    if type is not None and type not in TYPES:
        raise UsageError(f"adapters are not stored as {type!r}; expected one of {', '.join(TYPES)}")
    given = None if base is None else base_config(os.fspath(base))
    parts = read_parts(source, given)
    check_factors(parts)
    chosen = format or _format_of(target, parts.format)
    if chosen not in FORMATS:
        raise UsageError(f"unknown format {chosen!r} of an adapter; expected one of {', '.join(FORMATS)}")
    if (target.suffix == ".gguf") != (chosen == "gguf"):
        expected = "a name that ends in .gguf" if chosen == "gguf" else "the name of a directory"
        raise UsageError(f"{target}: is not a name for an adapter of {chosen}; expected {expected}")
    write_parts(parts, target, chosen, given, type)
    return target


def write_parts(
    parts: AdapterParts, out: Path, format: str, config: Mapping[str, Any] | None, type_name: str | None
) -> None:
    """Write an adapter in a format."""
    if format == "gguf":
        if out.exists():
            raise FileError(f"{out}: exists; expected a new file for the adapter")
        tensors, metadata = gguf_contents(parts, config or _named_base(parts), type_name)
        save(out, tensors, metadata)
        return
    if parts.config.target_parameters:
        raise UsageError(f"{parts.label}: has factors of whole parameters (target_parameters), which are PEFT's alone")
    with adapter_directory(out) as directory:
        if format == "mlx":
            tensors, settings = mlx_contents(parts, type_name)
            save(directory / MLX_WEIGHTS_NAME, tensors, {"format": "mlx"})
            system.write_file(directory / CONFIG_NAME, (json.dumps(settings, indent=2) + "\n").encode())
        else:
            write_adapter(directory, *peft_contents(parts, type_name))


def peft_contents(parts: AdapterParts, type_name: str | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the config of an adapter for PEFT."""
    tensors: dict[str, Tensor] = {}
    for module, factors in parts.of_modules.items():
        for part, value in factors.items():
            name = f"{PREFIX}{module}.lora_{part}" + ("" if part.startswith("embedding") else ".weight")
            tensors[name] = value if type_name is None or part == "magnitude_vector" else value.to(type_name)
    for name, whole in parts.replacements.items():
        tensors[PREFIX + name] = whole
    ranks = {module: parts.rank_of(module) for module in parts.of_modules}
    alphas = {module: parts.scale_of(module) * rank for module, rank in ranks.items()}
    is_transposed = parts.config.fan_in_fan_out
    config = peft_config(parts.config.base_name, ranks, list(ranks), list(parts.replacements), is_transposed)
    alpha = _most_common(alphas.values())
    config["lora_alpha"] = _plain(alpha)
    differing = {module: own for module, own in alphas.items() if abs(own - alpha) > 1e-9 * abs(alpha)}
    config["alpha_pattern"] = {module: _plain(own) for module, own in differing.items()}
    config["use_dora"] = parts.config.use_dora
    return tensors, config


def _most_common(values: Iterable[float]) -> float:
    listed = list(values)
    return max(listed, key=listed.count, default=1.0)


def _plain(alpha: float) -> float | int:
    """Return an alpha as a whole number if it is one, up to the rounding of a division."""
    return round(alpha) if abs(alpha - round(alpha)) <= 1e-9 * abs(alpha) else alpha


def base_config(base: str) -> dict[str, Any]:
    """Return the config.json of a base model, made from its metadata if it is a GGUF file."""
    path = locate(base)
    if path.is_dir() and (path / MODEL_CONFIG_NAME).is_file():
        return read_json(path / MODEL_CONFIG_NAME)
    if path.suffix == ".gguf":
        from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
        from lbrx.jobs.convert.reading import read_contents

        return dict(gguf_to_hf(read_contents(path)).config or {})
    config = open_checkpoint(path).config
    if config is None:
        raise UsageError(f"{base}: has no config.json; expected the base model of the adapter")
    return config


def _named_base(parts: AdapterParts) -> dict[str, Any]:
    name = parts.config.base_name
    if not name:
        raise UsageError(f"{parts.label}: does not name its base model; expected it as --base")
    try:
        return base_config(name)
    except FileError as error:
        raise UsageError(f"{parts.label}: its base model {name!r} was not found; expected it as --base") from error


def _format_of(out: Path, source: str) -> str:
    if out.suffix == ".gguf":
        return "gguf"
    return "mlx" if source == "peft" else "peft"
