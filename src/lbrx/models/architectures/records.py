"""The records that describe a model family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.stacks import Part

if TYPE_CHECKING:
    from lbrx.tensors.rope import RopeStyle

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""``gelu`` is the exact function, ``gelu_tanh`` its usual approximation, ``relu2`` the square of ``relu``."""
Dimension = str | int  # an expression over the config's keys, or a number
Scales = tuple[str | tuple[tuple[Dimension, str], ...], ...]
"""Factors that are multiplied one after the other: expressions for all rows, or for runs of so many rows."""


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
class HeadOrder:
    """Heads that share a head of keys are next to each other in Hugging Face files; GGUF has the first heads of all
    groups, then the second ones, and so on.

    From position ``first`` on, an axis (0 or 1) consists of ``heads`` runs of ``size``. Fields are expressions over the
    config.

    >>> HeadOrder(size=1).axis
    0
    """

    groups: str = "linear_num_key_heads"
    heads: str = "linear_num_value_heads"
    size: Dimension = "linear_value_head_dim"
    first: Dimension = 0
    axis: int = 0


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
    joined_in: str | None = None  # the template of the tensor that contains it in most checkpoints; see ``Joined``
    tied_to: str | None = None  # the template with the same values if embeddings are tied
    is_vocabulary: bool = False  # rows are tokens
    gguf: str | None = None  # its name in GGUF files, which stack all items
    in_gguf: bool = True  # False: llama.cpp does not know it in this family
    mlx: str | None = None  # the stack of all items in MLX, or another name; other tensors have the same name there
    paired_by: str | None = None  # key for the number of heads: GGUF interleaves the halves of each head
    adds_one: bool = False  # GGUF has 1 + weight
    is_transposed: bool = False  # Hugging Face files have one column per output
    grouped_by: tuple[str, str] | None = None  # numbers of heads and of heads of keys: rows are in groups, see to_gguf
    is_log: bool = False  # GGUF has -exp(weight)
    order: HeadOrder | None = None  # GGUF has heads in another order
    gguf_shape: tuple[Dimension, ...] | None = None  # if it differs by more than axes of size 1
    gguf_scales: Scales = ()  # factors that values in GGUF include
    is_conv: bool = False  # weights of a convolution [channels, 1, taps]: MLX swaps the last two axes

    @property
    def is_always_f32(self) -> bool:
        """Whether llama.cpp computes with this tensor in f32 only: vectors, norms, routers and convolutions."""
        gguf = self.gguf or ""
        axes = [size for size in self.shape or () if size != 1]
        is_vector = len(axes) < 2 or not gguf.endswith(".weight")
        is_small = gguf.endswith("_norm.weight") or "ffn_gate_inp" in gguf or gguf == "position_embd.weight"
        return is_vector or self.is_conv or is_small


@dataclass(frozen=True, slots=True)
class Joined:
    """A stored tensor that contains the values of several weights of a layer, such as all of its experts.

    Each part is the stack of a weight's items, or the weight itself. Parts are cut out of the stored tensor in this
    order: view it with the shape ``view``, swap its last two axes (``is_swapped``), take a run along ``axis`` or, with
    ``is_interleaved``, every n-th element, and swap the last two axes of those in ``swapped``.

    >>> Joined("experts.down_proj", ("experts.{item}.down_proj.weight",), is_swapped=True).axis
    1
    """

    name: str
    parts: tuple[str, ...]  # names of weights
    axis: int = 1
    is_interleaved: bool = False
    is_swapped: bool = False
    view: tuple[Dimension, ...] | None = None
    swapped: tuple[str, ...] = ()
    groups: str | None = None  # rows are in so many groups, each of which has ``runs`` of rows: the first runs of all
    runs: tuple[Dimension, ...] = ()  # groups come first in the parts, then the second ones, and so on


