"""The parts that definitions of architectures are put together from: linear layers, norms, experts.

All names are relative to a layer until ``in_layer`` gives them its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lbrx.models.architectures.architecture import Dimension, Weight

ALWAYS = "True"
QUERY_ROWS = "num_attention_heads * head_dim"
KEY_VALUE_ROWS = "num_key_value_heads * head_dim"
HEAD_DIM = "hidden_size // num_attention_heads"


def linear(
    module: str, rows: Dimension, columns: Dimension, *, bias: str | None = None, when: str | None = None
) -> tuple[Weight, ...]:
    """A matrix, and a bias that is needed under the condition ``bias`` (None: the layer never has one)."""
    matrix = Weight(f"{module}.weight", (rows, columns), needed_when=when)
    if bias is None:
        return (matrix,)
    return matrix, Weight(f"{module}.bias", (rows,), needed_when=bias)


def conv1d(module: str, inputs: Dimension, outputs: Dimension, *, when: str | None = None) -> tuple[Weight, ...]:
    """GPT-2's linear layer, whose matrix is stored transposed."""
    return (
        Weight(f"{module}.weight", (inputs, outputs), needed_when=when),
        Weight(f"{module}.bias", (outputs,), needed_when=when),
    )


def norm(
    module: str, size: Dimension = "hidden_size", *, bias: bool = False, when: str | None = None
) -> tuple[Weight, ...]:
    """The scale of a normalization, and its bias if it has one."""
    scale = Weight(f"{module}.weight", (size,), needed_when=when)
    return (scale, Weight(f"{module}.bias", (size,), needed_when=when)) if bias else (scale,)


def buffers(*names: str) -> tuple[Weight, ...]:
    """Constants that some versions of Transformers saved and others do not."""
    return tuple(Weight(name, optional=True, is_buffer=True) for name in names)


def attention(*, bias: str | None = "attention_bias", output_bias: str | None = None) -> tuple[Weight, ...]:
    """Separate query, key, value and output projections."""
    return (
        *linear("self_attn.q_proj", QUERY_ROWS, "hidden_size", bias=bias),
        *linear("self_attn.k_proj", KEY_VALUE_ROWS, "hidden_size", bias=bias),
        *linear("self_attn.v_proj", KEY_VALUE_ROWS, "hidden_size", bias=bias),
        *linear("self_attn.o_proj", "hidden_size", QUERY_ROWS, bias=output_bias),
        *buffers("self_attn.rotary_emb.inv_freq"),
    )


def gated_mlp(
    module: str = "mlp", size: Dimension = "intermediate_size", *, bias: str | None = None, when: str | None = None
) -> tuple[Weight, ...]:
    """The three matrices of a gated feed-forward layer."""
    return (
        *linear(f"{module}.gate_proj", size, "hidden_size", bias=bias, when=when),
        *linear(f"{module}.up_proj", size, "hidden_size", bias=bias, when=when),
        *linear(f"{module}.down_proj", "hidden_size", size, bias=bias, when=when),
    )


def experts(
    module: str,
    matrices: Iterable[tuple[str, Dimension, Dimension, tuple[Weight, ...]]],
    count: str,
    when: str | None = None,
) -> tuple[Weight, ...]:
    """One matrix per expert; each may also be stored for all experts at once, in the tensors given last."""
    weights: list[Weight] = []
    for matrix, rows, columns, alternatives in matrices:
        weights.append(
            Weight(
                f"{module}.{{item}}.{matrix}.weight",
                (rows, columns),
                items=count,
                needed_when=when,
                replaced_by=tuple(weight.name for weight in alternatives),
            )
        )
        weights += [weight for weight in alternatives if weight not in weights]
    return tuple(weights)


def stacked(name: str, count: str, rows: Dimension, columns: Dimension) -> Weight:
    """The matrices of all experts in one tensor."""
    return Weight(name, (count, rows, columns), optional=True)


def in_layer(*groups: tuple[Weight, ...], prefix: str = "{base}layers.{layer}.") -> tuple[Weight, ...]:
    """Weights whose names are relative to a layer, with the layer's prefix."""
    return tuple(
        replace(
            weight,
            name=prefix + weight.name,
            replaced_by=tuple(prefix + name for name in weight.replaced_by),
        )
        for group in groups
        for weight in group
    )


def embedding(name: str, size: Dimension = "hidden_size") -> Weight:
    """The input embedding: one row per token."""
    return Weight(name, ("vocab_size", size), is_vocabulary=True)


def language_head(name: str, tied_to: Weight) -> Weight:
    """The output embedding, which is the input embedding when both are tied."""
    return Weight(name, tied_to.shape, needed_when="has_language_head", tied_to=tied_to.name, is_vocabulary=True)
