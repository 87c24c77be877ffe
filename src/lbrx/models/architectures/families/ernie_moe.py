"""ERNIE 4.5 with experts: a correction for choosing them, shared experts, dense first layers."""

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
)
from lbrx.models.architectures.records import Decoder, Experts, GatedMlp, Gguf, LayerRule, PerLayer, Rope, Weight

IS_SPARSE = (
    "layer >= moe_layer_start_index and (moe_layer_end_index < 0 or layer <= moe_layer_end_index)"
    " and (layer + 1) % moe_layer_interval == 0"
)
IS_DENSE = f"not ({IS_SPARSE})"
SIZE = "moe_intermediate_size"
FUSED = fused_experts("moe_num_experts", SIZE)

ERNIE_MOE = Family(
    name="ernie4_5_moe",
    model_types=("ernie4_5_moe",),
    class_names=("Ernie4_5_MoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(bias="use_bias", output_bias="use_bias", biases_in_gguf=""),
        experts("mlp", PROJECTIONS, count="moe_num_experts", size=SIZE, when=IS_SPARSE, joined=FUSED),
        (
            Weight(
                "mlp.moe_statics.e_score_correction_bias",
                (1, "moe_num_experts"),
                needed_when=IS_SPARSE,
                gguf="exp_probs_b.bias",
            ),
        ),
        gated_mlp(
            "mlp.shared_experts",
            f"{SIZE} * moe_num_shared_experts",
            "ffn_{}_shexp",
            when=f"moe_num_shared_experts > 0 and {IS_SPARSE}",
        ),
        gated_mlp(when=IS_DENSE),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        103424,
        2560,
        12288,
        28,
        20,
        num_key_value_heads=4,
        num_experts_per_tok="moe_k",
        moe_k=6,
        moe_num_experts=64,
        moe_num_shared_experts=2,
        moe_intermediate_size=1536,
        moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=1,
        moe_norm_min=1e-12,
        use_bias=False,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        max_position_embeddings=131072,
    ),
    tied_by_default=True,
    layer_rules=(LayerRule("moe_layer_start_index", IS_DENSE, is_count=True, resets=(("moe_layer_end_index", -1),)),),
    joined=joined_in_layer(*joined_experts(FUSED, "mlp")),
    gguf=Gguf(
        "ernie4_5-moe",
        left_out=("model.mtp_",),
        requires={
            "moe_layer_end_index < 0 or moe_layer_end_index == num_hidden_layers - 1": "the last layers are dense"
        },
        keys={
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_shared_feed_forward_length": f"{SIZE} * moe_num_shared_experts",
        },
        config={"moe_k": "expert_used_count"},
    ),
    decoder=Decoder(
        mlp=PerLayer(
            IS_SPARSE,
            {
                True: Experts(
                    scoring="softmax", count="moe_num_experts", normalized="True", smallest_sum="moe_norm_min"
                ),
                False: GatedMlp(),
            },
        ),
        positions=Rope("interleaved"),
    ),
)
