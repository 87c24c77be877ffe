"""What lbrx assumes for keys that a config.json leaves out is what transformers assumes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoConfig

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.table import all_families

TIED = "tie_word_embeddings"
EXPLAINED = {
    ("mistral", "sliding_window"): "transformers assumes 4096; GGUF files of Mistral have no key and no window, and "
    "config.json of every published model has it",
    ("smollm3", "no_rope_layers"): "None: 'no_rope_layer_interval' decides, which gives the same layers",
    ("gemma2", "use_bidirectional_attention"): "transformers has None, which means false",
    (
        "falcon",
        "num_ln_in_parallel_attn",
    ): "transformers has None and decides in the model: 1, or 2 for the new decoder",
    ("clip", TIED): "there is no head that could be tied",
    ("siglip", TIED): "there is no head that could be tied",
    ("falcon", "model_type"): "not a default: transformers cannot open a config without it",
}
# Keys whose None transformers replaces when it builds the model: by heads, or by a multiple of the hidden size.
DERIVED = ("head_dim", "num_key_value_heads", "n_inner")
FAMILIES = [family for family in all_families() if family.model_type in transformers.CONFIG_MAPPING]


def values_without(config: dict[str, Any], key: str, path: Path) -> Any:
    """What transformers has for a key that the file leaves out."""
    (path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != key}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(AutoConfig.from_pretrained(path), key, None)


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_defaults(family: Family, tmp_path: Path) -> None:
    config = json.loads(AutoConfig.for_model(family.model_type).to_json_string(use_diff=False))
    for key in family.defaults:
        if key not in config or (family.name, key) in EXPLAINED:
            continue
        theirs = values_without(config, key, tmp_path)
        if theirs is None and key in DERIVED:
            continue
        without = {name: value for name, value in config.items() if name != key}
        assert as_list(family.config(without).get(key)) == theirs, key
    if (family.name, TIED) not in EXPLAINED:
        without = {name: value for name, value in config.items() if name != TIED}
        assert family.is_tied(without) == bool(values_without(config, TIED, tmp_path))


def test_explanations_are_needed() -> None:
    for name, key in EXPLAINED:
        (family,) = (family for family in FAMILIES if family.name == name)
        assert key in family.defaults or key == TIED