@dataclass(frozen=True, slots=True)
class Gguf:
    """The llama.cpp name of a family, and its hard-coded properties."""

    name: str  # the value of general.architecture
    rope_types: tuple[str, ...] = ("default", "linear", "yarn")
    full_attention_period: int | None = None  # every n-th layer has full attention, the others a window
    needs_window: bool = False  # the key is required, 0 for none
    has_output_when_tied: bool = False  # the head is required even if tied to the embedding
    never_has_output: bool = False
    has_rope_sections: bool = False  # the elements of a head are rotated by positions in time, height and width
    counted: Mapping[str, str] = field(default_factory=dict)  # key-values with the lengths of lists of the config
    layers_scaled_by_width: int | None = None  # queries of models with so many layers are scaled by hidden / heads
    derived: Mapping[str, str] = field(default_factory=dict)  # keys of configs: expressions over usual keys, ``stored``
    true_if_stored: Mapping[str, str] = field(default_factory=dict)  # keys that are true if a tensor exists
    context_length: str = "max_position_embeddings"  # an expression over the config
    lists_windows: bool = False  # a list tells which layers have a window, if there is one
    windows_when: str = "True"  # a condition on the config: else llama.cpp ignores the list
    keys: Mapping[str, str] = field(default_factory=dict)  # further keys without prefix: expressions over the config
    hard_coded: Mapping[str, str] = field(default_factory=dict)  # expressions over config and layer: what they are
    fixed: Mapping[str, Any] = field(default_factory=dict)  # values that override the config
    assumed: Mapping[str, Any] = field(default_factory=dict)  # values if the config has none
    when: str = "True"  # a condition on key-values, for families that share the name
    requires: Mapping[str, str] = field(default_factory=dict)  # conditions on the config, and what else llama.cpp lacks
    differs: Mapping[str, str] = field(default_factory=dict)  # conditions on the config, and what llama.cpp does then
    left_out: tuple[str, ...] = ()  # beginnings of names of tensors that llama.cpp has no name for
    yarn_log_multiplier: float | None = None  # that of ``mscale_all_dim`` in its key-value; None: there is none
    config: Mapping[str, str] = field(default_factory=dict)  # config keys as expressions over key-values ("a_b": "a.b")
    stored_defaults: Mapping[str, Any] = field(default_factory=dict)  # for key-values that a file omits
    is_encoder: bool = False  # the file has no key-values besides ``keys``
    first_position: str | None = None  # an expression for the row of the first position, if it is not the first row
    without: tuple[str, ...] = ()  # usual key-values that do not apply; ``keys`` may give them a value
    layer_keys: Mapping[str, str] = field(default_factory=dict)  # lists: expressions over the config and ``layer``
    merges_equal: bool = False  # lists of ``layer_keys`` with equal numbers are one number
    layer_config: Mapping[str, str] = field(default_factory=dict)  # lists of the config: over key-values and ``layer``
    rope_lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # lists of expressions over rope settings
    periods: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # config keys for period and offset of layers
    # with a tensor of this name, or with a number above 0 in this list
    rope_defaults: Mapping[str, Any] = field(default_factory=dict)  # for those


