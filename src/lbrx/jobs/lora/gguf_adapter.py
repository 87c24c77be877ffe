"""Adapters for llama.cpp: a GGUF file with two factors for each tensor of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.jobs.convert.hf_to_gguf import convertible_family
from lbrx.jobs.convert.matching import Pair, tensor_pairs
from lbrx.jobs.lora.config import AdapterConfig
from lbrx.jobs.lora.parts import AdapterParts
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_metadata import gguf_of
from lbrx.models.architectures.table import family_of_gguf
from lbrx.models.architectures.value_changes import to_gguf, to_hf
from lbrx.tensors.creation import stack
from lbrx.tensors.tensor import Tensor

ALPHA_KEY, TYPE_KEY = "adapter.lora.alpha", "adapter.type"
_FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32}
_EMBEDDING = "token_embd.weight"
_ENDINGS = {".lora_a": "A", ".lora_b": "B"}


def read_gguf_adapter(path: Path, base_config: Mapping[str, Any] | None) -> AdapterParts:
    """Read an adapter of llama.cpp. ``base_config`` is the config.json of its base model."""
    file = open_checkpoint(path)
    metadata = file.metadata
    if metadata.get("general.type") != "adapter" or metadata.get(TYPE_KEY) != "lora":
        raise FormatError(
            f"{path}: is of type {metadata.get('general.type')!r}, {metadata.get(TYPE_KEY)!r}; expected a LoRA adapter"
        )
    if base_config is None:
        raise UsageError(f"{path}: names and order of rows depend on the base model; expected its config (--base)")
    family, config = _family(base_config, [], str(path))
    found = family_of_gguf(metadata)
    if found is None or gguf_of(found).name != gguf_of(family).name:
        raise UsageError(
            f"{path}: is for the architecture {metadata.get('general.architecture')!r}, "
            f"but the base model is {gguf_of(family).name!r}"
        )
    alpha = metadata.get(ALPHA_KEY, 0.0)
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise FormatError(f"{path}: {ALPHA_KEY} is {alpha!r:.60}; expected a number")
    parts = AdapterParts(path, AdapterConfig(path, 1, float(alpha), {}), "gguf")
    known = {pair.gguf_name: pair for pair in tensor_pairs(family, config)}
    for name, tensor in file.items():
        _read(parts, known, config, name, tensor)
    ranks = {module: _rank(factors) for module, factors in parts.of_modules.items()}
    parts.own = {module: (rank, alpha / rank if alpha else 1.0) for module, rank in ranks.items()}
    is_transposed = any(pair.weight.is_transposed for pair in known.values())
    parts.config = replace(parts.config, rank=max(ranks.values(), default=1), fan_in_fan_out=is_transposed)
    return parts


def _family(base_config: Mapping[str, Any], names: list[str], where: str) -> tuple[Family, Config]:
    family = convertible_family(base_config, where)
    return family, family.whole_config(base_config, names, f"{where}: config.json of the base model")


def _rank(factors: Mapping[str, Tensor]) -> int:
    a = factors.get("A", factors.get("embedding_A"))
    return 1 if a is None else a.shape[0]


def _read(parts: AdapterParts, known: Mapping[str, Pair], config: Config, name: str, tensor: Tensor) -> None:
    base_name, part = next(
        ((name.removesuffix(ending), part) for ending, part in _ENDINGS.items() if name.endswith(ending)), (name, "")
    )
    if part and (tensor.ndim not in (2, 3) or not tensor.dtype.is_float):
        raise FormatError(f"{parts.path}: {name!r} is {tensor.type_name} of shape {tensor.shape}; expected a matrix")
    pair = known.get(base_name)
    if pair is None:
        raise FormatError(f"{parts.path}: tensor {name!r} belongs to no tensor of the base model")
    if not part:
        target = pair.hf_names[0]
        parts.replacements[target] = to_hf(tensor, pair.weight, config)
        parts.file_names[target] = name
        return
    if part == "B" and _has_other_rows(pair):
        tensor = to_hf(tensor, pair.weight, config)
    modules = [each.removesuffix(".weight") for each in pair.hf_names]
    if pair.weight.items is None:
        is_embedding = base_name == _EMBEDDING
        factor = tensor.T if is_embedding and part == "A" else tensor
        parts.put(modules[0], ("embedding_" if is_embedding else "") + part, factor, name)
        return
    if tensor.ndim != 3 or tensor.shape[0] != len(modules):
        raise FormatError(f"{parts.path}: {name!r} has shape {tensor.shape}, but there are {len(modules)} experts")
    for expert, module in enumerate(modules):
        parts.put(module, part, tensor[expert], name)


def gguf_contents(
    parts: AdapterParts, base_config: Mapping[str, Any], type_name: str | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the key-values of an adapter for llama.cpp.

    llama.cpp multiplies a product by alpha over its rank; other scales go into lora_b.
    """
    family, config = _family(base_config, [], parts.label)
    if parts.config.use_dora or parts.rows:
        raise UsageError(f"{parts.label}: has DoRA or rows of embeddings, which llama.cpp does not apply")
    pairs = {name: pair for pair in tensor_pairs(family, config) for name in pair.hf_names}
    alphas = [round(parts.scale_of(module) * parts.rank_of(module), 9) for module in parts.of_modules]
    alpha = max(alphas, key=alphas.count, default=1.0) or 1.0  # llama.cpp takes 0 for a scale of 1
    done: dict[str, None] = {}
    tensors: dict[str, Tensor] = {}
    for name, whole in parts.replacements.items():
        pair = _pair(parts, pairs, family.translate(name, family.namings[0]))
        if not pair.gguf_name.endswith("_norm.weight"):
            raise UsageError(f"{parts.label}: {name!r} is saved as a whole, which llama.cpp does not read in adapters")
        tensors[pair.gguf_name] = to_gguf(whole, pair.weight, config).to("f32")
    for module in parts.of_modules:
        pair = _pair(parts, pairs, family.translate(module + ".weight", family.namings[0]))
        if pair.gguf_name in done:
            continue
        done[pair.gguf_name] = None
        a, b = _factors(parts, pair, family, config, alpha)
        wanted = type_name or "f32"
        tensors[f"{pair.gguf_name}.lora_a"], tensors[f"{pair.gguf_name}.lora_b"] = a.to(wanted), b.to(wanted)
    metadata = {
        "general.architecture": gguf_of(family).name,
        "general.type": "adapter",
        TYPE_KEY: "lora",
        "general.file_type": _FILE_TYPES[type_name or "f32"],
        ALPHA_KEY: float(alpha),
        "general.quantization_version": 2,
    }
    return tensors, metadata


