"""Qwen 2 and Qwen 3, both also with experts."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
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
    linear,
    qk_norms,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Experts, GatedMlp, Gguf, GroupedAttention, LayerRule, PerLayer

WINDOWS = (window_rule("use_sliding_window and layer >= max_window_layers"),)
WINDOW_DEFAULTS = {"use_sliding_window": False, "max_window_layers": 28}
QWEN3_ATTENTION = (
    *attention(output_bias="attention_bias", biases_in_gguf="qkv"),
    *qk_norms("head_dim", "head_dim"),
)

QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    class_names=("Qwen2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(bias=ALWAYS), gated_mlp()),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        151936, 4096, 22016, 32, 32, num_key_value_heads=32, max_position_embeddings=32768, **WINDOW_DEFAULTS
    ),
    layer_rules=WINDOWS,
    gguf=Gguf("qwen2"),
    decoder=Decoder(),
)

QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    class_names=("Qwen3ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, QWEN3_ATTENTION, gated_mlp()),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        151936,
        4096,
        22016,
        32,
        32,
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=32768,
        **WINDOW_DEFAULTS,
    ),
    layer_rules=WINDOWS,
    gguf=Gguf("qwen3"),
    decoder=Decoder(mixer=GroupedAttention(qk_norm="head")),
)

IS_DENSE = "layer in mlp_only_layers or num_experts == 0 or (layer + 1) % decoder_sparse_step != 0"
IS_SPARSE = f"not ({IS_DENSE})"
DENSE_LAYERS = LayerRule("mlp_only_layers", IS_DENSE, is_index_list=True, resets=(("decoder_sparse_step", 1),))
FUSED = fused_experts("num_experts", "moe_intermediate_size")
EXPERTS = (
    *experts("mlp", PROJECTIONS, count="num_experts", size="moe_intermediate_size", when=IS_SPARSE, joined=FUSED),
    *(replace(weight, in_gguf=False) for weight in gated_mlp(when=IS_DENSE)),
)
MIXTURE = Experts(scoring="softmax", count="num_experts", normalized="norm_topk_prob")
JOINED = joined_in_layer(*joined_experts(FUSED, "mlp"))
EXPERT_DEFAULTS = {
    "num_experts": "num_local_experts",
    "mlp_only_layers": (),
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "max_position_embeddings": 32768,
}

QWEN2_MOE = Family(
    name="qwen2_moe",
    model_types=("qwen2_moe",),
    class_names=("Qwen2MoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(bias="qkv_bias"),
        EXPERTS,
        linear("mlp.shared_expert_gate", 1, "hidden_size", "ffn_gate_inp_shexp", when=IS_SPARSE),
        gated_mlp("mlp.shared_expert", "shared_expert_intermediate_size", "ffn_{}_shexp", when=IS_SPARSE),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        151936,
        2048,
        5632,
        24,
        16,
        num_key_value_heads=16,
        qkv_bias=True,
        num_local_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        **EXPERT_DEFAULTS,
    ),
    layer_rules=(DENSE_LAYERS,),
    joined=JOINED,
    gguf=Gguf("qwen2moe", has_output_when_tied=True, fixed={"norm_topk_prob": False}),
    decoder=Decoder(mlp=PerLayer(IS_DENSE, {True: GatedMlp(), False: MIXTURE})),
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    class_names=("Qwen3MoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, QWEN3_ATTENTION, EXPERTS),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        151936,
        2048,
        6144,
        24,
        32,
        num_key_value_heads=4,
        num_local_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        **EXPERT_DEFAULTS,
    ),
    layer_rules=(DENSE_LAYERS,),
    joined=JOINED,
    gguf=Gguf("qwen3moe", fixed={"norm_topk_prob": True}),
    careful_in_mlx=("mlp.gate",),
    decoder=Decoder(GroupedAttention(qk_norm="head"), PerLayer(IS_DENSE, {True: GatedMlp(), False: MIXTURE})),
)
