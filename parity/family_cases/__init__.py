"""Tiny models, several for each family where switches of its config matter: the cases of the golden files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

GROUPS = ("dense", "moe", "mixers", "encoders", "vision")

VOCABULARY = 64
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """A tiny model that transformers makes.

    ``config`` overrides ``SMALL``; ``without`` are keys of ``SMALL`` that the family does not have. ``saved`` are keys
    that transformers no longer writes into config.json, but models on the Hub and llama.cpp's converter have, and
    ``dropped`` are keys that it writes and models on the Hub do not have. ``auto`` is the class of transformers that
    makes and loads the model, and ``attention`` its implementation of attention. ``peers`` are the other programs that
    run it ("converter" is llama.cpp without its logits). ``forgotten`` are key-values that llama.cpp needs, but its
    converter does not write. ``packed``: the family is Llama, but these parts of names stand for several tensors of
    Llama, one above the other. Transformers' Llama then computes the logits.

    ``renamed`` maps beginnings of names that transformers saves to those of models on the Hub. ``processor`` is the
    preprocessor_config.json of a model that has a projector for llama.cpp (``--mmproj``).

    A family that transformers does not have has no ``auto``, a whole config.json in ``config``, and the names and
    shapes of its ``tensors``. Its logits come from llama.cpp.
    """

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    auto: str | None = "AutoModelForCausalLM"
    without: tuple[str, ...] = ()
    saved: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    peers: tuple[str, ...] = ("llama.cpp", "mlx")
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    attention: str = "eager"
    renamed: Mapping[str, str] = field(default_factory=dict)
    processor: Mapping[str, Any] | None = None
    forgotten: Mapping[str, float] = field(default_factory=dict)
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """The config values that differ from the defaults of transformers."""
        kept = {key: value for key, value in SMALL.items() if key not in self.without}
        return {**kept, **self.config}


def all_cases() -> dict[str, Case]:
    """Return the cases of all groups by name."""
    cases: dict[str, Case] = {}
    for group in GROUPS:
        more: dict[str, Case] = import_module(f"family_cases.{group}").CASES
        twice = cases.keys() & more.keys()
        if twice:
            raise ValueError(f"two cases have the name {sorted(twice)[0]!r}")
        cases |= more
    return cases
