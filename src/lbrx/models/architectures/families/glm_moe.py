"""GLM 4.5, 4.6 and 4.7: experts chosen by sigmoids, a shared expert, dense first layers."""

from lbrx.models.architectures.families.deepseek import CORRECTION, DENSE_LAYERS, EXPERTS, FUSED, IS_DENSE, V3_EXPERTS
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    joined_experts,
    joined_in_layer,
    norm,
    token_prediction,
)
from lbrx.models.architectures.records import Decoder, GatedMlp, Gguf, GroupedAttention, Norm, PerLayer

GLM4_MOE = Family(
    name="glm4_moe",
    model_types=("glm4_moe",),
    class_names=("Glm4MoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("post_attention_layernorm", "post_attention_norm"),
        attention(biases_in_gguf="qkv"),
        norm("self_attn.q_norm", "attn_q_norm", size="head_dim", when="use_qk_norm"),
        norm("self_attn.k_norm", "attn_k_norm", size="head_dim", when="use_qk_norm"),
        EXPERTS,
        (CORRECTION,),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        151552,
        4096,
        10944,
        46,
        96,
        num_key_value_heads=8,
        n_routed_experts=128,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        routed_scaling_factor=1.0,
        norm_topk_prob=True,
        n_group=1,
        topk_group=1,
        use_qk_norm=False,
        partial_rotary_factor=0.5,
        rms_norm_eps=1e-5,
        max_position_embeddings=131072,
    ),
    layer_rules=(DENSE_LAYERS,),
    joined=joined_in_layer(*joined_experts(FUSED, "mlp")),
    needed_in_mlx=("rope_scaling",),
    prediction=in_layer(token_prediction()),
    prediction_key="num_nextn_predict_layers",
    gguf=Gguf(
        "glm4moe",
        true_if_stored={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        keys={
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_count": "n_routed_experts",
            "expert_shared_count": "n_shared_experts",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "expert_gating_func": "2",  # sigmoid
            "nextn_predict_layers": "0",
        },
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="head", qk_norm_when="use_qk_norm"),
        PerLayer(IS_DENSE, {True: GatedMlp(), False: V3_EXPERTS}),
        norm=Norm(names=("attn_norm", "", "post_attention_norm", "")),
    ),
)