@dataclass(frozen=True, slots=True)
class LayerRule:
    """A property that depends on the position of a layer, and the key that can list it per layer instead.

    ``value`` is an expression over the config and ``layer``. With ``is_index_list`` the key lists the numbers
    of the layers for which it is true, with ``is_count`` it is the number of layers at the beginning for which it is
    true, else it lists one value per layer. ``resets`` are new values for keys that would otherwise still imply the
    property.

    >>> LayerRule("layer_types", "'sliding_attention' if layer % 2 else 'full_attention'").is_index_list
    False
    """

    key: str
    value: str
    is_index_list: bool = False
    resets: tuple[tuple[str, Any], ...] = ()
    is_count: bool = False


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
class PerLayer:
    """A part that differs between layers: the value of an expression over the config selects one.

    The expression may use ``layer``, the number of the layer, and ``layer_type``, its entry in ``layer_types``.

    >>> PerLayer("layer % 2", {0: GatedMlp(), 1: None}).parts[1] is None
    True
    """

    select: str
    parts: Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Softmax attention whose query heads share keys and values.

    ``qk_norm``: queries and keys are normalized per head (with one weight for all heads, or one each), or over the
    whole row before it is split into heads. ``joined``: one matrix contains queries, keys and values: all of each
    (``"parts"``), or for each head of keys its queries, the key and the value (``"groups"``; GGUF always has parts).
    Text fields are expressions over the config; they may use ``layer`` and ``layer_type``.
    """

    qk_norm: Literal["none", "head", "each_head", "row"] = "none"
    qk_norm_when: str = "True"
    qk_norm_function: Literal["rms", "layer"] = "rms"
    norms_after_rope: bool = False
    joined: Literal["no", "parts", "groups"] = "no"
    heads: str = "num_attention_heads"
    key_heads: str = "num_key_value_heads"
    head_size: str = "head_dim"
    scale: str | None = None  # of the scores; None: 1 / sqrt(query_pre_attn_scalar or head size)
    clip: str | None = None  # queries, keys and values are cut off at plus and minus this number, if it is one
    chunk: str | None = None  # a token sees only those of its chunk of so many positions; 0: of all
    temperature: tuple[str, str, str] | None = None  # a condition, and the step and the scale of growing queries
    first_position: int = 1  # with ``temperature``
    is_gated: bool = False  # the matrix of queries has a gate behind the query of each head
    has_gate: bool = False  # the matrix ``attn_gate`` computes gates of the results of heads
    normalizes_values: bool = False  # each head, without a weight
    keys_are_values: str = "False"  # values are the keys before their norm
    shares_keys: str = "False"  # keys and values are those of the last layer of the same type that has its own


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values are linear maps of a short vector per token (MLA).

    The tensors ``attn_k_b`` and ``attn_v_b`` are these maps. Only the vector and the rotated part of the keys, which
    all heads share, are remembered.
    """


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(activation(gate(x)) * up(x))``. ``is_joined``: one matrix contains gate and up.

    A config may select one of the ``alternatives`` instead of the activation.
    """

    activation: Activation = "silu"
    is_joined: bool = False
    alternatives: tuple[Activation, ...] = ()
    gate_scale: str | None = None  # of the input of the activation, an expression over the config
    scale: str | None = None  # of the result


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """``down(activation(up(x)))``. A config may select one of the ``alternatives`` instead of the activation."""

    activation: Activation = "gelu"
    alternatives: tuple[Activation, ...] = ()


@dataclass(frozen=True, slots=True)
class Experts:
    """A router and gated MLPs, some of which compute each token, and perhaps MLPs that compute every token.

    ``scoring``: the weights of the chosen experts are the softmax over their scores or over all scores, or sigmoids, or
    those of SparseMixer, which has two softmaxes of scores near the largest. Experts are chosen by these weights and,
    if the family has the tensor ``exp_probs_b.bias``, its numbers. With ``groups``, only experts of some groups are
    chosen: those with the largest ``group_score``, the best or the sum of the two best of a group.
    ``clamp`` are the limit and the factor of the gate of gpt-oss. Text fields are expressions over the config.
    """

    activation: Activation = "silu"
    scoring: Literal["softmax_of_chosen", "softmax", "sigmoid", "sparsemixer"] = "softmax_of_chosen"
    count: str = "num_local_experts"
    used: str = "num_experts_per_tok"
    normalized: str = "False"  # the weights of the chosen experts are divided by their sum
    smallest_sum: str = "1e-20"
    scale: str = "1.0"  # of the weights of the chosen experts
    groups: str | None = None
    used_groups: str = "topk_group"
    group_score: Literal["best", "two_best"] = "two_best"
    scales_inputs: bool = False  # the inputs of experts are multiplied by the weights, not the results
    clamp: tuple[str, str] | None = None
    is_gated: bool = True  # MLPs have a gate


@dataclass(frozen=True, slots=True)
class Norm:
    """The norms of a layer: their function, and whether they come before mixer and MLP, after them, or both.

    ``names`` are the GGUF names of the norms before and after the mixer, and before and after the MLP. Weights and
    biases are used if the family has such tensors.

    >>> Norm("after").used
    (None, 'post_attention_norm', None, 'post_ffw_norm')
    """

    placement: Literal["before", "after", "both"] = "before"
    function: Literal["rms", "layer"] = "rms"
    adds_one: bool = False  # values are multiplied by 1 + weight
    epsilon: str = "rms_norm_eps"  # an expression over the config
    names: tuple[str, str, str, str] = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")

    @property
    def used(self) -> tuple[str | None, str | None, str | None, str | None]:
        """The GGUF names of the norms before and after the mixer, and before and after the MLP."""
        first, after_first, second, after_second = self.names
        if self.placement == "before":
            return first, None, second, None
        return (None, after_first, None, after_second) if self.placement == "after" else self.names


@dataclass(frozen=True, slots=True)
class Rope:
    """Positions rotate the first elements of queries and keys.

    ``size`` is an expression for the number of elements; None: the head size times ``partial_rotary_factor``.
    Layers for which ``when`` is false have no positions.
    """

    style: RopeStyle = "neox"
    size: str | None = None
    when: str = "True"


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """Every position has a row of the tensor ``position_embd.weight``, which is added to the embedding.

    The first position has the row with the number ``offset``.
    """

    offset: int = 0


@dataclass(frozen=True, slots=True)
class Alibi:
    """Scores decrease with the distance of query and key, in every head at another rate.

    ``is_scaled``: the decrease is multiplied by the scale of the scores, too.
    """

    largest: str = "8"  # an expression: the negated exponent of 2 of the smallest rate
    is_scaled: bool = False


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Adds ``norm(proj(activation(gate(x)) * input))`` after a layer, with an input for each layer and token.

    Then the result is multiplied by a number of the layer. The inputs come from a table with a row for each token, and
    from the embedding.
    """

    activation: Activation = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class Decoder:
    """How to run a model: each layer has a mixer, such as attention, and an MLP, with norms and residual connections.

    ``lbrx.models.inference.parts`` lists the records that ``mixer`` and ``mlp`` may be; None leaves one out.
    ``PerLayer`` may stand for ``mixer``, ``mlp``, ``norm`` (equal in all layers) and ``positions``. Text fields are
    expressions over the config.
    """

    mixer: Any = GroupedAttention()
    mlp: Any = GatedMlp()
    norm: Norm | PerLayer = Norm()
    positions: Rope | LearnedPositions | Alibi | PerLayer | None = Rope()
    layer_types: tuple[str, ...] = ("sliding_attention", "full_attention")  # what layer_types may list
    after: Any = None  # a part that changes the hidden states after each layer
    is_parallel: str = "False"  # mixer and MLP read the same hidden states
    shares_norm: str = "False"  # the MLP reads what the norm before the mixer returns
    embedding_scale: str | None = None
    embedding_norm: bool = False  # after the embedding: the tensors ``token_embd_norm``
    final_norm: str = "output_norm"  # its GGUF name
    residual_scale: str | None = None  # of the results of mixer and MLP
    logit_scale: str | None = None
    requires: tuple[str, ...] = ()  # conditions on the config without which a model cannot be run
