"""The tensors of an adapter by module, whatever format it is stored in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError, ShapeError
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.files.formats.source import is_directory
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.lora.config import CONFIG_NAME, WEIGHTS_NAME, AdapterConfig, read_config
from lbrx.tensors.tensor import Tensor

PREFIX = "base_model.model."  # how PEFT wraps the names of the model
MLX_WEIGHTS_NAME = "adapters.safetensors"
_PARTS = ("A", "B", "embedding_A", "embedding_B", "magnitude_vector", "bias")
_TOKENS = "token_adapter"


@dataclass(slots=True)
class AdapterParts:
    """An adapter as PEFT stores it: by module and part (``A``, ``B``, ...), and tensors that replace one as a whole.

    ``rows`` are new rows of embeddings, by the name of the embedding. ``file_names`` are for messages: the first part
    of each module, under the name of its weight, and of replacements.
    """

    path: Path  # of the weights
    config: AdapterConfig
    format: str = "peft"
    of_modules: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    replacements: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, tuple[tuple[int, ...], Tensor]] = field(default_factory=dict)
    file_names: dict[str, str] = field(default_factory=dict)
    own: dict[str, tuple[int, float]] = field(default_factory=dict)  # rank and scale, instead of those of the config

    def rank_of(self, module: str) -> int:
        return self.own[module][0] if module in self.own else self.config.rank_of(module)

    def scale_of(self, module: str) -> float:
        return self.own[module][1] if module in self.own else self.config.scale(module)

    @property
    def label(self) -> str:
        """The adapter in messages: its directory or file."""
        return str(self.path if self.path.suffix == ".gguf" else self.path.parent)

    def put(self, module: str, part: str, tensor: Tensor, name: str) -> None:
        parts = self.of_modules.setdefault(module, {})
        if part in parts:
            raise FormatError(f"{self.path}: module {module!r} has two tensors lora_{part}; expected one adapter")
        parts[part] = tensor
        self.file_names.setdefault(module + ".weight", name)


def read_parts(path: Path, base_config: Mapping[str, Any] | None = None) -> AdapterParts:
    """Read an adapter of PEFT, MLX or GGUF. ``base_config`` is that of the base model, which GGUF needs."""
    if path.suffix == ".gguf" and not is_directory(path):
        from lbrx.jobs.lora.gguf_adapter import read_gguf_adapter

        return read_gguf_adapter(path, base_config)
    if is_mlx_adapter(path):
        from lbrx.jobs.lora.mlx_adapter import read_mlx_adapter

        return read_mlx_adapter(path)
    return read_peft_adapter(path)


def check_factors(parts: AdapterParts) -> None:
    """Raise if a module lacks a factor, or factors do not have the rank of the config.

    Factors of whole parameters, whose ranks count experts too, are left to those that know the parameter.
    """
    for module in () if parts.config.target_parameters else parts.of_modules:
        check_rank(parts, module, factor_prefix(parts, module))


def factor_prefix(parts: AdapterParts, module: str) -> str:
    """How the names of both factors of a module begin. Raises if one is missing."""
    factors = parts.of_modules[module]
    prefix = "embedding_" if "embedding_A" in factors or "embedding_B" in factors else ""
    for part in (f"{prefix}A", f"{prefix}B"):
        if part not in factors:
            raise FormatError(f"{parts.path}: module {module!r} has no lora_{part}")
    return prefix


def check_rank(parts: AdapterParts, module: str, prefix: str) -> None:
    """Raise if the factors of a module are no matrices of floats, or do not have the rank of the config."""
    expected = parts.rank_of(module)
    for part, axis in (("A", 0), ("B", 1)):
        factor = parts.of_modules[module][prefix + part]
        label = f"{parts.path}: lora_{prefix}{part} of {module!r}"
        if factor.ndim < 2 or not factor.dtype.is_float:
            raise ShapeError(f"{label} is {factor.dtype} of shape {factor.shape}; expected a matrix of floats")
        if factor.shape[axis] != expected:
            raise ShapeError(
                f"{label} has shape {factor.shape}, but axis {axis} is the rank, "
                f"which is {expected} in {parts.config.path.name}"
            )


def is_mlx_adapter(path: Path) -> bool:
    """Return whether a directory has an adapter of mlx_lm."""
    if not (path / MLX_WEIGHTS_NAME).exists():
        return False
    return "peft_type" not in read_json(path / CONFIG_NAME)


def read_peft_adapter(path: Path) -> AdapterParts:
    """Read an adapter in a directory of PEFT."""
    config = read_config(path)
    weights = open_weights(path, WEIGHTS_NAME)
    parts = AdapterParts(path / WEIGHTS_NAME, config)
    for name, tensor in weights.items():
        _sort(parts, name, tensor)
    return parts


def open_weights(directory: Path, name: str) -> Checkpoint:
    path = directory / name
    if not path.exists():
        pickled = directory / "adapter_model.bin"
        hint = f" but {pickled.name}, a pickle, which can run code; convert it first" if pickled.exists() else ""
        raise FileError(f"{directory}: has no {name}{hint}")
    weights = open_checkpoint(path)
    if not len(weights):
        raise FormatError(f"{path}: has no tensors; expected those of a LoRA adapter")
    return weights


def _sort(parts: AdapterParts, name: str, tensor: Tensor) -> None:
    components = name.removeprefix(PREFIX).split(".")
    if _TOKENS in components:
        _add_rows(parts, components, tensor, name)
        return
    index = next((index for index, text in enumerate(components) if text.startswith("lora_")), None)
    if index is None:
        target = _replaced_name(components)
        parts.replacements[target] = tensor
        parts.file_names[target] = name
        return
    module, part, end = ".".join(components[:index]), components[index][len("lora_") :], components[index + 1 :]
    part = "bias" if part == "B" and end[-1:] == ["bias"] else part
    if part not in _PARTS or not module:
        raise FormatError(f"{parts.path}: tensor {name!r} is not part of a LoRA adapter that lbrx can read")
    parts.put(module, part, tensor, name)


def _add_rows(parts: AdapterParts, components: list[str], tensor: Tensor, name: str) -> None:
    """Add rows of an embedding that were trained alone."""
    module = ".".join(components[: components.index(_TOKENS)])
    indices = parts.config.token_indices or {}
    numbers = next((given for key, given in indices.items() if module == key or module.endswith(f".{key}")), None)
    if numbers is None or components[-1] != "trainable_tokens_delta":
        raise FormatError(f"{parts.path}: tensor {name!r} has no row numbers in trainable_token_indices")
    if tensor.ndim != 2 or tensor.shape[0] != len(numbers):
        raise FormatError(
            f"{parts.path}: {name!r} has shape {tensor.shape}, but trainable_token_indices has {len(numbers)} rows"
        )
    parts.rows[module + ".weight"] = (numbers, tensor)
    parts.file_names[module + ".weight"] = name


def _replaced_name(components: list[str]) -> str:
    """The name in the model of a tensor that is saved whole, without the wrappers that PEFT puts around modules."""
    names = [text for text in components if text not in ("base_layer", "modules_to_save")]
    if "modules_to_save" in components and "default" in names:
        names.remove("default")
    return ".".join(names)
