"""Which quantization a checkpoint has: from config.json, or from the names and types of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lbrx.files.formats.header import QUANTIZATION_KEY, TensorEntry

if TYPE_CHECKING:
    from lbrx.files.checkpoint.quantized.schemes import Scheme

_CODE_ENDINGS = {
    "_scale_inv": "FP8 and block scales",
    "_qdata": "torchao",
    ".q_weight": "EXL2",
    ".trellis": "EXL3",
    ".centroids.weight": "VPTQ",
    ".qweight": "GPTQ or AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight.absmax": "bitsandbytes",
    ".SCB": "bitsandbytes (int8)",
    ".W_q": "HQQ",
    ".weight._data": "quanto",
    ".weight_scale_2": "NVFP4 of ModelOpt",
    ".codebooks": "AQLM",
}
"""Endings of tensor names that only quantized models have."""
_SCALES = ("weight_scale", "weight_scales", "scale_weight", "scales", "scale", "input_scale", "qscale")
_TYPES_OF_CODES = ("f8", "i", "u")
_WHOLE_NUMBERS = ("i", "u")
_SETTINGS_KEYS = ("quantization_config", "compression_config")
_MLX_WORDS = "u32"


class Recognized(NamedTuple):
    """A quantization: its description, and its record if it can be decoded. ``settings`` are those of config.json."""

    description: str
    scheme: Scheme | None
    settings: Mapping[str, Any] | None = None


def recognize(
    format: str, entries: Sequence[TensorEntry], metadata: Mapping[str, Any], config: Mapping[str, Any]
) -> Recognized | None:
    """Return the quantization of a checkpoint. None: its tensors are plain, or of GGUF, MLX or lbrx."""
    types = {entry.name: entry.type_name for entry in entries}
    if format.startswith("gguf"):
        return _separate_nvfp4(types)
    if QUANTIZATION_KEY in metadata:
        return None
    if _is_mlx(config):
        types = {name: type_name for name, type_name in types.items() if type_name != _MLX_WORDS}
        return next((found for name in types if (found := _by_name(name, types)) is not None), None)
    sections = [config, *(section for section in config.values() if isinstance(section, Mapping))]
    for section in sections:
        for key in _SETTINGS_KEYS:
            if section.get(key):
                return _by_settings(section[key], key)
    if not any(type_name.startswith(_TYPES_OF_CODES) for type_name in set(types.values())):
        return None
    found = next((found for name in types if (found := _by_name(name, types)) is not None), None)
    return found or _whole_numbers(entries, config)


def _whole_numbers(entries: Sequence[TensorEntry], config: Mapping[str, Any]) -> Recognized | None:
    """Matrices of whole numbers in a model: codes whose scales are somewhere else, or lost."""
    for entry in entries if config.get("model_type") else ():
        if entry.name.endswith(".weight") and len(entry.shape) == 2 and entry.type_name.startswith(_WHOLE_NUMBERS):
            return Recognized(f"{entry.type_name} codes without scales (tensor {entry.name!r})", None)
    return None


def _is_mlx(config: Mapping[str, Any]) -> bool:
    """Whether a config has the settings of MLX, which are in ``quantization_config``, too, without a method."""
    if not isinstance(config.get("quantization"), Mapping):
        return False
    others = (config.get(key) for key in _SETTINGS_KEYS)
    return not any(isinstance(each, Mapping) and {"quant_method", "quant_algo"} & each.keys() for each in others)


def without_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the settings of a quantization.

    >>> without_settings({"quantization_config": {}, "text_config": {"compression_config": {}, "a": 1}})
    {'text_config': {'a': 1}}
    """
    return {
        key: without_settings(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _SETTINGS_KEYS
    }


def _separate_nvfp4(types: Mapping[str, str]) -> Recognized | None:
    scales = (f"{name.removesuffix('.weight')}.scale" for name, codec in types.items() if codec == "nvfp4")
    scale = next((name for name in scales if name in types), None)
    return None if scale is None else Recognized(f"nvfp4 and separate scales (tensor {scale!r})", None)


def _by_settings(described: Any, key: str) -> Recognized:
    values: Mapping[str, Any] = described if isinstance(described, Mapping) else {}
    method = next((values[name] for name in ("quant_method", "quant_algo", "format") if values.get(name)), "unknown")
    description = f"the method {str(method)[:60]!r} ('{key}' of config.json)"
    scheme = _scheme_of(values, key)
    if scheme is None:
        return Recognized(description, None)
    unknown = scheme.unknown(values)
    if unknown is not None:
        return Recognized(f"{description} and {unknown}", None)
    return Recognized(description, scheme, values)


def _scheme_of(settings: Mapping[str, Any], key: str) -> Scheme | None:
    from lbrx.files.checkpoint.quantized.schemes import AUTO_ROUND, SCHEMES

    method = settings.get("quant_method")
    if method == "auto-round":
        return AUTO_ROUND.get(str(settings.get("packing_format")))
    if method is None and key == "compression_config":
        method = "compressed-tensors"
    if method is None and "quant_algo" in settings:
        method = "modelopt"
    return next((scheme for scheme in SCHEMES if method in scheme.methods), None)


def _by_name(name: str, types: Mapping[str, str]) -> Recognized | None:
    description = next((scheme for ending, scheme in _CODE_ENDINGS.items() if name.endswith(ending)), None)
    scales = f"{name}_scale"
    if name.endswith("_blocks") and f"{name.removesuffix('blocks')}scales" in types:
        description = "blocks and scales like MXFP4"
    elif description is None and types[name].startswith(_TYPES_OF_CODES):
        module = name.removesuffix(".weight")
        names = (f"{module}.{part}" for part in _SCALES) if module != name else (scales, f"{scales}s")
        found = next((each for each in names if each in types), None)
        description = None if found is None else f"{types[name]} codes and scales {found!r}"
    if description is None:
        return None
    from lbrx.files.checkpoint.quantized.schemes import BY_NAME, FP8, MODELOPT

    scheme = next((scheme for ending, scheme in BY_NAME.items() if name.endswith(ending)), None)
    if scales in types:
        scheme = MODELOPT if f"{scales}_2" in types else FP8 if types[name].startswith("f8") else None
    return Recognized(f"{description} (tensor {name!r})", scheme)
