"""Building blocks of families: linear layers, norms, attention, MLPs, experts.

All names are relative to a layer until ``in_layer`` adds its prefix. ``gguf`` is the name in GGUF files without
``.weight`` or ``.bias``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lbrx.models.architectures.config import HEAD_DIM
from lbrx.models.architectures.records import Dimension, Joined, LayerRule, Weight

ALWAYS, NEVER = "True", "False"
QUERY_ROWS = "num_attention_heads * head_dim"
KEY_VALUE_ROWS = "num_key_value_heads * head_dim"


def linear(
    module: str,
    rows: Dimension,
    columns: Dimension,
    gguf: str | None = None,
    *,
    bias: str | None = None,
    when: str | None = None,
    paired_by: str | None = None,
    grouped_by: tuple[str, str] | None = None,
) -> tuple[Weight, ...]:
    """Return a matrix, and a bias that is required under the condition ``bias`` (None: the layer never has one)."""
    shapes: dict[str, tuple[Dimension, ...]] = {"weight": (rows, columns)}
    shapes |= {} if bias is None else {"bias": (rows,)}
    return tuple(
        Weight(
            f"{module}.{part}",
            shape,
            needed_when=when if part == "weight" else bias,
            gguf=None if gguf is None else f"{gguf}.{part}",
            paired_by=paired_by,
            grouped_by=grouped_by,
        )
        for part, shape in shapes.items()
    )


def conv1d(
    module: str, inputs: Dimension, outputs: Dimension, gguf: str | None = None, *, when: str | None = None
) -> tuple[Weight, ...]:
    """Return GPT-2's linear layer, whose matrix is stored transposed."""
    shapes: dict[str, tuple[Dimension, ...]] = {"weight": (inputs, outputs), "bias": (outputs,)}
    return tuple(
        Weight(
            f"{module}.{part}",
            shape,
            needed_when=when,
            gguf=None if gguf is None else f"{gguf}.{part}",
            is_transposed=part == "weight",
        )
        for part, shape in shapes.items()
    )


def norm(
    module: str,
    gguf: str | None = None,
    *,
    size: Dimension = "hidden_size",
    bias: bool = False,
    when: str | None = None,
    adds_one: bool = False,
) -> tuple[Weight, ...]:
    """Return the scale of a normalization, and its bias if it has one."""
    names = {part: None if gguf is None else f"{gguf}.{part}" for part in ("weight", "bias")}
    scale = Weight(f"{module}.weight", (size,), needed_when=when, gguf=names["weight"], adds_one=adds_one)
    offset = Weight(f"{module}.bias", (size,), needed_when=when, gguf=names["bias"])
    return (scale, offset) if bias else (scale,)


TWO_NORMS = (*norm("input_layernorm", "attn_norm"), *norm("post_attention_layernorm", "ffn_norm"))


def qk_norms(query_size: Dimension, key_size: Dimension, *, adds_one: bool = False) -> tuple[Weight, ...]:
    """Return the norms of queries and keys."""
    return (
        *norm("self_attn.q_norm", "attn_q_norm", size=query_size, adds_one=adds_one),
        *norm("self_attn.k_norm", "attn_k_norm", size=key_size, adds_one=adds_one),
    )


def buffers(*names: str) -> tuple[Weight, ...]:
    """Return constants that only some versions of Transformers save."""
    return tuple(Weight(name, optional=True, is_buffer=True) for name in names)


def attention(
    *,
    bias: str | None = "attention_bias",
    output_bias: str | None = None,
    is_paired: bool = False,
    biases_in_gguf: str = "qkvo",
) -> tuple[Weight, ...]:
    """Return separate query, key, value and output projections.

    ``is_paired``: llama.cpp rotates adjacent elements of a head, transformers those that are half a head apart.
    ``biases_in_gguf`` are the projections that may have a bias in llama.cpp.
    """
    query, key = ("num_attention_heads", "num_key_value_heads") if is_paired else (None, None)
    weights = (
        *linear("self_attn.q_proj", QUERY_ROWS, "hidden_size", "attn_q", bias=bias, paired_by=query),
        *linear("self_attn.k_proj", KEY_VALUE_ROWS, "hidden_size", "attn_k", bias=bias, paired_by=key),
        *linear("self_attn.v_proj", KEY_VALUE_ROWS, "hidden_size", "attn_v", bias=bias),
        *linear("self_attn.o_proj", "hidden_size", QUERY_ROWS, "attn_output", bias=output_bias),
        *buffers("self_attn.rotary_emb.inv_freq"),
    )
    missing = {f"self_attn.{each}_proj.bias" for each in "qkvo" if each not in biases_in_gguf}
    return tuple(replace(weight, in_gguf=weight.name not in missing) for weight in weights)


