"""MiniMax Text-01 and M2: experts; Text-01 has linear attention in most layers, M2 norms of whole rows."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    NEVER,
    QUERY_ROWS,
    TWO_NORMS,
    W123,
    attention,
    decoder_defaults,
    embedding,
    experts,
    final_norm_and_head,
    fused_experts,
    in_layer,
    joined_experts,
    joined_in_layer,
    linear,
    norm,
    qk_norms,
)
from lbrx.models.architectures.records import Decoder, Experts, Gguf, GroupedAttention, Joined, LayerRule, Rope, Weight

MODULE, COUNT, SIZE = "block_sparse_moe", "num_local_experts", "intermediate_size"
FUSED = fused_experts(COUNT, SIZE)
ROUTER = Weight("mlp.gate.weight", (COUNT, "hidden_size"), optional=True)
CORRECTION = Weight(f"{MODULE}.e_score_correction_bias", (COUNT,), gguf="exp_probs_b.bias")
EXPERTS = experts(MODULE, W123, count=COUNT, size=SIZE, joined=FUSED, other_router=ROUTER)
JOINED = (*joined_experts(FUSED, MODULE, W123), Joined(ROUTER.name, (f"{MODULE}.gate.weight",)))
IS_LINEAR = "(layer_types[layer] if layer_types else 'full_attention' if (layer + 1) % 2 else 'linear_attention')"
HAS_LINEAR, HAS_SOFTMAX = f"{IS_LINEAR} == 'linear_attention'", f"{IS_LINEAR} != 'linear_attention'"
SOFTMAX = (
    *linear("self_attn.q_proj", QUERY_ROWS, "hidden_size", when=HAS_SOFTMAX),
    *linear("self_attn.k_proj", KEY_VALUE_ROWS, "hidden_size", when=HAS_SOFTMAX),
    *linear("self_attn.v_proj", KEY_VALUE_ROWS, "hidden_size", when=HAS_SOFTMAX),
    *linear("self_attn.o_proj", "hidden_size", QUERY_ROWS, when=HAS_SOFTMAX),
)
LIGHTNING = (
    *linear("self_attn.qkv_proj", f"3 * {QUERY_ROWS}", "hidden_size", when=HAS_LINEAR),
    *linear("self_attn.output_gate", QUERY_ROWS, "hidden_size", when=HAS_LINEAR),
    *linear("self_attn.out_proj", "hidden_size", QUERY_ROWS, when=HAS_LINEAR),
    *norm("self_attn.norm", size=QUERY_ROWS, when=HAS_LINEAR),
    Weight("self_attn.slope_rate", ("num_attention_heads", 1, 1), optional=True),
    Weight("self_attn.query_decay", ("num_attention_heads", "block_size", 1), optional=True),
    Weight("self_attn.key_decay", ("num_attention_heads", "block_size", 1), optional=True),
    Weight("self_attn.diagonal_decay", (1, "num_attention_heads", "block_size", "block_size"), optional=True),
)
SIZES = {"num_key_value_heads": 8, "num_experts_per_tok": 2, "num_local_experts": 8}

MINIMAX = Family(
    name="minimax",
    model_types=("minimax",),
    class_names=("MiniMaxForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, SOFTMAX, LIGHTNING, EXPERTS),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        32000, 4096, 14336, 32, 32, layer_types=(), block_size=256, max_position_embeddings=131072, **SIZES
    ),
    layer_rules=(LayerRule("layer_types", IS_LINEAR),),
    joined=joined_in_layer(*JOINED),
)

MINIMAX_M2 = Family(
    name="minimax_m2",
    model_types=("minimax_m2",),
    class_names=("MiniMaxM2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(bias=NEVER, biases_in_gguf=""),
        qk_norms(QUERY_ROWS, KEY_VALUE_ROWS),
        EXPERTS,
        (CORRECTION,),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        200064,
        3072,
        1536,
        62,
        48,
        num_key_value_heads=8,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
        rotary_dim="head_dim",
        rope_theta=5e6,
        max_position_embeddings=196608,
    ),
    joined=joined_in_layer(*JOINED),
    gguf=Gguf(
        "minimax-m2",
        keys={
            "expert_feed_forward_length": "intermediate_size",
            "rope.dimension_count": "rotary_dim",
            "expert_gating_func": "2",  # sigmoid
        },
        config={"rotary_dim": "rope_dimension_count"},
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="row"),
        Experts(scoring="sigmoid", normalized="True"),
        positions=Rope(size="rotary_dim"),
    ),
)