def _pair(parts: AdapterParts, pairs: Mapping[str, Pair], name: str) -> Pair:
    pair = pairs.get(name)
    if pair is None:
        raise UsageError(f"{parts.label}: {name!r} is not a tensor that the GGUF file of the base model has")
    return pair


def _factors(parts: AdapterParts, pair: Pair, family: Family, config: Config, alpha: float) -> tuple[Tensor, Tensor]:
    names = {family.translate(module + ".weight", family.namings[0]): module for module in parts.of_modules}
    made = [_factor(parts, pair, names.get(name), config, alpha, name) for name in pair.hf_names]
    if pair.weight.items is None:
        a, b = made[0]
        return (a.T if pair.gguf_name == _EMBEDDING else a), b
    return stack([a for a, _ in made]), stack([b for _, b in made])


def _factor(
    parts: AdapterParts, pair: Pair, module: str | None, config: Config, alpha: float, name: str
) -> tuple[Tensor, Tensor]:
    if module is None:
        raise UsageError(f"{parts.label}: has no factors for {name!r}, but for other experts; expected all or none")
    factors = parts.of_modules[module]
    prefix = "embedding_" if "embedding_A" in factors else ""
    if "bias" in factors:
        raise UsageError(f"{parts.label}: module {module!r} has a lora_B.bias, which llama.cpp does not have")
    a, b = factors[f"{prefix}A"], factors[f"{prefix}B"]
    shape = pair.shape[::-1] if pair.weight.is_transposed else pair.shape
    if (b.shape[0], a.shape[1]) != shape and not prefix:
        raise UsageError(
            f"{parts.label}: the product of {module!r} has shape {(b.shape[0], a.shape[1])}, "
            f"but the base model has {shape}"
        )
    factor = parts.scale_of(module) * parts.rank_of(module) / alpha
    if abs(factor - 1) > 1e-9:
        b = b.to("f32") * factor
    return a, to_gguf(b, pair.weight, config) if _has_other_rows(pair) else b


def _has_other_rows(pair: Pair) -> bool:
    """Whether GGUF has the rows of a matrix in another order."""
    return pair.weight.paired_by is not None or pair.weight.grouped_by is not None
