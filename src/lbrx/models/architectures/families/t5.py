"""T5: an encoder and a decoder, whose first layers have the relative positions of all layers."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import in_layer, linear, norm
from lbrx.models.architectures.records import Naming, Weight

GATED = "is_gated_act"
BLOCK = "{base}decoder.block.{layer}."
INNER = "num_heads * d_kv"


def _attention(module: str, gguf: str) -> tuple[Weight, ...]:
    return (
        *linear(f"{module}.q", INNER, "d_model", f"{gguf}_q"),
        *linear(f"{module}.k", INNER, "d_model", f"{gguf}_k"),
        *linear(f"{module}.v", INNER, "d_model", f"{gguf}_v"),
        *linear(f"{module}.o", "d_model", INNER, f"{gguf}_o"),
    )


def _mlp(module: str) -> tuple[Weight, ...]:
    return (
        *linear(f"{module}.DenseReluDense.wi", "d_ff", "d_model", "ffn_up", when=f"not {GATED}"),
        *linear(f"{module}.DenseReluDense.wi_0", "d_ff", "d_model", "ffn_gate", when=GATED),
        *(
            replace(weight, gguf=None)
            for weight in linear(f"{module}.DenseReluDense.wi_1", "d_ff", "d_model", when=GATED)
        ),
        *linear(f"{module}.DenseReluDense.wo", "d_model", "d_ff", "ffn_down"),
        *norm(f"{module}.layer_norm", "ffn_norm", size="d_model"),
    )


def _positions(stack: str) -> Weight:
    name = f"{{base}}{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return Weight(name, ("relative_attention_num_buckets", "num_heads"))


ENCODER_LAYER = in_layer(
    _attention("layer.0.SelfAttention", "attn"),
    norm("layer.0.layer_norm", "attn_norm", size="d_model"),
    _mlp("layer.1"),
    prefix="{base}encoder.block.{layer}.",
)
DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": "num_layers",
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "is_gated_act": "feed_forward_proj == 'gated-gelu' or feed_forward_proj == 'gated-silu'",
    "feed_forward_proj": "'relu'",
}
EMBEDDINGS = (
    Weight("{base}shared.weight", ("vocab_size", "d_model"), is_vocabulary=True, gguf="token_embd.weight"),
    Weight("{base}encoder.embed_tokens.weight", ("vocab_size", "d_model"), optional=True, is_vocabulary=True),
)


def _numbered(weights: tuple[Weight, ...], count: str) -> tuple[Weight, ...]:
    """Return the weights of a stack beside the main one."""
    return tuple(
        replace(weight, name=weight.name.replace("{layer}", "{item}"), items=count, gguf=None) for weight in weights
    )


T5 = Family(
    name="t5",
    model_types=("t5", "mt5"),
    class_names=("T5ForConditionalGeneration", "T5Model", "MT5ForConditionalGeneration", "MT5Model"),
    pre=(
        *EMBEDDINGS,
        Weight("{base}decoder.embed_tokens.weight", ("vocab_size", "d_model"), optional=True, is_vocabulary=True),
        _positions("encoder"),
        *_numbered(ENCODER_LAYER, "num_layers"),
        *norm("{base}encoder.final_layer_norm", size="d_model"),
        _positions("decoder"),
    ),
    layer=in_layer(
        _attention("layer.0.SelfAttention", "attn"),
        norm("layer.0.layer_norm", "attn_norm", size="d_model"),
        _attention("layer.1.EncDecAttention", "cross_attn"),
        norm("layer.1.layer_norm", "cross_attn_norm", size="d_model"),
        _mlp("layer.2"),
        prefix=BLOCK,
    ),
    post=(
        *norm("{base}decoder.final_layer_norm", size="d_model"),
        Weight("lm_head.weight", ("vocab_size", "d_model"), optional=True, is_vocabulary=True),
    ),
    layer_prefix=BLOCK,
    layers_key="num_decoder_layers",
    namings=(Naming(""), Naming("transformer.")),
    tied_by_default=True,
    defaults=DEFAULTS,
)

T5_ENCODER = Family(
    name="t5_encoder",
    model_types=("t5_encoder",),
    class_names=("T5EncoderModel", "MT5EncoderModel"),
    pre=(*EMBEDDINGS, _positions("encoder")),
    layer=ENCODER_LAYER,
    post=norm("{base}encoder.final_layer_norm", size="d_model"),
    layer_prefix="{base}encoder.block.{layer}.",
    layers_key="num_layers",
    namings=(Naming(""), Naming("transformer.")),
    tied_by_default=True,
    defaults=DEFAULTS,
)
