"""The records that a model family is described with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.stacks import Part

if TYPE_CHECKING:
    from lbrx.tensors.rope import RopeStyle

Activation = Literal["silu", "gelu"]
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
    gguf: str | None = None  # its name in GGUF files, where all items are one stack
    in_gguf: bool = True  # False: llama.cpp does not know it in this family
    mlx: str | None = None  # the stack of all items in MLX; other tensors have the same name there
    paired_by: str | None = None  # the key of a number of heads: GGUF has the halves of each head as pairs of rows
    adds_one: bool = False  # GGUF has 1 + weight

    @property
    def is_always_f32(self) -> bool:
        """Whether llama.cpp computes with this tensor in f32 only: vectors, norms and routers."""
        gguf = self.gguf or ""
        return len(self.shape or ()) < 2 or gguf.endswith("_norm.weight") or "ffn_gate_inp" in gguf


@dataclass(frozen=True, slots=True)
class Gguf:
    """What llama.cpp calls a family, and what it takes for granted about it."""

    name: str  # the value of general.architecture
    rope_types: tuple[str, ...] = ("default", "linear", "yarn")
    full_attention_period: int | None = None  # every so-many-th layer has full attention, the others a window
    needs_window: bool = False  # the key must be there, 0 for none
    has_output_when_tied: bool = False  # the head must be there even if it is the embedding
    never_has_output: bool = False
    layers_scaled_by_width: int | None = None  # queries of models with so many layers are scaled by hidden / heads
    true_if_stored: Mapping[str, str] = field(default_factory=dict)  # keys that are true if a tensor is there
    fixed: Mapping[str, Any] = field(default_factory=dict)  # values that are used whatever a config says
    assumed: Mapping[str, Any] = field(default_factory=dict)  # values that are used if a config has none


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


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Softmax attention whose query heads share keys and values.

    ``qk_norm``: queries and keys are normalized in each head, or over the whole row before it is split into heads.
    ``is_joined``: one matrix holds queries, keys and values.
    """

    qk_norm: Literal["none", "head", "row"] = "none"
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(activation(gate(x)) * up(x))``. ``is_joined``: one matrix holds gate and up."""

    activation: Activation = "silu"
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A router and gated MLPs. The shares of the chosen experts add up to 1."""

    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Where norms are: before attention and MLP, after them (before the sum with the input), or both.

    >>> RmsNorm("after").names
    ('post_attention_norm', 'post_ffw_norm')
    """

    placement: Literal["before", "after", "both"] = "before"
    adds_one: bool = False  # values are multiplied by 1 + weight

    @property
    def names(self) -> tuple[str, ...]:
        """What GGUF calls the norms of a layer."""
        before, after = ("attn_norm", "ffn_norm"), ("post_attention_norm", "post_ffw_norm")
        return {"before": before, "after": after, "both": before + after}[self.placement]


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a model runs: in each layer attention and an MLP, both with norms."""

    attention: GroupedAttention = GroupedAttention()
    mlp: GatedMlp | Experts = GatedMlp()
    norm: RmsNorm = RmsNorm()
    rope: RopeStyle = "neox"
    scales_embeddings: bool = False  # by the square root of the hidden size
