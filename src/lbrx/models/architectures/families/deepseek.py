"""DeepSeek V2, V3 (also Kimi K2) and GLM 4.7 Flash: latent attention, and experts after the first layers."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    PROJECTIONS,
    TWO_NORMS,
    decoder_defaults,
    embedding,
    experts,
    final_norm_and_head,
    fused_experts,
    gated_mlp,
    in_layer,
    joined_experts,
    joined_in_layer,
    linear,
    norm,
    token_prediction,
    usual,
)
from lbrx.models.architectures.records import (
    Decoder,
    Experts,
    GatedMlp,
    Gguf,
    Joined,
    LatentAttention,
    LayerRule,
    PerLayer,
    Rope,
    Weight,
)

IS_DENSE = "n_routed_experts == 0 or layer < first_k_dense_replace"
IS_SPARSE = f"not ({IS_DENSE})"
DENSE_LAYERS = LayerRule("first_k_dense_replace", "layer < first_k_dense_replace", is_count=True)
HAS_QUERY_RANK, HAS_NO_QUERY_RANK = "q_lora_rank != 0", "q_lora_rank == 0"
QUERY_ROWS = "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)"
KEY_VALUE_ROWS = "num_attention_heads * (qk_nope_head_dim + v_head_dim)"

KEY_BASIS, VALUE_BASIS = "self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight"
BASES = Weight("self_attn.kv_b_proj.weight", (KEY_VALUE_ROWS, "kv_lora_rank"))
LATENT_ATTENTION = (
    *linear("self_attn.q_proj", QUERY_ROWS, "hidden_size", "attn_q", when=HAS_NO_QUERY_RANK),
    *linear("self_attn.q_a_proj", "q_lora_rank", "hidden_size", "attn_q_a", when=HAS_QUERY_RANK, bias="attention_bias"),
    *norm("self_attn.q_a_layernorm", "attn_q_a_norm", size="q_lora_rank", when=HAS_QUERY_RANK),
    *linear("self_attn.q_b_proj", QUERY_ROWS, "q_lora_rank", "attn_q_b", when=HAS_QUERY_RANK),
    *linear(
        "self_attn.kv_a_proj_with_mqa",
        "kv_lora_rank + qk_rope_head_dim",
        "hidden_size",
        "attn_kv_a_mqa",
        bias="attention_bias",
    ),
    *norm("self_attn.kv_a_layernorm", "attn_kv_a_norm", size="kv_lora_rank"),
    Weight(
        KEY_BASIS,
        ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim"),
        joined_in=BASES.name,
        gguf="attn_k_b.weight",
    ),
    Weight(
        VALUE_BASIS,
        ("num_attention_heads", "v_head_dim", "kv_lora_rank"),
        joined_in=BASES.name,
        gguf="attn_v_b.weight",
    ),
    usual(BASES, KEY_BASIS, VALUE_BASIS),
    *linear(
        "self_attn.o_proj", "hidden_size", "num_attention_heads * v_head_dim", "attn_output", bias="attention_bias"
    ),
)
FUSED = fused_experts("n_routed_experts", "moe_intermediate_size")


def routed_experts(mlx: str = "{}.switch_mlp.{}_proj.weight") -> tuple[Weight, ...]:
    """Return routed and shared experts, and the MLPs of dense layers."""
    size = "moe_intermediate_size"
    return (
        *experts("mlp", PROJECTIONS, count="n_routed_experts", size=size, when=IS_SPARSE, joined=FUSED, mlx=mlx),
        *gated_mlp("mlp.shared_experts", f"{size} * n_shared_experts", "ffn_{}_shexp", when=IS_SPARSE),
        *gated_mlp(when=IS_DENSE),
    )


EXPERTS = routed_experts()
# The names of the maps of latent vectors in MLX; that of V2 has them joined.
MLX_MAPS = {KEY_BASIS: "self_attn.embed_q.weight", VALUE_BASIS: "self_attn.unembed_out.weight"}
V3_ATTENTION = tuple(replace(weight, mlx=MLX_MAPS.get(weight.name)) for weight in LATENT_ATTENTION)
CORRECTION = Weight(
    "mlp.gate.e_score_correction_bias", ("n_routed_experts",), needed_when=IS_SPARSE, gguf="exp_probs_b.bias"
)
JOINED = joined_in_layer(
    Joined(
        BASES.name,
        (KEY_BASIS, VALUE_BASIS),
        view=("num_attention_heads", "qk_nope_head_dim + v_head_dim", "kv_lora_rank"),
        swapped=(KEY_BASIS,),
    ),
    *joined_experts(FUSED, "mlp"),
)
DEFAULTS = {
    "head_dim": "qk_rope_head_dim",
    "attention_bias": False,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
}
KEYS = {
    "attention.head_count_kv": "1",  # llama.cpp computes with the latent vector as the only head
    "attention.key_length": "kv_lora_rank + qk_rope_head_dim",
    "attention.value_length": "kv_lora_rank",
    "attention.key_length_mla": "qk_nope_head_dim + qk_rope_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank if q_lora_rank else None",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob if norm_topk_prob else None",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
CONFIG = {
    "head_dim": "rope_dimension_count",
    "num_key_value_heads": "attention_head_count",
    "qk_rope_head_dim": "rope_dimension_count",
    "qk_nope_head_dim": "attention_key_length_mla - rope_dimension_count",
    "v_head_dim": "attention_value_length_mla",
    "kv_lora_rank": "attention_kv_lora_rank",
    "q_lora_rank": "attention_q_lora_rank",
    "norm_topk_prob": "expert_weights_norm",
}
ASSUMED = {"attention_q_lora_rank": None, "expert_weights_norm": False, "expert_group_count": 1}

POSITIONS = Rope("interleaved", size="qk_rope_head_dim")
V2_EXPERTS = Experts(
    scoring="softmax",
    count="n_routed_experts",
    scale="routed_scaling_factor",
    groups="n_group if topk_method == 'group_limited_greedy' else None",
    group_score="best",
)
V3_EXPERTS = Experts(
    scoring="sigmoid",
    count="n_routed_experts",
    normalized="norm_topk_prob",
    scale="routed_scaling_factor",
    groups="n_group",
)

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    model_types=("deepseek_v2",),
    class_names=("DeepseekV2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, LATENT_ATTENTION, EXPERTS),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        102400,
        4096,
        11008,
        32,
        32,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1407,
        first_k_dense_replace=0,
        routed_scaling_factor=1.0,
        norm_topk_prob=False,
        topk_method="'greedy'",
        n_group=None,
        topk_group=None,
        max_position_embeddings=2048,
        **DEFAULTS,
    ),
    layer_rules=(DENSE_LAYERS,),
    joined=JOINED,
    gguf=Gguf(
        "deepseek2",
        when="expert_gating_func != 2",
        differs={
            "topk_method == 'group_limited_greedy' and n_group": "'topk_method' is 'group_limited_greedy', but "
            "llama.cpp chooses groups by the sum of their two best experts"
        },
        yarn_log_multiplier=0.1,
        keys=KEYS,
        config={**CONFIG, "topk_method": "'group_limited_greedy' if expert_group_count > 1 else 'greedy'"},
        stored_defaults=ASSUMED,
    ),
    decoder=Decoder(LatentAttention(), PerLayer(IS_DENSE, {True: GatedMlp(), False: V2_EXPERTS}), positions=POSITIONS),
)

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    model_types=("deepseek_v3", "kimi_k2"),
    class_names=("DeepseekV3ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, V3_ATTENTION, EXPERTS, (CORRECTION,)),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        129280,
        7168,
        18432,
        61,
        128,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        first_k_dense_replace=3,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        n_group=8,
        topk_group=4,
        max_position_embeddings=4096,
        **DEFAULTS,
    ),
    layer_rules=(DENSE_LAYERS,),
    joined=JOINED,
    prediction=in_layer(token_prediction()),
    prediction_key="num_nextn_predict_layers",
    gguf=Gguf(
        "deepseek2",
        when="expert_gating_func == 2",
        yarn_log_multiplier=0.1,
        keys={**KEYS, "expert_gating_func": "2"},  # sigmoid
        config=CONFIG,
        stored_defaults=ASSUMED,
    ),
    decoder=Decoder(LatentAttention(), PerLayer(IS_DENSE, {True: GatedMlp(), False: V3_EXPERTS}), positions=POSITIONS),
)
