"""What a decoder is made of: sizes and options, read from a config before any weight is looked at."""

from __future__ import annotations

from typing import Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.rope import RopeConfig, RopeStyle

Activation = Literal["silu", "gelu"]


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture of experts: how many there are, and how many see a token."""

    count: int
    used: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer: how far attention looks back (None: to the start), and the positions."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder. The options of a family of models are in ``family``; the rest comes from the config."""

    family: DecoderFamily
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_length: int
    norm_epsilon: float
    attention_scale: float
    layers: tuple[LayerSpec, ...]
    rope_style: RopeStyle
    norm_adds_one: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    is_tied: bool | None  # None: tied if there is no output matrix
    attention_softcap: float | None = None
    final_softcap: float | None = None
    experts: ExpertSpec | None = None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim


WindowRule = Literal["none", "every", "alternating", "five_of_six", "upper"]


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """What all models of an architecture have in common.

    ``windows`` says which layers look back over a window only, where the config does not list them: ``alternating``
    is every even layer, ``five_of_six`` all but every sixth, ``upper`` those from ``max_window_layers`` on.
    ``permuted_in_gguf``: GGUF files have the rows of queries and keys in the order of interleaved rotation.
    """

    name: str
    activation: Activation = "silu"
    windows: WindowRule = "none"
    norms_add_one: bool = False
    norms_after_blocks: bool = False
    query_key_norms: bool = False
    query_key_value_bias: bool = False
    scales_embeddings: bool = False
    fused_projections: bool = False
    permuted_in_gguf: bool = False
    tied_by_default: bool = False
    default_rope_theta: float = 10_000.0
    default_window: int | None = None
    # The layer counts of models whose queries are scaled by hidden / heads instead of the size of a head. GGUF files
    # do not tell.
    wide_scale_layers: int | None = None


FAMILIES: dict[str, DecoderFamily] = {
    family.name: family
    for family in (
        DecoderFamily("llama", permuted_in_gguf=True),
        DecoderFamily("mistral", windows="every", permuted_in_gguf=True),
        DecoderFamily("mixtral", windows="every", permuted_in_gguf=True, default_rope_theta=1_000_000.0),
        DecoderFamily("qwen2", windows="upper", query_key_value_bias=True),
        DecoderFamily("qwen3", windows="upper", query_key_norms=True),
        DecoderFamily(
            "gemma2",
            activation="gelu",
            windows="alternating",
            norms_add_one=True,
            norms_after_blocks=True,
            scales_embeddings=True,
            tied_by_default=True,
            default_window=4096,
            wide_scale_layers=46,
        ),
        DecoderFamily(
            "gemma3",
            activation="gelu",
            windows="five_of_six",
            norms_add_one=True,
            norms_after_blocks=True,
            query_key_norms=True,
            scales_embeddings=True,
            tied_by_default=True,
            default_rope_theta=1_000_000.0,
            default_window=4096,
            wide_scale_layers=62,
        ),
        DecoderFamily("phi3", windows="every", fused_projections=True),
    )
}
"""The architectures that can be run. A new one is a line here, if it needs no new option."""

HF_MODEL_TYPES: dict[str, str] = {name: name for name in FAMILIES} | {"gemma3_text": "gemma3"}
"""``model_type`` of a config.json to the family."""

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
"""``general.architecture`` of GGUF files; Mistral and Mixtral are ``llama`` there."""


def windowed_layers(rule: WindowRule, layers: int, first_upper: int) -> tuple[bool, ...]:
    """Which layers of a model have a window, by the rule of its family.

    >>> windowed_layers("alternating", 4, 0), windowed_layers("upper", 3, 2)
    ((True, False, True, False), (False, False, True))
    """
    return tuple(_is_windowed(rule, layer, first_upper) for layer in range(layers))


def _is_windowed(rule: WindowRule, layer: int, first_upper: int) -> bool:
    if rule == "alternating":
        return layer % 2 == 0
    if rule == "five_of_six":
        return layer % 6 != 5
    return layer >= first_upper if rule == "upper" else rule == "every"
