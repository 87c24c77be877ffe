"""The language model of Llama 4: experts in some layers, attention in chunks, layers without positions."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    PROJECTIONS,
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    experts,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    joined_in_layer,
    usual,
)
from lbrx.models.architectures.records import (
    Decoder,
    Experts,
    GatedMlp,
    Gguf,
    GroupedAttention,
    Joined,
    LayerRule,
    PerLayer,
    Rope,
    Weight,
)

MODULE, COUNT, SIZE = "feed_forward", "num_local_experts", "intermediate_size"
IS_SPARSE = (
    "num_local_experts > 0 and (layer in moe_layers if moe_layers else (layer + 1) % interleave_moe_layer_step == 0)"
)
IS_DENSE = f"not ({IS_SPARSE})"
ROTATES = "no_rope_layers[layer] if no_rope_layers else 1 if (layer + 1) % no_rope_layer_interval else 0"
NAMES = {role: f"{MODULE}.experts.{{item}}.{name}.weight" for role, name in PROJECTIONS.items()}
GATE_UP = Weight(f"{MODULE}.experts.gate_up_proj", (COUNT, "hidden_size", f"2 * {SIZE}"))
DOWN = Weight(f"{MODULE}.experts.down_proj", (COUNT, SIZE, "hidden_size"))
STACKS = {
    "gate": usual(GATE_UP, NAMES["gate"], when=IS_SPARSE),
    "up": usual(GATE_UP, NAMES["gate"], when=IS_SPARSE),
    "down": usual(DOWN, NAMES["down"], when=IS_SPARSE),
}

LLAMA4 = Family(
    name="llama4",
    model_types=("llama4_text", "llama4"),
    class_names=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(output_bias="attention_bias", biases_in_gguf=""),
        experts(
            MODULE,
            PROJECTIONS,
            count=COUNT,
            size=SIZE,
            when=IS_SPARSE,
            joined=STACKS,
            is_joined=True,
            router="router",
            mlx="{}.experts.{}_proj.weight",
        ),
        gated_mlp(f"{MODULE}.shared_expert", SIZE, "ffn_{}_shexp", when=IS_SPARSE),
        gated_mlp(MODULE, "intermediate_size_mlp", when=IS_DENSE),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        202048,
        5120,
        8192,
        48,
        40,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size_mlp=16384,
        num_local_experts=16,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        moe_layers=(),
        no_rope_layers=(),
        no_rope_layer_interval=4,
        attention_chunk_size=8192,
        use_qk_norm=True,
        attn_temperature_tuning=True,
        floor_scale=8192,
        attn_scale=0.1,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        max_position_embeddings=131072,
    ),
    layer_rules=(
        LayerRule("moe_layers", IS_SPARSE, is_index_list=True),
        LayerRule("no_rope_layers", ROTATES),
        LayerRule("layer_types", f"'chunked_attention' if ({ROTATES}) else 'full_attention'"),
    ),
    joined=joined_in_layer(
        Joined(GATE_UP.name, (NAMES["gate"], NAMES["up"]), is_swapped=True),
        Joined(DOWN.name, (NAMES["down"],), is_swapped=True),
    ),
    gguf=Gguf(
        "llama4",
        rope_types=("default", "linear", "yarn", "llama3"),
        differs={
            "attention_chunk_size != 8192": "attention in chunks has another size in llama.cpp: 8192",
            "floor_scale != 8192 or attn_scale != 0.1": "the scale of queries changes with their position otherwise in "
            "llama.cpp",
        },
        keys={
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        config={"intermediate_size": "expert_feed_forward_length", "intermediate_size_mlp": "feed_forward_length"},
    ),
    decoder=Decoder(
        GroupedAttention(
            qk_norm="head",
            qk_norm_when=f"use_qk_norm and ({ROTATES})",
            norms_after_rope=True,
            chunk="attention_chunk_size if layer_type == 'chunked_attention' and attention_chunk_size else 0",
            temperature=(f"attn_temperature_tuning and not ({ROTATES})", "floor_scale", "attn_scale"),
        ),
        PerLayer(IS_SPARSE, {True: Experts(scoring="sigmoid", scales_inputs=True), False: GatedMlp()}),
        positions=Rope("interleaved", when=ROTATES),
        layer_types=("chunked_attention", "full_attention", "sliding_attention"),
    ),
)
