"""Granite: Llama with factors for embedding, scores, residual sums and logits."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention

MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}

GRANITE = Family(
    name="granite",
    model_types=("granite",),
    class_names=("GraniteForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(output_bias="attention_bias", is_paired=True), gated_mlp(bias="mlp_bias")),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        32000,
        4096,
        11008,
        32,
        32,
        max_position_embeddings=2048,
        mlp_bias=False,
        **dict.fromkeys(MULTIPLIERS.values(), 1.0),
    ),
    gguf=Gguf(
        "granite",
        rope_types=("default", "linear", "yarn", "llama3"),
        keys=MULTIPLIERS,
        true_if_stored={"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"},
    ),
    decoder=Decoder(
        GroupedAttention(scale="attention_multiplier"),
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        logit_scale="1 / logits_scaling",
    ),
)
