"""LFM2: layers of short convolutions and of attention, also with experts."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import conv, type_of_layer
from lbrx.models.architectures.mixer_records import ShortConv
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    W123,
    decoder_defaults,
    embedding,
    experts,
    fused_experts,
    in_layer,
    joined_experts,
    joined_in_layer,
    language_head,
    linear,
    norm,
)
from lbrx.models.architectures.records import (
    Decoder,
    Experts,
    GatedMlp,
    Gguf,
    GroupedAttention,
    LayerRule,
    Norm,
    PerLayer,
    Weight,
)

RULE = "'conv' if full_attn_idxs != 'all' and layer not in full_attn_idxs else 'full_attention'"
TYPE = type_of_layer(RULE)
IS_CONV, IS_ATTENTION = f"{TYPE} == 'conv'", f"{TYPE} != 'conv'"
CONV_BIAS = f"({IS_CONV}) and conv_bias"
ADJUSTED = "(block_ffn_dim_multiplier * (2 * block_ff_dim // 3)) // 1"
INNER = (
    f"block_multiple_of * (({ADJUSTED} + block_multiple_of - 1) // block_multiple_of)"
    " if block_auto_adjust_ff_dim else block_ff_dim"
)
CONVOLUTION = (
    *linear("conv.in_proj", "3 * hidden_size", "hidden_size", "shortconv.in_proj", bias=CONV_BIAS, when=IS_CONV),
    *conv("conv.conv", "hidden_size", "conv_L_cache", "shortconv.conv", bias="conv_bias", when=IS_CONV),
    *linear("conv.out_proj", "hidden_size", "hidden_size", "shortconv.out_proj", bias=CONV_BIAS, when=IS_CONV),
)
ATTENTION = (
    *linear("self_attn.q_proj", QUERY_ROWS, "hidden_size", "attn_q", when=IS_ATTENTION),
    *linear("self_attn.k_proj", KEY_VALUE_ROWS, "hidden_size", "attn_k", when=IS_ATTENTION),
    *linear("self_attn.v_proj", KEY_VALUE_ROWS, "hidden_size", "attn_v", when=IS_ATTENTION),
    *linear("self_attn.out_proj", "hidden_size", QUERY_ROWS, "attn_output", when=IS_ATTENTION),
    *norm("self_attn.q_layernorm", "attn_q_norm", size="head_dim", when=IS_ATTENTION),
    *norm("self_attn.k_layernorm", "attn_k_norm", size="head_dim", when=IS_ATTENTION),
)
NORMS = (*norm("operator_norm", "attn_norm"), *norm("ffn_norm", "ffn_norm"))
FINAL_NORM = norm("{base}embedding_norm", "token_embd_norm")
MIXER = PerLayer("layer_type", {"conv": ShortConv(), "full_attention": GroupedAttention(qk_norm="head")})
LAYER_KEYS = {"attention.head_count_kv": f"num_key_value_heads if {IS_ATTENTION} else 0"}
LAYER_CONFIG = {"layer_types": "'conv' if attention_head_count_kv[layer] == 0 else 'full_attention'"}
DEFAULTS = {
    "conv_bias": False,
    "conv_L_cache": 3,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "full_attn_idxs": "'all'",
    "layer_types": None,
}

LFM2 = Family(
    name="lfm2",
    model_types=("lfm2",),
    class_names=("Lfm2ForCausalLM", "LFM2ForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(
        NORMS,
        CONVOLUTION,
        ATTENTION,
        linear("feed_forward.w1", INNER, "hidden_size", "ffn_gate"),
        linear("feed_forward.w3", INNER, "hidden_size", "ffn_up"),
        linear("feed_forward.w2", "hidden_size", INNER, "ffn_down"),
    ),
    post=(*FINAL_NORM, language_head("{head}lm_head.weight", embedding())),
    tied_by_default=True,
    defaults=decoder_defaults(
        65536,
        2560,
        12288,
        32,
        32,
        max_position_embeddings=128000,
        block_ff_dim="intermediate_size",
        block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=True,
        **DEFAULTS,
    ),
    omitted_sizes=("intermediate_size",),
    layer_rules=(LayerRule("layer_types", RULE),),
    gguf=Gguf(
        "lfm2",
        keys={"shortconv.l_cache": "conv_L_cache", "feed_forward_length": INNER},
        config={"block_auto_adjust_ff_dim": "False"},
        layer_keys=LAYER_KEYS,
        layer_config=LAYER_CONFIG,
        requires={"not conv_bias": "biases of convolutions"},
    ),
    decoder=Decoder(
        mixer=MIXER,
        norm=Norm(epsilon="norm_eps"),
        layer_types=("conv", "full_attention"),
        final_norm="token_embd_norm",
    ),
)

IS_DENSE = "layer < num_dense_layers"
IS_SPARSE = "layer >= num_dense_layers"
EXPERT_BIAS = f"{IS_SPARSE} and use_expert_bias"
FUSED = fused_experts("num_experts", "moe_intermediate_size", "feed_forward.experts")
EXPERTS = (
    *experts("feed_forward", W123, count="num_experts", size="moe_intermediate_size", when=IS_SPARSE, joined=FUSED),
    Weight("feed_forward.expert_bias", ("num_experts",), needed_when=EXPERT_BIAS, gguf="exp_probs_b.bias"),
)

LFM2_MOE = Family(
    name="lfm2_moe",
    model_types=("lfm2_moe",),
    class_names=("Lfm2MoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        NORMS,
        CONVOLUTION,
        ATTENTION,
        linear("feed_forward.w1", "intermediate_size", "hidden_size", "ffn_gate", when=IS_DENSE),
        linear("feed_forward.w3", "intermediate_size", "hidden_size", "ffn_up", when=IS_DENSE),
        linear("feed_forward.w2", "hidden_size", "intermediate_size", "ffn_down", when=IS_DENSE),
        EXPERTS,
    ),
    post=(*FINAL_NORM, language_head("{head}lm_head.weight", embedding())),
    tied_by_default=True,
    defaults=decoder_defaults(
        65536,
        2048,
        7168,
        32,
        32,
        num_key_value_heads=8,
        max_position_embeddings=128000,
        moe_intermediate_size=1792,
        num_dense_layers=2,
        num_experts=32,
        num_experts_per_tok=4,
        use_expert_bias=True,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        **DEFAULTS,
    ),
    layer_rules=(
        LayerRule("layer_types", RULE),
        LayerRule("num_dense_layers", IS_DENSE, is_count=True),
    ),
    joined=joined_in_layer(*joined_experts(FUSED, "feed_forward", W123)),
    gguf=Gguf(
        "lfm2moe",
        never_has_output=True,
        keys={
            "shortconv.l_cache": "conv_L_cache",
            "leading_dense_block_count": "num_dense_layers",
            "expert_gating_func": "2",
        },
        layer_keys=LAYER_KEYS,
        layer_config=LAYER_CONFIG,
        requires={"not conv_bias": "biases of convolutions"},
        differs={
            "routed_scaling_factor != 1.0 or not norm_topk_prob": "weights of experts have the sum 1 and are not scaled"
        },
    ),
    decoder=Decoder(
        mixer=MIXER,
        mlp=PerLayer(
            IS_DENSE,
            {
                True: GatedMlp(),
                False: Experts(
                    scoring="sigmoid",
                    count="num_experts",
                    normalized="norm_topk_prob",
                    scale="routed_scaling_factor",
                ),
            },
        ),
        norm=Norm(epsilon="norm_eps"),
        layer_types=("conv", "full_attention"),
        final_norm="token_embd_norm",
    ),
)
