"""The records that describe a model family."""

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
    """The prefixes of the language model's tensors and of its head in one type of checkpoint.

    >>> Naming("model.").expand("{base}layers.{layer}.mlp.gate.weight", layer=3)
    'model.layers.3.mlp.gate.weight'
    """

    base: str
    head: str = ""

    def expand(self, template: str, layer: int | None = None, item: int | None = None) -> str:
        """Return a template with these prefixes and numbers filled in."""
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
    replaced_by: tuple[str, ...] = ()  # templates of tensors with the same values in another layout
    items: Dimension | None = None  # the number of values of ``{item}``
    tied_to: str | None = None  # the template with the same values if embeddings are tied
    is_vocabulary: bool = False  # rows are tokens
    gguf: str | None = None  # its name in GGUF files, which stack all items
    in_gguf: bool = True  # False: llama.cpp does not know it in this family
    mlx: str | None = None  # the stack of all items in MLX; other tensors have the same name there
    paired_by: str | None = None  # key for the number of heads: GGUF interleaves the halves of each head
    adds_one: bool = False  # GGUF has 1 + weight

    @property
    def is_always_f32(self) -> bool:
        """Whether llama.cpp computes with this tensor in f32 only: vectors, norms and routers."""
        gguf = self.gguf or ""
        return len(self.shape or ()) < 2 or gguf.endswith("_norm.weight") or "ffn_gate_inp" in gguf


@dataclass(frozen=True, slots=True)
class Gguf:
    """The llama.cpp name of a family, and its hard-coded properties."""

    name: str  # the value of general.architecture
    rope_types: tuple[str, ...] = ("default", "linear", "yarn")
    full_attention_period: int | None = None  # every n-th layer has full attention, the others a window
    needs_window: bool = False  # the key is required, 0 for none
    has_output_when_tied: bool = False  # the head is required even if tied to the embedding
    never_has_output: bool = False
    layers_scaled_by_width: int | None = None  # queries of models with so many layers are scaled by hidden / heads
    true_if_stored: Mapping[str, str] = field(default_factory=dict)  # keys that are true if a tensor exists
    fixed: Mapping[str, Any] = field(default_factory=dict)  # values that override the config
    assumed: Mapping[str, Any] = field(default_factory=dict)  # values if the config has none


@dataclass(frozen=True, slots=True)
class LayerRule:
    """A property that depends on the position of a layer, and the key that can list it per layer instead.

    ``value`` is an expression over the config and ``layer``. With ``is_index_list`` the key lists the numbers
    of the layers for which it is true, else one value per layer. ``resets`` are new values for keys that
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
    """The role of one tensor in a checkpoint.

    >>> TensorRole("model.norm.weight", "post", None, (8,), ("hidden_size",)).is_known
    True
    """

    name: str
    part: Part  # before the layers, in one, or after them
    layer: int | None  # the layer's number, when part is "layer"
    shape: tuple[int, ...] | None  # None: unknown
    dimensions: tuple[Dimension, ...] | None  # the shape as the definition writes it
    optional: bool = False  # its absence is not an error
    is_buffer: bool = False  # a constant to copy, not to merge
    tied_to: str | None = None  # the tensor that has the same values, because embeddings are tied
    is_vocabulary: bool = False  # one row per token
    is_known: bool = True  # False: in the files, but not in the definition
    module: str = ""  # a tower beside the language model, such as "vision_tower"


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Softmax attention whose query heads share keys and values.

    ``qk_norm``: queries and keys are normalized per head, or over the whole row before it is split into heads.
    ``is_joined``: one matrix contains queries, keys and values.
    """

    qk_norm: Literal["none", "head", "row"] = "none"
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(activation(gate(x)) * up(x))``. ``is_joined``: one matrix contains gate and up."""

    activation: Activation = "silu"
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A router and gated MLPs. The weights of the chosen experts sum to 1."""

    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """The positions of norms: before attention and MLP, after them (before the residual sum), or both.

    >>> RmsNorm("after").names
    ('post_attention_norm', 'post_ffw_norm')
    """

    placement: Literal["before", "after", "both"] = "before"
    adds_one: bool = False  # values are multiplied by 1 + weight

    @property
    def names(self) -> tuple[str, ...]:
        """The GGUF names of the norms of a layer."""
        before, after = ("attn_norm", "ffn_norm"), ("post_attention_norm", "post_ffw_norm")
        return {"before": before, "after": after, "both": before + after}[self.placement]


@dataclass(frozen=True, slots=True)
class Decoder:
    """How to run a model: each layer has attention and an MLP, both with norms."""

    attention: GroupedAttention = GroupedAttention()
    mlp: GatedMlp | Experts = GatedMlp()
    norm: RmsNorm = RmsNorm()
    rope: RopeStyle = "neox"
    scales_embeddings: bool = False  # by the square root of the hidden size
