"""T5: an encoder and a decoder, whose first layers have the relative positions of all layers."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.families.bert import SIZES
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import in_layer, linear, norm
from lbrx.models.architectures.records import Gguf, Naming, Weight

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
        *linear(f"{module}.DenseReluDense.wi_1", "d_ff", "d_model", "ffn_up", when=GATED),
        *linear(f"{module}.DenseReluDense.wo", "d_model", "d_ff", "ffn_down"),
        *norm(f"{module}.layer_norm", "ffn_norm", size="d_model"),
    )


def _positions(stack: str) -> Weight:
    gguf = f"{stack[:3]}.blk.0.attn_rel_b.weight"
    name = f"{{base}}{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return Weight(name, ("relative_attention_num_buckets", "num_heads"), gguf=gguf)


ENCODER_BLOCK = "{base}encoder.block.{layer}."
DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": "num_layers",
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "n_positions": 512,
    "layer_norm_epsilon": 1e-6,
    "decoder_start_token_id": 0,
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "is_gated_act": "feed_forward_proj == 'gated-gelu' or feed_forward_proj == 'gated-silu'",
    "feed_forward_proj": "'relu'",
}
KEYS = {
    "context_length": "n_positions",
    "embedding_length": "d_model",
    "feed_forward_length": "d_ff",
    "block_count": "num_layers",
    "attention.head_count": "num_heads",
    "attention.key_length": "d_kv",
    "attention.value_length": "d_kv",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
}
EMBEDDINGS = (
    Weight("{base}shared.weight", ("vocab_size", "d_model"), is_vocabulary=True, gguf="token_embd.weight"),
    Weight("{base}encoder.embed_tokens.weight", ("vocab_size", "d_model"), optional=True, is_vocabulary=True),
)


def _numbered(weights: tuple[Weight, ...], count: str) -> tuple[Weight, ...]:
    """Return the weights of a stack beside the main one."""
    return tuple(
        replace(
            weight,
            name=weight.name.replace("{layer}", "{item}"),
            items=count,
            gguf=(weight.gguf or "").replace("{layer}", "{item}"),
        )
        for weight in weights
    )


def _of(stack: str, weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """Return the weights of one of two stacks, which GGUF tells apart by a prefix."""
    return tuple(replace(weight, gguf=f"{stack}.{weight.gguf}") for weight in weights)


ENCODER_LAYER = _of(
    "enc",
    in_layer(
        _attention("layer.0.SelfAttention", "attn"),
        norm("layer.0.layer_norm", "attn_norm", size="d_model"),
        _mlp("layer.1"),
        prefix=ENCODER_BLOCK,
    ),
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
        *norm("{base}encoder.final_layer_norm", "enc.output_norm", size="d_model"),
        _positions("decoder"),
    ),
    layer=_of(
        "dec",
        in_layer(
            _attention("layer.0.SelfAttention", "attn"),
            norm("layer.0.layer_norm", "attn_norm", size="d_model"),
            _attention("layer.1.EncDecAttention", "cross_attn"),
            norm("layer.1.layer_norm", "cross_attn_norm", size="d_model"),
            _mlp("layer.2"),
            prefix=BLOCK,
        ),
    ),
    post=(
        *norm("{base}decoder.final_layer_norm", "dec.output_norm", size="d_model"),
        Weight("lm_head.weight", ("vocab_size", "d_model"), optional=True, is_vocabulary=True, gguf="output.weight"),
    ),
    layer_prefix=BLOCK,
    layers_key="num_decoder_layers",
    namings=(Naming(""), Naming("transformer.")),
    tied_by_default=True,
    defaults=DEFAULTS,
    omitted_sizes=SIZES,
    gguf=Gguf(
        "t5",
        is_encoder=True,
        keys={
            **KEYS,
            "decoder_block_count": "num_decoder_layers",
            "decoder_start_token_id": "decoder_start_token_id",
        },
        requires={"num_decoder_layers <= num_layers": "the decoder has more layers than the encoder"},
    ),
)

T5_ENCODER = Family(
    name="t5_encoder",
    model_types=("t5_encoder",),
    class_names=("T5EncoderModel", "MT5EncoderModel"),
    pre=(*EMBEDDINGS, _positions("encoder")),
    layer=ENCODER_LAYER,
    post=norm("{base}encoder.final_layer_norm", "enc.output_norm", size="d_model"),
    layer_prefix=ENCODER_BLOCK,
    layers_key="num_layers",
    namings=(Naming(""), Naming("transformer.")),
    tied_by_default=True,
    defaults=DEFAULTS,
    omitted_sizes=SIZES,
    gguf=Gguf("t5encoder", is_encoder=True, keys=KEYS),
)
