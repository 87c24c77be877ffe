"""gpt-oss: experts in joined, transposed tensors with biases, attention sinks, a window in every other layer."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    PROJECTIONS,
    attention,
    decoder_defaults,
    embedding,
    experts,
    final_norm_and_head,
    in_layer,
    joined_in_layer,
    norm,
    usual,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Experts, Gguf, Joined, Norm, Weight

COUNT, SIZE = "num_local_experts", "intermediate_size"
NAMES = {role: f"mlp.experts.{{item}}.{name}" for role, name in PROJECTIONS.items()}
GATE_UP = Weight("mlp.experts.gate_up_proj", (COUNT, "hidden_size", f"2 * {SIZE}"))
GATE_UP_BIAS = Weight("mlp.experts.gate_up_proj_bias", (COUNT, f"2 * {SIZE}"))
DOWN = Weight("mlp.experts.down_proj", (COUNT, SIZE, "hidden_size"))
DOWN_BIAS = Weight("mlp.experts.down_proj_bias", (COUNT, "hidden_size"))
CONTENTS = {
    GATE_UP: (f"{NAMES['gate']}.weight", f"{NAMES['up']}.weight"),
    GATE_UP_BIAS: (f"{NAMES['gate']}.bias", f"{NAMES['up']}.bias"),
    DOWN: (f"{NAMES['down']}.weight",),
    DOWN_BIAS: (f"{NAMES['down']}.bias",),
}
STACKS = {role: usual(each, *CONTENTS[each]) for role, each in (("gate", GATE_UP), ("up", GATE_UP), ("down", DOWN))}
MLX = "{}.experts.{}_proj.weight"
EXPERTS = experts(
    "mlp",
    PROJECTIONS,
    count=COUNT,
    size=SIZE,
    joined=STACKS,
    is_joined=True,
    router="router",
    router_bias=ALWAYS,
    mlx=MLX,
)
BIASES = tuple(
    Weight(
        f"{NAMES[role]}.bias",
        (size,),
        items=COUNT,
        joined_in=stack.name,
        gguf=f"ffn_{role}_exps.bias",
        mlx=f"mlp.experts.{role}_proj.bias",
    )
    for role, size, stack in (
        ("gate", SIZE, GATE_UP_BIAS),
        ("up", SIZE, GATE_UP_BIAS),
        ("down", "hidden_size", DOWN_BIAS),
    )
)
STACKED_BIASES = tuple(
    Weight(f"mlp.experts.{role}_proj.bias", (COUNT, size), optional=True)
    for role, size in (("gate", SIZE), ("up", SIZE), ("down", "hidden_size"))
)

GPT_OSS = Family(
    name="gpt_oss",
    model_types=("gpt_oss",),
    class_names=("GptOssForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("post_attention_layernorm", "post_attention_norm"),
        attention(output_bias="attention_bias"),
        (Weight("self_attn.sinks", ("num_attention_heads",), gguf="attn_sinks.weight"),),
        EXPERTS,
        BIASES,
        (usual(GATE_UP_BIAS, *CONTENTS[GATE_UP_BIAS]), usual(DOWN_BIAS, *CONTENTS[DOWN_BIAS])),
        STACKED_BIASES,
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        201088,
        2880,
        2880,
        36,
        64,
        num_key_value_heads=8,
        head_dim=64,
        num_local_experts=128,
        num_experts_per_tok=4,
        attention_bias=True,
        sliding_window=128,
        swiglu_alpha=1.702,
        swiglu_limit=7.0,
        rms_norm_eps=1e-5,
        rope_theta=150_000.0,
        max_position_embeddings=131072,
    ),
    layer_rules=(window_rule("(layer + 1) % 2"),),
    joined=joined_in_layer(
        Joined(GATE_UP.name, CONTENTS[GATE_UP], is_interleaved=True, is_swapped=True),
        Joined(GATE_UP_BIAS.name, CONTENTS[GATE_UP_BIAS], is_interleaved=True),
        Joined(DOWN.name, CONTENTS[DOWN], is_swapped=True),
        Joined(DOWN_BIAS.name, CONTENTS[DOWN_BIAS]),
    ),
    gguf=Gguf(
        "gpt-oss",
        full_attention_period=2,
        keys={"expert_feed_forward_length": "intermediate_size"},
        config={"attention_bias": "True"},
    ),
    decoder=Decoder(
        mlp=Experts(clamp=("swiglu_limit", "swiglu_alpha")),
        norm=Norm(names=("attn_norm", "", "post_attention_norm", "")),
    ),
)
