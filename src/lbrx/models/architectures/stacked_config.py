"""The config.json of a model with other layers, vocabulary or dtype than its inputs."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.models.architectures.config import Values, text_section
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.layer_settings import LAYER_SETTINGS
from lbrx.models.architectures.records import LayerRule
from lbrx.models.architectures.table import known_family
from lbrx.tensors.dtype import DType
from lbrx.tensors.dtype import dtype as dtype_of

LayerSource = int | tuple[int, int]  # a layer of the config itself, or (index of a source config, layer)

_LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DECODER_COUNT_KEYS = ("decoder_layers", "num_decoder_layers")
_DTYPE_KEYS = ("torch_dtype", "dtype")
_UNKNOWN = Family("unknown", (), (), (), (), (), layer_prefix="")
# Lists with one value per layer. Others are recognised by their names and lengths.
_PER_LAYER_KEYS = frozenset(
    {"layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers", "attention_layers", "intermediate_size"}
)
_PER_LAYER_NAME = re.compile(r"(^|_)layer_|_types$|_per_layer$|_pattern$")
# Lists of the numbers of some layers.
_LAYER_INDEX_KEYS = (
    "mlp_only_layers",
    "moe_layers",
    "cross_attention_layers",
    "rope_scaling_layers",
    "attn_layer_indices",
    "hybrid_layer_ids",
    "full_attn_idxs",
)
_LAYER_TEXTS = ("hybrid_override_pattern",)  # one letter per layer
_LAYER_INDEX_NAME = re.compile(r"_(ids|idxs|indices|indexes|layers)$")


def stacked_config(
    config: Values,
    layer_sources: Sequence[LayerSource] | None = None,
    *,
    source_configs: Sequence[Values] = (),
    vocab_size: int | None = None,
    dtype: DType | str | None = None,
    architecture: Family | None = None,
) -> dict[str, Any]:
    """Return a copy of ``config`` for an output with the given layers; None keeps the layers.

    ``layer_sources`` gives the source of every output layer: a number is a layer of ``config`` itself,
    a pair is a layer of one of ``source_configs``. The number of layers, lists with one value per layer and
    lists of layer numbers are updated. Properties that the architecture derives from the position of a layer, such as
    full attention in every sixth layer of Gemma 3, are written out if the new order would imply other values.

    >>> config = {"num_hidden_layers": 3, "layer_types": ["full", "sliding", "full"]}
    >>> stacked_config(config, [0, 1, 1, 2])
    {'num_hidden_layers': 4, 'layer_types': ['full', 'sliding', 'sliding', 'full']}
    >>> stacked_config({"vocab_size": 64, "torch_dtype": "float32"}, vocab_size=80, dtype="bf16")
    {'vocab_size': 80, 'torch_dtype': 'bfloat16'}
    """
    result = copy.deepcopy(dict(config))
    if layer_sources is not None:
        architecture = architecture or known_family(config) or _UNKNOWN
        layers = [_find_layer(source, config, source_configs, architecture) for source in layer_sources]
        updates = _layer_updates(config, layers, architecture)
        _language_section(result).update(updates)
        # Multi-modal configs may repeat keys of the language model at the top.
        result.update({key: value for key, value in updates.items() if key in result})
    if vocab_size is not None:
        _set_vocab_size(result, vocab_size)
    if dtype is not None:
        _set_dtype(result, dtype_of(dtype))
    return result


def described_layers(config: Values, layer_count: int) -> list[tuple[Any, ...]]:
    """What the lists of a config say of each layer: values that are equal describe equal layers.

    >>> described_layers({"layer_types": ["full", "sliding"], "moe_layers": [1]}, 2)
    [('full', False), ('sliding', True)]
    """
    section = text_section(config)
    lists = {key: value for key, value in section.items() if _is_list(value)}
    listed = [value for key, value in lists.items() if _is_per_layer(key, value, layer_count)]
    indexed = [value for key, value in lists.items() if key in _LAYER_INDEX_KEYS]
    return [
        (
            *(repr(each[layer]) if isinstance(each[layer], list | dict) else each[layer] for each in listed),
            *(layer in each for each in indexed),
        )
        for layer in range(layer_count)
    ]


@dataclass(frozen=True)
class _Layer:
    """The source of an output layer."""

    config: Values
    number: int


def _find_layer(source: LayerSource, config: Values, source_configs: Sequence[Values], architecture: Family) -> _Layer:
    if isinstance(source, int):
        layer = _Layer(config, source)
    elif 0 <= source[0] < len(source_configs):
        layer = _Layer(source_configs[source[0]], source[1])
    else:
        raise UsageError(f"layer source {source} names model {source[0]}, but there are {len(source_configs)}")
    layer_count = _layer_count(layer.config, architecture)
    if not 0 <= layer.number < layer_count:
        raise UsageError(f"layer source {source}: the model has {layer_count} layers, numbered from 0")
    return layer


def _layer_count(config: Values, architecture: Family) -> int:
    section = text_section(config)
    key = _layers_key(section, architecture)
    count = section.get(key)
    if count is None:
        return architecture.layer_count(config)
    if not isinstance(count, int):
        raise UsageError(f"config.json: {key!r} is {count!r}; expected the number of layers")
    return count


def _layers_key(section: Values, architecture: Family) -> str:
    """The key that holds the number of layers, or the one that should."""
    keys: tuple[str, ...] = (architecture.layers_key, *_LAYER_COUNT_KEYS)
    if section.get("is_encoder_decoder") or any(key in section for key in _DECODER_COUNT_KEYS):
        # The usual keys count the layers of the encoder.
        is_decoder = "decoder" in architecture.layer_prefix
        default = "num_decoder_layers" if "num_layers" in section else "decoder_layers"
        keys = (default, *_DECODER_COUNT_KEYS) if is_decoder else ("encoder_layers", "num_layers", *keys)
    return next((key for key in keys if section.get(key) is not None), keys[0])


def _layer_updates(config: Values, layers: Sequence[_Layer], architecture: Family) -> dict[str, Any]:
    """Return the changed keys in the language model's section of a config with these layers."""
    rules = architecture.layer_rules
    section = text_section(config)
    updates: dict[str, Any] = {_layers_key(section, architecture): len(layers)}
    if section.get("num_nextn_predict_layers"):
        updates["num_nextn_predict_layers"] = 0  # a stack has none of them
    for key in _LAYER_TEXTS:
        if isinstance(section.get(key), str):
            updates[key] = "".join(_letter(key, layer, architecture) for layer in layers)
    for key in _per_layer_keys(config, layers, architecture):
        updates[key] = [_listed_value(key, layer, architecture) for layer in layers]
    updates |= _settings_of_layers(config, layers)
    for rule in rules:
        if rule.key not in updates:
            updates |= _explicit_rule(rule, config, layers, architecture)
    for key in _LAYER_INDEX_KEYS:
        is_used = any(_is_list(text_section(source).get(key)) for source in _configs(config, layers))
        if is_used and all(rule.key != key for rule in rules):
            updates[key] = [i for i, layer in enumerate(layers) if _is_indexed(key, layer)]
    return updates | _window_updates(config, layers, updates, architecture)


