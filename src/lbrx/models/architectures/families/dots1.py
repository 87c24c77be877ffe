"""dots.llm1: experts chosen by sigmoids, shared experts, dense first layers, norms of queries and keys."""

from lbrx.models.architectures.families.deepseek import (
    CORRECTION,
    DENSE_LAYERS,
    FUSED,
    IS_DENSE,
    V3_EXPERTS,
    routed_experts,
)
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    joined_experts,
    joined_in_layer,
    qk_norms,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, GatedMlp, Gguf, GroupedAttention, PerLayer

DOTS1 = Family(
    name="dots1",
    model_types=("dots1",),
    class_names=("Dots1ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(output_bias="attention_bias", biases_in_gguf=""),
        qk_norms("head_dim", "head_dim"),
        routed_experts("{}.experts.{}_proj.weight"),
        (CORRECTION,),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        152064,
        4608,
        10944,
        62,
        32,
        num_key_value_heads=32,
        n_routed_experts=128,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=0,
        routed_scaling_factor=1.0,
        norm_topk_prob=False,
        n_group=1,
        topk_group=1,
        sliding_window=None,
        max_window_layers=62,
        max_position_embeddings=2048,
    ),
    layer_rules=(DENSE_LAYERS, window_rule("sliding_window and layer >= max_window_layers")),
    joined=joined_in_layer(*joined_experts(FUSED, "mlp")),
    gguf=Gguf(
        "dots1",
        keys={
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_count": "n_routed_experts",
            "expert_shared_count": "n_shared_experts",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "expert_gating_func": "2",  # sigmoid
        },
    ),
    decoder=Decoder(GroupedAttention(qk_norm="head"), PerLayer(IS_DENSE, {True: GatedMlp(), False: V3_EXPERTS})),
)
