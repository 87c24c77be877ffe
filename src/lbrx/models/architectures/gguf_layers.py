"""Key-values of GGUF that are lists: with one value per layer, or with the settings of positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.models.architectures.config import Config, Values
from lbrx.models.architectures.records import Gguf


def list_metadata(gguf: Gguf, config: Config, rope: Config, layers: int, predicting: int = 0) -> dict[str, Any]:
    """Return the lists that the record of a family describes; layers that predict further tokens have 0 or False.

    >>> gguf = Gguf("lfm2", layer_keys={"attention.head_count_kv": "kv if layer % 2 else 0"})
    >>> list_metadata(gguf, Config({"kv": 8}), Config({}), 3)
    {'attention.head_count_kv': [0, 8, 0]}
    """
    lists: dict[str, Any] = {
        key: [config.evaluate(expression, layer=layer) for layer in range(layers)]
        for key, expression in gguf.layer_keys.items()
    }
    lists = {key: values + [type(values[0])()] * predicting if values else values for key, values in lists.items()}
    if gguf.merges_equal:
        lists = {key: values[0] if len(set(values)) == 1 else values for key, values in lists.items()}
    given = Config(rope.given, gguf.rope_defaults, rope.where, rope.error_class)
    return lists | {key: [given.evaluate(each) for each in items] for key, items in gguf.rope_lists.items()}


def listed_config(gguf: Gguf, given: Values, layers: int, where: str) -> dict[str, Any]:
    """Return the lists of a config that key-values (without prefix) describe; dots in their names become ``_``.

    >>> gguf = Gguf("lfm2", layer_config={"layer_types": "'conv' if head_count_kv[layer] == 0 else 'full_attention'"})
    >>> listed_config(gguf, {"head_count_kv": [0, 8]}, 2, "a.gguf")
    {'layer_types': ['conv', 'full_attention']}
    """
    per_layer = {name.replace(".", "_"): _spread(value, layers) for name, value in given.items()}
    values = Config(per_layer, gguf.stored_defaults, where)
    return {
        key: [values.evaluate(expression, layer=layer) for layer in range(layers)]
        for key, expression in gguf.layer_config.items()
    }


def periods_of(gguf: Gguf, given: Values, tensor_names: Collection[str], layers: int) -> dict[str, int]:
    """Return the periods and offsets of layers that a file has; nothing for layers without a period.

    >>> gguf = Gguf("jamba", periods={"head_count_kv": ("attn_layer_period", "attn_layer_offset")})
    >>> periods_of(gguf, {"head_count_kv": [0, 8, 0, 8]}, (), 4)
    {'attn_layer_period': 2, 'attn_layer_offset': 1}
    """
    found: dict[str, int] = {}
    for name, (period_key, offset_key) in gguf.periods.items():
        listed = _plain(given.get(name))
        if isinstance(listed, list):
            marks = [bool(each) for each in listed]
        else:
            marks = [f"blk.{layer}.{name}" in tensor_names for layer in range(layers)]
        for period in range(1, len(marks) + 2):
            offset = marks.index(True) if True in marks else period - 1
            if offset < period and marks == [layer % period == offset for layer in range(len(marks))]:
                found |= {period_key: period, offset_key: offset}
                break
    return found


def _spread(value: Any, layers: int) -> Any:
    """Return a list with one value for each layer: a file may have one number for all."""
    listed = _plain(value)
    return listed if isinstance(listed, list) or layers < 1 else [listed] * layers


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def largest(value: Any) -> Any:
    """Return the number of a key-value; of a list with one for each layer the largest, as layers without it have 0.

    >>> largest([0, 8, 0]), largest(8)
    (8, 8)
    """
    listed = _plain(value)
    if isinstance(listed, list) and listed and all(isinstance(each, int) for each in listed):
        return max(listed)
    return listed


def with_numbers(metadata: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return key-values with one number for the given keys, even if layers differ."""
    return {key: largest(value) if key in keys else value for key, value in metadata.items()}
