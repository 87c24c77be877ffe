"""Seed-OSS: like Llama with biases of queries, keys and values."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
)
from lbrx.models.architectures.records import Decoder, Gguf, Norm

SEED_OSS = Family(
    name="seed_oss",
    model_types=("seed_oss",),
    class_names=("SeedOssForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("post_attention_layernorm", "post_attention_norm"),
        attention(output_bias="attention_out_bias", biases_in_gguf="qkv"),
        gated_mlp(bias="mlp_bias"),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        155136,
        4096,
        27648,
        64,
        80,
        num_key_value_heads=8,
        head_dim=128,
        attention_bias=True,
        attention_out_bias=False,
        mlp_bias=False,
        max_position_embeddings=524288,
    ),
    gguf=Gguf("seed_oss", true_if_stored={"attention_bias": "attn_q.bias"}),
    decoder=Decoder(norm=Norm(names=("attn_norm", "", "post_attention_norm", ""))),
)