def _settings_of_layers(config: Values, layers: Sequence[_Layer]) -> dict[str, Any]:
    """Return the settings of single layers under the new numbers of the layers."""
    sources = [text_section(source).get(LAYER_SETTINGS) for source in _configs(config, layers)]
    if not any(sources):
        return {}
    if not all(isinstance(source, Mapping) for source in sources):
        raise UsageError(f"config.json has no {LAYER_SETTINGS!r}, but the config of another stacked model has it")
    listed = [text_section(layer.config)[LAYER_SETTINGS].get(str(layer.number)) for layer in layers]
    return {LAYER_SETTINGS: {str(number): each for number, each in enumerate(listed) if each is not None}}


def _letter(key: str, layer: _Layer, architecture: Family) -> str:
    """Return the letter of a layer in a text of its config."""
    text, layer_count = text_section(layer.config).get(key), _layer_count(layer.config, architecture)
    if not isinstance(text, str) or len(text) != layer_count:
        raise UsageError(f"config.json: {key!r} is {text!r:.60}; expected a letter for each of {layer_count} layers")
    return text[layer.number]


def _configs(config: Values, layers: Sequence[_Layer]) -> tuple[Values, ...]:
    return config, *(layer.config for layer in layers)


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _per_layer_keys(config: Values, layers: Sequence[_Layer], architecture: Family) -> list[str]:
    """Return the keys with one value per layer in any of the configs, those of the output's config first."""
    keys: dict[str, None] = {}
    for source in _configs(config, layers):
        layer_count = _layer_count(source, architecture)
        for key, value in text_section(source).items():
            if _is_list(value) and (key in _PER_LAYER_KEYS or _is_per_layer(key, value, layer_count)):
                keys[key] = None
    return list(keys)


