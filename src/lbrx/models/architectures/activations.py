"""Activations of MLPs and their names in config.json."""

from __future__ import annotations

from typing import Any

from lbrx.errors import UsageError
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Activation, PerLayer

# The first name of each is the one that is written.
_NAMES: dict[Activation, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_tanh", "gelu_fast"),
    "relu": ("relu",),
    "relu2": ("relu2",),
}


def config_name(activation: Activation) -> str:
    """Return the name of an activation in config.json.

    >>> config_name("gelu_tanh")
    'gelu_pytorch_tanh'
    """
    return _NAMES[activation][0]


def usual_activation(family: Family) -> Activation:
    """Return the activation of a family, silu if it cannot be run."""
    part: Any = None if family.decoder is None else family.decoder.mlp
    parts = list(part.parts.values()) if isinstance(part, PerLayer) else [part]
    return next((each.activation for each in parts if hasattr(each, "activation")), "silu")


def activation_of(part: Any, config: Config) -> Activation:
    """Return the activation that a config selects for an MLP; raise if the family does not have it.

    Older configs of Gemma have an unused ``hidden_act`` next to ``hidden_activation``.
    """
    key = "hidden_act" if config.get("hidden_activation") is None else "hidden_activation"
    allowed: tuple[Activation, ...] = (part.activation, *getattr(part, "alternatives", ()))
    given = config.get(key)
    for activation in allowed:
        if given is None or given in _NAMES[activation]:
            return activation
    known = sorted(name for activation in allowed for name in _NAMES[activation])
    raise UsageError(f"{config.where}: {key!r} is {given!r:.60}; expected one of {', '.join(known)}")
