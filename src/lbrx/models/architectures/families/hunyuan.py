"""Hunyuan without experts: norms of queries and keys after positions."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention

HUNYUAN_V1_DENSE = Family(
    name="hunyuan_v1_dense",
    model_types=("hunyuan_v1_dense",),
    class_names=("HunYuanDenseV1ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(output_bias="attention_bias", biases_in_gguf=""),
        norm("self_attn.query_layernorm", "attn_q_norm", size="head_dim"),
        norm("self_attn.key_layernorm", "attn_k_norm", size="head_dim"),
        gated_mlp(),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(290943, 4096, 11008, 32, 32, max_position_embeddings=2048, rms_norm_eps=1e-5),
    gguf=Gguf("hunyuan-dense"),
    decoder=Decoder(GroupedAttention(qk_norm="head", norms_after_rope=True)),
)
