"""The adapter_config.json of a PEFT directory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.files.formats.model_files import ADAPTER_CONFIG_NAME
from lbrx.files.formats.name_patterns import NamePatterns
from lbrx.files.formats.source import is_directory, open_source, read_at, size_of
from lbrx.files.formats.strict_json import MAX_JSON_BYTES, parse_object

_AT_THE_END = r"(.*\.)?({})\Z"  # of a module's name, from a dot on
_LARGEST, _LARGEST_RANK = 1e300, 1 << 40
CONFIG_NAME = ADAPTER_CONFIG_NAME
WEIGHTS_NAME = "adapter_model.safetensors"

# Settings under which an adapter is more than a product added to each weight.
_UNSUPPORTED = (
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "use_qalora",
    "use_bdlora",
)
# Initialisations that also change the base weights: such an adapter does not fit the base model as it is published.
_CHANGES_BASE = re.compile(r"(pissa|olora|corda|loftq|lora_ga)")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What a LoRA adapter's config says about its products.

    >>> config = AdapterConfig(Path("a"), rank=8, alpha=16.0, rank_pattern={"layers.1.mlp": 4})
    >>> config.scale("model.layers.0.mlp"), config.rank_of("model.layers.1.mlp"), config.scale("model.layers.1.mlp")
    (2.0, 4, 4.0)
    """

    path: Path
    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False  # weights are stored as (inputs, outputs)
    target_parameters: tuple[str, ...] = ()  # experts that are one tensor
    token_indices: Mapping[str, tuple[int, ...]] | None = None  # rows of embeddings that are saved, by module
    base_name: str = ""
    _patterns: dict[str, NamePatterns] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        """The rank of a module's product."""
        return int(self._first_match("rank_pattern", self.rank_pattern, module, self.rank))

    def scale(self, module: str) -> float:
        """What a module's product is multiplied by."""
        alpha = self._first_match("alpha_pattern", self.alpha_pattern or {}, module, self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def _first_match(self, key: str, values: Mapping[str, float], module: str, default: float) -> float:
        """The value of the first regular expression that is the end of the module's name, from a dot on."""
        if key not in self._patterns:
            self._patterns[key] = NamePatterns(values, f"{self.path}: {key}", _AT_THE_END)
        match = self._patterns[key].first_match(module)
        return default if match is None else values[match]


def read_config(directory: Path) -> AdapterConfig:
    """The config of a PEFT directory; anything that lbrx cannot apply exactly is an error.

    >>> import json, tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> _ = (directory / CONFIG_NAME).write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16}))
    >>> read_config(directory).scale("model.layers.0.self_attn.q_proj")
    2.0
    """
    path = directory / CONFIG_NAME
    if not is_directory(directory):
        raise FileError(f"{directory}: is a file; expected the directory of an adapter, with {CONFIG_NAME}")
    if not path.exists():
        raise FileError(f"{directory}: has no {CONFIG_NAME}; expected the directory of a PEFT adapter")
    with open_source(path) as file:
        raw = parse_object(read_at(file, path, 0, min(size_of(file), MAX_JSON_BYTES)), str(path))
    _check_type(path, raw)
    return AdapterConfig(
        path,
        _whole(path, "r", raw.get("r")),
        _number(path, "lora_alpha", raw.get("lora_alpha")),
        {key: _whole(path, f"rank_pattern[{key!r}]", value) for key, value in _pattern(path, raw, "rank_pattern")},
        {key: _number(path, f"alpha_pattern[{key!r}]", value) for key, value in _pattern(path, raw, "alpha_pattern")},
        bool(raw.get("use_rslora")),
        bool(raw.get("use_dora")),
        bool(raw.get("fan_in_fan_out")),
        target_parameters=_names(path, raw, "target_parameters"),
        token_indices=_token_indices(path, raw),
        base_name=str(raw.get("base_model_name_or_path") or ""),
    )


def _check_type(path: Path, raw: Mapping[str, Any]) -> None:
    peft_type = raw.get("peft_type")
    if peft_type != "LORA":
        raise UsageError(f"{path}: peft_type is {peft_type!r}; expected 'LORA', the only type that lbrx applies")
    unsupported = next((key for key in _UNSUPPORTED if raw.get(key)), None)
    if unsupported is not None:
        raise UsageError(f"{path}: {unsupported} is set, which lbrx does not apply; expected a plain LoRA adapter")
    initial = raw.get("init_lora_weights")
    if isinstance(initial, str) and _CHANGES_BASE.match(initial):
        raise UsageError(
            f"{path}: init_lora_weights is {initial!r}, which also changed the base weights; "
            f"expected an adapter that was converted to plain LoRA when it was saved"
        )


def _pattern(path: Path, raw: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    pattern = raw.get(key) or {}
    if not isinstance(pattern, dict):
        raise FormatError(f"{path}: {key} is a {type(pattern).__name__}; expected an object of module names")
    NamePatterns(pattern, f"{path}: {key}", _AT_THE_END)
    return list(pattern.items())


def _names(path: Path, raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = raw.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise FormatError(f"{path}: {key} is {names!r:.60}; expected a list of names")
    return tuple(names)


def _token_indices(path: Path, raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """The rows that were trained, by the name of the module; a plain list belongs to the embedding."""
    given = raw.get("trainable_token_indices")
    if given is None:
        return None
    by_module = given if isinstance(given, dict) else {"embed_tokens": given}
    for module, numbers in by_module.items():
        whole = isinstance(numbers, list) and all(
            isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers
        )
        if not whole or len(set(numbers)) < len(numbers):
            raise FormatError(f"{path}: trainable_token_indices of {module!r} is not a list of different row numbers")
    return {module: tuple(numbers) for module, numbers in by_module.items()}


def _whole(path: Path, key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_RANK:
        raise FormatError(f"{path}: {key} is {value!r:.60}; expected a whole number of at least 1")
    return value


def _number(path: Path, key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _LARGEST:
        raise FormatError(f"{path}: {key} is {value!r:.60}; expected a number")
    return float(value)