def gated_mlp(
    module: str = "mlp",
    size: Dimension = "intermediate_size",
    gguf: str | None = "ffn_{}",
    *,
    bias: str | None = None,
    when: str | None = None,
) -> tuple[Weight, ...]:
    """Return the three matrices of a gated feed-forward layer; ``{}`` in the GGUF name is gate, up or down."""
    names = {each: None if gguf is None else gguf.format(each) for each in ("gate", "up", "down")}
    return (
        *linear(f"{module}.gate_proj", size, "hidden_size", names["gate"], bias=bias, when=when),
        *linear(f"{module}.up_proj", size, "hidden_size", names["up"], bias=bias, when=when),
        *linear(f"{module}.down_proj", "hidden_size", size, names["down"], bias=bias, when=when),
    )


def experts(
    module: str,
    matrices: Mapping[str, str],
    *,
    count: str,
    size: Dimension,
    when: str | None = None,
    joined: Mapping[str, Weight] | None = None,
    is_joined: bool = False,
    router: str = "gate",
    router_bias: str | None = None,
    other_router: Weight | None = None,
    mlx: str = "{}.switch_mlp.{}_proj.weight",
) -> tuple[Weight, ...]:
    """Return the router and one gate, up and down matrix per expert, named by ``matrices``.

    MLX stores each matrix for all experts at once, under the name ``mlx``, whose gaps are the module and the role.
    ``joined`` lists tensors that may replace single ones; checkpoints usually have these if ``is_joined``.
    ``other_router`` is another name of the router.
    """
    weights = [*linear(f"{module}.{router}", count, "hidden_size", "ffn_gate_inp", when=when, bias=router_bias)]
    if other_router is not None:
        weights = [replace(weights[0], replaced_by=(other_router.name,)), *weights[1:], other_router]
    for role, matrix in matrices.items():
        shape = ("hidden_size", size) if role == "down" else (size, "hidden_size")
        stack = Weight(mlx.format(module, role), (count, *shape), optional=True)
        others = (*([joined[role]] if joined else []), stack)
        weights.append(
            Weight(
                f"{module}.experts.{{item}}.{matrix}.weight",
                shape,
                items=count,
                needed_when=when,
                replaced_by=tuple(other.name for other in others),
                joined_in=joined[role].name if joined and is_joined else None,
                gguf=f"ffn_{role}_exps.weight",
                mlx=stack.name,
            )
        )
        weights += [other for other in others if other not in weights]
    return tuple(weights)


PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
W123 = {"gate": "w1", "up": "w3", "down": "w2"}


def fused_experts(
    count: str, size: Dimension, module: str = "mlp.experts", names: tuple[str, str] = ("gate_up_proj", "down_proj")
) -> dict[str, Weight]:
    """Return the two tensors that store the experts of a layer in transformers 5, by the roles that they contain."""
    gate_up = Weight(f"{module}.{names[0]}", (count, f"2 * ({size})", "hidden_size"), optional=True)
    down = Weight(f"{module}.{names[1]}", (count, "hidden_size", size), optional=True)
    return {"gate": gate_up, "up": gate_up, "down": down}


def usual(weight: Weight, *parts: str, when: str | None = None) -> Weight:
    """Return a joined tensor as one that checkpoints usually have; the weights that it contains may replace it."""
    return replace(weight, optional=False, needed_when=when, replaced_by=parts)


