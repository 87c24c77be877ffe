"""Adapters of mlx_lm: factors with inputs first, one scale for all modules, experts in stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.lora.config import CONFIG_NAME, AdapterConfig
from lbrx.jobs.lora.parts import MLX_WEIGHTS_NAME, AdapterParts, open_weights
from lbrx.tensors.creation import concatenate, full, stack
from lbrx.tensors.tensor import Tensor

_PARTS = {"lora_a": "A", "lora_b": "B", "m": "magnitude_vector"}
_STACK = re.compile(r"(.*)\.switch_mlp\.(\w+)")
_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)")
_LAYER = re.compile(r"(?:.*\.)?layers\.\d+\.(.*)")
_EMBEDDING = re.compile(r"embed(?!_out)|wte|wpe")
_MIXTRAL_BLOCK, _MIXTRAL_NAMES = ".block_sparse_moe", {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def read_mlx_adapter(path: Path) -> AdapterParts:
    """Read an adapter in a directory of mlx_lm."""
    settings = read_json(path / CONFIG_NAME)
    where = path / CONFIG_NAME
    tuning = settings.get("fine_tune_type", "lora")
    if tuning not in ("lora", "dora"):
        raise UsageError(f"{where}: fine_tune_type is {tuning!r}; expected 'lora' or 'dora'")
    parameters = settings.get("lora_parameters")
    scale = parameters.get("scale") if isinstance(parameters, Mapping) else None
    rank = parameters.get("rank") if isinstance(parameters, Mapping) else None
    if not isinstance(scale, int | float) or not isinstance(rank, int) or isinstance(scale, bool) or rank < 1:
        raise FormatError(f"{where}: lora_parameters are {parameters!r:.80}; expected a rank and a scale")
    base_name = str(settings.get("model") or "")
    config = AdapterConfig(where, rank, float(scale) * rank, {}, use_dora=tuning == "dora", base_name=base_name)
    parts = AdapterParts(path / MLX_WEIGHTS_NAME, config, "mlx")
    for name, tensor in open_weights(path, MLX_WEIGHTS_NAME).items():
        module, _, part = name.rpartition(".")
        if part not in _PARTS or not module:
            raise FormatError(f"{parts.path}: tensor {name!r} is not part of a LoRA adapter of mlx_lm")
        _put(parts, module, part, tensor, name)
    parts.own = {module: (rank, float(scale)) for module in parts.of_modules}
    return parts


def _put(parts: AdapterParts, module: str, part: str, tensor: Tensor, name: str) -> None:
    found = _STACK.fullmatch(module)
    if tensor.ndim == 3 and found:
        block, projection = found.groups()
        if block.endswith(_MIXTRAL_BLOCK):
            projection = {long: short for short, long in _MIXTRAL_NAMES.items()}.get(projection, projection)
        for expert in range(tensor.shape[0]):
            parts.put(f"{block}.experts.{expert}.{projection}", _PARTS[part], tensor[expert], name)
        return
    if part == "m":
        parts.put(module, _PARTS[part], tensor, name)
        return
    if tensor.ndim != 2:
        raise FormatError(f"{parts.path}: {name!r} has shape {tensor.shape}; expected a matrix")
    prefix = "embedding_" if _EMBEDDING.search(module.rpartition(".")[2]) else ""
    parts.put(module, prefix + _PARTS[part], tensor.T, name)


def mlx_contents(parts: AdapterParts, type_name: str | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the config of an adapter for mlx_lm, with the values of PEFT if ranks and scales agree.

    mlx_lm has one rank and one scale: smaller ranks are filled with zeros, other scales go into lora_b.
    """
    lost = [*parts.replacements, *parts.rows]
    lost += [module + ".bias" for module, factors in parts.of_modules.items() if "bias" in factors]
    if lost:
        raise UsageError(
            f"{parts.label}: {len(lost)} tensors are saved as a whole or are biases, such as {lost[0]!r}, "
            "which adapters of mlx_lm cannot have"
        )
    rank = max(parts.rank_of(module) for module in parts.of_modules)
    scales = [parts.scale_of(module) for module in parts.of_modules]
    scale = max(scales, key=scales.count) or 1.0
    tensors: dict[str, Tensor] = {}
    experts: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}
    keys: dict[str, None] = {}
    for module, factors in parts.of_modules.items():
        is_embedding = "embedding_A" in factors
        prefix = "embedding_" if is_embedding else ""
        a, b = factors[f"{prefix}A"], factors[f"{prefix}B"]
        if parts.config.fan_in_fan_out and not is_embedding:
            raise UsageError(f"{parts.label}: its weights are stored as (inputs, outputs), which mlx_lm does not have")
        own = parts.scale_of(module)
        if own != scale:
            b = (b.to("f32") * (own / scale)).to(b.dtype)
        a, b = _filled(a, rank, 0), _filled(b, rank, 1)
        wanted = type_name or a.dtype.name
        a, b = a.to(wanted), b.to(wanted)
        found = _EXPERT.fullmatch(module)
        if found:
            name = _stack_name(*found.group(1, 3))
            experts.setdefault(name, {})[int(found[2])] = a, b
        else:
            name = module
            tensors[f"{module}.lora_a"], tensors[f"{module}.lora_b"] = a.T, b.T
            if "magnitude_vector" in factors:
                tensors[f"{module}.m"] = factors["magnitude_vector"].reshape(-1)
        in_layer = _LAYER.fullmatch(name)
        keys.setdefault(in_layer[1] if in_layer else name)
    for name, by_number in experts.items():
        if sorted(by_number) != list(range(len(by_number))):
            raise UsageError(f"{parts.label}: not all experts of {name!r} have factors, which mlx_lm needs")
        pairs = [by_number[number] for number in range(len(by_number))]
        tensors[f"{name}.lora_a"] = stack([a for a, _ in pairs])
        tensors[f"{name}.lora_b"] = stack([b for _, b in pairs])
    config = {
        "fine_tune_type": "dora" if parts.config.use_dora else "lora",
        "num_layers": -1,  # all
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": list(keys)},
        "model": parts.config.base_name,
    }
    return tensors, config


def _stack_name(block: str, projection: str) -> str:
    if block.endswith(_MIXTRAL_BLOCK):
        projection = _MIXTRAL_NAMES.get(projection, projection)
    return f"{block}.switch_mlp.{projection}"


def _filled(factor: Tensor, rank: int, axis: int) -> Tensor:
    """Return a factor with zeros up to a rank."""
    missing = rank - factor.shape[axis]
    if not missing:
        return factor
    shape = (missing, factor.shape[1]) if axis == 0 else (factor.shape[0], missing)
    return concatenate([factor, full(shape, 0.0, factor.dtype)], axis=axis)
