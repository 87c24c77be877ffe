"""The parts of a layer that can be run: mixers, such as attention, and MLPs.

A part is a record of the family (`lbrx.models.architectures.records`) that says how a model computes. The entry of its
class in ``PARTS`` names the code that finds its weights and runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.config import Config
from lbrx.registry import load
from lbrx.tensors.shape import Shape

if TYPE_CHECKING:
    from lbrx.engine.key_values import KeyValueCache
    from lbrx.models.inference.positions import Positions
    from lbrx.models.inference.spec import LayerSpec, ModelSpec

PARTS: dict[str, str] = {
    "Experts": "lbrx.models.inference.experts:EXPERTS",
    "GatedDeltaNet": "lbrx.models.inference.delta_net:DELTA_NET",
    "GatedMlp": "lbrx.models.inference.mlp:MLP",
    "GroupedAttention": "lbrx.models.inference.attention:GROUPED_ATTENTION",
    "LatentAttention": "lbrx.models.inference.latent_attention:LATENT_ATTENTION",
    "Mamba": "lbrx.models.inference.mamba:MAMBA",
    "Mamba2": "lbrx.models.inference.mamba:MAMBA2",
    "LayerInputs": "lbrx.models.inference.layer_inputs:LAYER_INPUTS",
    "PlainMlp": "lbrx.models.inference.mlp:MLP",
    "ShortConv": "lbrx.models.inference.short_conv:SHORT_CONV",
    "Sum": "lbrx.models.inference.sums:SUM",
}
"""The class of a record, and its `PartCode`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a part remembers of earlier tokens: keys and values of each, and arrays of f32 of a fixed size, by name.

    ``keys`` are the number of heads, and the elements of a key and of a value.
    """

    keys: tuple[int, int, int] | None = None
    states: tuple[tuple[str, Shape], ...] = ()


@dataclass(frozen=True, slots=True)
class LayerRun:
    """What a part needs besides its input and weights: the layer, the positions of the new tokens, and the cache.

    ``positions`` gives cosines and sines; ``cache.layers[number]`` holds keys and values,
    ``cache.states[number]`` the arrays of `Memory`.
    """

    spec: ModelSpec
    layer: LayerSpec
    positions: Positions
    cache: KeyValueCache


def _no_memory(_part: Any, _config: Config, _layer: dict[str, Any]) -> Memory:
    return Memory()


@dataclass(frozen=True, slots=True)
class PartCode:
    """The functions of a part.

    ``read(reader, part, layer)`` finds the weights of a layer, and everything else that ``run`` needs.
    ``run(values, weights, layer_run)`` maps hidden states ``[n, hidden]`` to what is added to them.
    ``memory(part, config, local)`` checks the sizes in a config and returns what a layer remembers; ``local`` has the
    values of ``layer`` and ``layer_type`` for expressions.
    """

    read: Callable[[Any, Any, LayerSpec], Any]
    run: Callable[[Any, Any, LayerRun], Any]
    memory: Callable[[Any, Config, dict[str, Any]], Memory] = field(default=_no_memory)


def code_of(part: Any) -> PartCode:
    """Return the code of a part.

    >>> from lbrx.models.architectures.records import GatedMlp
    >>> code_of(GatedMlp()).memory(GatedMlp(), None, {})
    Memory(keys=None, states=())
    """
    code: PartCode = load(PARTS[type(part).__name__])
    return code
