"""Arcee Trinity (AFMoE): gated attention, four norms per layer, experts chosen by sigmoids."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    PROJECTIONS,
    QUERY_ROWS,
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
    norm,
    qk_norms,
    window_rule,
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
    Rope,
    Weight,
)

IS_DENSE, IS_SPARSE = "layer < num_dense_layers", "layer >= num_dense_layers"
SIZE = "moe_intermediate_size"
FUSED = fused_experts("num_experts", SIZE)

AFMOE = Family(
    name="afmoe",
    model_types=("afmoe",),
    class_names=("AfmoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("post_attention_layernorm", "post_attention_norm"),
        norm("pre_mlp_layernorm", "ffn_norm"),
        norm("post_mlp_layernorm", "post_ffw_norm"),
        attention(output_bias="attention_bias", biases_in_gguf=""),
        linear("self_attn.gate_proj", QUERY_ROWS, "hidden_size", "attn_gate"),
        qk_norms("head_dim", "head_dim"),
        experts(
            "mlp",
            PROJECTIONS,
            count="num_experts",
            size=SIZE,
            when=IS_SPARSE,
            joined=FUSED,
            router="router.gate",
            mlx="{}.experts.{}_proj.weight",
        ),
        (Weight("mlp.expert_bias", ("num_experts",), needed_when=IS_SPARSE, gguf="exp_probs_b.bias"),),
        gated_mlp("mlp.shared_experts", f"{SIZE} * num_shared_experts", "ffn_{}_shexp", when=IS_SPARSE),
        gated_mlp(when=IS_DENSE),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        200192,
        2048,
        6144,
        32,
        16,
        head_dim=128,
        num_dense_layers=1,
        num_experts=64,
        num_experts_per_tok=6,
        num_shared_experts=2,
        moe_intermediate_size=1408,
        route_scale=1.0,
        global_attn_every_n_layers=4,
        sliding_window=1024,
        mup_enabled=False,
        rms_norm_eps=1e-5,
        max_position_embeddings=16384,
    ),
    layer_rules=(
        LayerRule("num_dense_layers", IS_DENSE, is_count=True),
        window_rule("(layer + 1) % global_attn_every_n_layers"),
    ),
    joined=joined_in_layer(*joined_experts(FUSED, "mlp")),
    gguf=Gguf(
        "afmoe",
        full_attention_period=4,
        fixed={"mup_enabled": True},
        keys={
            "leading_dense_block_count": "num_dense_layers",
            "expert_shared_count": "num_shared_experts",
            "expert_weights_scale": "route_scale",
            "expert_weights_norm": "True",
            "expert_gating_func": "2",  # sigmoid
        },
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="head", has_gate=True),
        PerLayer(
            IS_DENSE,
            {
                True: GatedMlp(),
                False: Experts(scoring="sigmoid", count="num_experts", normalized="True", scale="route_scale"),
            },
        ),
        Norm("both"),
        positions=Rope(when="layer_type == 'sliding_attention'"),
        embedding_scale="hidden_size ** 0.5 if mup_enabled else 1.0",
    ),
)
