"""Hunyuan A13B: experts and a shared MLP, norms of queries and keys after their rotation."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    PROJECTIONS,
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    experts,
    final_norm_and_head,
    fused_experts,
    gated_mlp,
    in_layer,
    joined_experts,
    joined_in_layer,
    norm,
)

FUSED = fused_experts("num_experts", "intermediate_size")

HUNYUAN_MOE = Family(
    name="hunyuan_v1_moe",
    model_types=("hunyuan_v1_moe",),
    class_names=("HunYuanMoEV1ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(output_bias="attention_bias"),
        norm("self_attn.query_layernorm", "attn_q_norm", size="head_dim"),
        norm("self_attn.key_layernorm", "attn_k_norm", size="head_dim"),
        experts("mlp", PROJECTIONS, count="num_experts", size="intermediate_size", joined=FUSED, router="gate.wg"),
        gated_mlp("mlp.shared_mlp", "intermediate_size", "ffn_{}_shexp"),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        290943,
        4096,
        11008,
        32,
        32,
        num_experts=1,
        num_experts_per_tok="moe_topk",
        moe_topk=1,
        rms_norm_eps=1e-5,
        max_position_embeddings=2048,
    ),
    joined=joined_in_layer(*joined_experts(FUSED, "mlp")),
)