def joined_experts(
    fused: Mapping[str, Weight], module: str, matrices: Mapping[str, str] = PROJECTIONS, **options: Any
) -> tuple[Joined, ...]:
    """Return the tensors of ``fused_experts`` as joined ones, with the experts that they contain."""
    names = {role: f"{module}.experts.{{item}}.{matrix}.weight" for role, matrix in matrices.items()}
    return (
        Joined(fused["gate"].name, (names["gate"], names["up"]), **options),
        Joined(fused["down"].name, (names["down"],), **options),
    )


def joined_in_layer(*joined: Joined, prefix: str = "{base}layers.{layer}.") -> tuple[Joined, ...]:
    """Add the prefix of the layer to joined tensors with relative names."""
    return tuple(
        replace(
            each,
            name=prefix + each.name,
            parts=tuple(prefix + name for name in each.parts),
            swapped=tuple(prefix + name for name in each.swapped),
        )
        for each in joined
    )


def in_layer(*groups: tuple[Weight, ...], prefix: str = "{base}layers.{layer}.") -> tuple[Weight, ...]:
    """Add the prefix of the layer to weights with relative names."""
    return tuple(
        replace(
            weight,
            name=prefix + weight.name,
            replaced_by=tuple(prefix + name for name in weight.replaced_by),
            joined_in=None if weight.joined_in is None else prefix + weight.joined_in,
            gguf=None if weight.gguf is None else "blk.{layer}." + weight.gguf,
            mlx=None if weight.mlx is None else prefix + weight.mlx,
        )
        for group in groups
        for weight in group
    )


def embedding(name: str = "{base}embed_tokens.weight", size: Dimension = "hidden_size") -> Weight:
    """Return the input embedding: one row per token."""
    return Weight(name, ("vocab_size", size), is_vocabulary=True, gguf="token_embd.weight")


def learned_positions(name: str, count: Dimension = "max_position_embeddings") -> Weight:
    """Return the embedding of positions: one row per position."""
    return Weight(name, (count, "hidden_size"), gguf="position_embd.weight")


def plain_mlp(up: str, down: str, *, bias: str | None = None) -> tuple[Weight, ...]:
    """Return the two matrices of a feed-forward layer without gate."""
    return (
        *linear(up, "intermediate_size", "hidden_size", "ffn_up", bias=bias),
        *linear(down, "hidden_size", "intermediate_size", "ffn_down", bias=bias),
    )


def language_head(name: str, tied_to: Weight) -> Weight:
    """Return the output embedding, which is the input embedding when both are tied."""
    return Weight(
        name,
        tied_to.shape,
        needed_when="has_language_head",
        tied_to=tied_to.name,
        is_vocabulary=True,
        gguf="output.weight",
    )


def final_norm_and_head(*, bias: bool = False, adds_one: bool = False) -> tuple[Weight, ...]:
    """Return the weights after the layers, under the names that Llama introduced."""
    head = language_head("{head}lm_head.weight", embedding())
    return (*norm("{base}norm", "output_norm", bias=bias, adds_one=adds_one), head)


def token_prediction() -> tuple[Weight, ...]:
    """Return the weights that a layer for predicting further tokens (MTP) has in addition to those of other layers."""
    names = {"embed_tokens": "nextn.embed_tokens", "shared_head.head": "nextn.shared_head_head"}
    tables = (
        Weight(f"{name}.weight", ("vocab_size", "hidden_size"), optional=True, gguf=f"{stored}.weight")
        for name, stored in names.items()
    )
    return (
        *norm("enorm", "nextn.enorm"),
        *norm("hnorm", "nextn.hnorm"),
        *linear("eh_proj", "hidden_size", "2 * hidden_size", "nextn.eh_proj"),
        *norm("shared_head.norm", "nextn.shared_head_norm"),
        *tables,
    )


def decoder_defaults(
    vocab_size: int, hidden_size: int, intermediate_size: int, layers: int, heads: int, /, **others: Any
) -> dict[str, Any]:
    """Return the values that transformers assumes for keys missing from a config.json with Llama's keys."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": "num_attention_heads",
        "head_dim": HEAD_DIM,
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        **others,
    }


def window_rule(condition: str) -> LayerRule:
    """Return the rule that layers have a sliding window under a condition on ``layer`` and the config."""
    return LayerRule("layer_types", f"'sliding_attention' if ({condition}) else 'full_attention'")
