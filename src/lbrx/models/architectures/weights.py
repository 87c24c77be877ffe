"""The records that architectures are made of.

A name in a definition is a template. ``{base}`` and ``{head}`` stand for the prefixes that differ between
checkpoints of one architecture (see Naming), ``{layer}`` for the layer's number and ``{item}`` for a number
inside a layer, such as that of an expert.
"""

from __future__ import annotations

from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.stacks import Part

Dimension = str | int  # an expression over the config's keys, or a number


@dataclass(frozen=True, slots=True)
class Naming:
    """The prefixes of the language model's tensors and of its head in one kind of checkpoint.

    >>> Naming("model.").expand("{base}layers.{layer}.mlp.gate.weight", layer=3)
    'model.layers.3.mlp.gate.weight'
    """

    base: str
    head: str = ""

    def expand(self, template: str, layer: int | None = None, item: int | None = None) -> str:
        """A template with these prefixes and numbers filled in."""
        name = template.replace("{base}", self.base).replace("{head}", self.head)
        if layer is not None:
            name = name.replace("{layer}", str(layer))
        return name if item is None else name.replace("{item}", str(item))


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a definition, or one per layer and per item.

    >>> Weight("{base}embed_tokens.weight", ("vocab_size", "hidden_size"), is_vocabulary=True).optional
    False
    """

    name: str
    shape: tuple[Dimension, ...] | None = None
    optional: bool = False  # its absence is never an error
    is_buffer: bool = False  # a constant that only some versions save, such as a mask
    needed_when: str | None = None  # a condition on the config and ``layer``; None: always
    replaced_by: tuple[str, ...] = ()  # templates of tensors that hold the same values in another layout
    items: Dimension | None = None  # how many numbers ``{item}`` runs over
    tied_to: str | None = None  # the template that supplies it when embeddings are tied
    is_vocabulary: bool = False  # rows are tokens


@dataclass(frozen=True, slots=True)
class LayerRule:
    """A property that layers have by their position, and the key that can say it for each layer instead.

    ``value`` is an expression over the config and ``layer``. With ``is_index_list`` the key holds the numbers
    of the layers for which it is true, else one value per layer. ``resets`` are values for the keys that
    would otherwise still imply the property.

    >>> LayerRule("layer_types", "'sliding_attention' if layer % 2 else 'full_attention'").is_index_list
    False
    """

    key: str
    value: str
    is_index_list: bool = False
    resets: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorRole:
    """What one tensor of a checkpoint is.

    >>> TensorRole("model.norm.weight", "post", None, (8,), ("hidden_size",)).is_known
    True
    """

    name: str
    part: Part  # before the layers, in one, or after them
    layer: int | None  # the layer's number, when part is "layer"
    shape: tuple[int, ...] | None  # None: the definition does not say
    dimensions: tuple[Dimension, ...] | None  # the shape as the definition writes it
    optional: bool = False  # its absence is no error
    is_buffer: bool = False  # a constant to copy, not to merge
    tied_to: str | None = None  # the tensor that has the same values, because embeddings are tied
    is_vocabulary: bool = False  # one row per token
    is_known: bool = True  # False: in the files, but not in the definition
    module: str = ""  # a tower beside the language model, such as "vision_tower"