def _is_per_layer(key: str, values: Sequence[Any], layer_count: int) -> bool:
    """Whether a list has one value for each layer, by its name and its length."""
    is_named_so = _PER_LAYER_NAME.search(key) is not None and _LAYER_INDEX_NAME.search(key) is None
    is_known = key in _PER_LAYER_KEYS or (is_named_so and key not in _LAYER_INDEX_KEYS)
    return is_known and len(values) == layer_count


def _listed_value(key: str, layer: _Layer, architecture: Family) -> Any:
    """Return the value of a layer in a list of its config, or the value that the architecture implies."""
    values = text_section(layer.config).get(key)
    if not _is_list(values):
        rule = next((rule for rule in architecture.layer_rules if rule.key == key), None)
        if rule is None:
            raise UsageError(f"config.json has no list {key!r}, but the config of another stacked model has one")
        return _implied(rule, layer, architecture)
    layer_count = _layer_count(layer.config, architecture)
    if len(values) != layer_count:
        raise UsageError(
            f"config.json: {key!r} has {len(values)} values; expected one for each of {layer_count} layers"
        )
    return values[layer.number]


def _implied(rule: LayerRule, layer: _Layer, architecture: Family) -> Any:
    return architecture.config(layer.config).evaluate(rule.value, layer=layer.number)


def _explicit_rule(rule: LayerRule, config: Values, layers: Sequence[_Layer], architecture: Family) -> dict[str, Any]:
    """Return the keys that preserve a property of the layers, empty if their new order implies it anyway."""
    values = [_implied(rule, layer, architecture) for layer in layers]
    if values == [_implied(rule, _Layer(config, i), architecture) for i in range(len(layers))]:
        return {}
    if rule.is_count:
        return {rule.key: [*values, False].index(False), **dict(rule.resets)}
    if rule.is_index_list:
        return {rule.key: [i for i, value in enumerate(values) if value], **dict(rule.resets)}
    return {rule.key: values, **dict(rule.resets)}


def _is_indexed(key: str, layer: _Layer) -> bool:
    return layer.number in (text_section(layer.config).get(key) or ())


def _window_updates(
    config: Values, layers: Sequence[_Layer], updates: Mapping[str, Any], architecture: Family
) -> dict[str, Any]:
    """Update ``max_window_layers``: the layers before that number have full attention."""
    sections = [text_section(source) for source in _configs(config, layers)]
    if not any(section.get("use_sliding_window") and "max_window_layers" in section for section in sections):
        return {}
    if "layer_types" in updates:
        is_windowed = [layer_type != "full_attention" for layer_type in updates["layer_types"]]
        return {"max_window_layers": [*is_windowed, True].index(True)}
    has_rule = any(rule.key == "layer_types" for rule in architecture.layer_rules)
    is_moved = [layer.number for layer in layers] != list(range(_layer_count(config, architecture)))
    if is_moved and not has_rule:
        raise UsageError(
            "config.json: 'max_window_layers' selects layers by position, which stacking changes; "
            "expected a 'layer_types' list that names each layer's attention"
        )
    return {}


def _language_section(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _set_vocab_size(config: dict[str, Any], vocab_size: int) -> None:
    _language_section(config)["vocab_size"] = vocab_size
    if "vocab_size" in config:
        config["vocab_size"] = vocab_size


def _set_dtype(config: dict[str, Any], dtype: DType) -> None:
    """Set the dtype in every section of the config that has one, or at the top if none has."""
    is_part = {key: key.endswith("_config") and key != "quantization_config" for key in config}
    nested = [value for key, value in config.items() if is_part[key]]
    holders = [
        (section, key)
        for section in (config, *nested)
        if isinstance(section, dict)
        for key in _DTYPE_KEYS
        if section.get(key) is not None
    ]
    for section, key in holders or [(config, _DTYPE_KEYS[0])]:
        section[key] = dtype.numpy_name
