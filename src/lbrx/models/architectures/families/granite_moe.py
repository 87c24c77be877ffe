"""Granite 3 with experts, also with a shared expert: joined matrices, scaled embeddings, residuals and logits."""

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
    in_layer,
    joined_experts,
    joined_in_layer,
    linear,
    usual,
)
from lbrx.models.architectures.records import Decoder, Experts, Gguf, GroupedAttention, Joined, Weight

MODULE, COUNT, SIZE = "block_sparse_moe", "num_local_experts", "intermediate_size"
NAMES = {role: f"{MODULE}.experts.{{item}}.{name}.weight" for role, name in PROJECTIONS.items()}
USUAL = fused_experts(COUNT, SIZE, MODULE, ("input_linear.weight", "output_linear.weight"))
USUAL = {
    "gate": usual(USUAL["gate"], NAMES["gate"], f"{MODULE}.experts.gate_up_proj"),
    "up": usual(USUAL["gate"], NAMES["gate"], f"{MODULE}.experts.gate_up_proj"),
    "down": usual(USUAL["down"], NAMES["down"], f"{MODULE}.experts.down_proj"),
}
OTHER = fused_experts(COUNT, SIZE, f"{MODULE}.experts")
ROUTER = Weight(f"{MODULE}.router.weight", (COUNT, "hidden_size"), optional=True)
EXPERTS = (
    *experts(
        MODULE,
        PROJECTIONS,
        count=COUNT,
        size=SIZE,
        joined=USUAL,
        is_joined=True,
        router="router.layer",
        other_router=ROUTER,
    ),
    OTHER["gate"],
    OTHER["down"],
)
JOINED = (
    *joined_experts(USUAL, MODULE),
    *joined_experts(OTHER, MODULE),
    Joined(ROUTER.name, (f"{MODULE}.router.layer.weight",)),
)
SHARED = "shared_intermediate_size"
SHARED_GATE, SHARED_UP = (f"shared_mlp.{name}.weight" for name in ("gate_proj", "up_proj"))
SHARED_INPUT = Weight("shared_mlp.input_linear.weight", (f"2 * {SHARED}", "hidden_size"))
SHARED_MLP = (
    usual(SHARED_INPUT, SHARED_GATE, when=f"{SHARED} > 0"),
    *(
        Weight(
            f"shared_mlp.{role}_proj.weight",
            (SHARED, "hidden_size"),
            needed_when=f"{SHARED} > 0",
            joined_in=SHARED_INPUT.name,
            gguf=f"ffn_{role}_shexp.weight",
        )
        for role in ("gate", "up")
    ),
    *linear("shared_mlp.output_linear", "hidden_size", SHARED, "ffn_down_shexp", when=f"{SHARED} > 0"),
)
DEFAULTS = decoder_defaults(
    32000,
    4096,
    11008,
    32,
    32,
    num_local_experts=8,
    num_experts_per_tok=2,
    max_position_embeddings=2048,
    embedding_multiplier=1.0,
    logits_scaling=1.0,
    residual_multiplier=1.0,
    attention_multiplier=1.0,
    shared_intermediate_size=0,
)
KEYS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
ATTENTION = attention(output_bias="attention_bias", is_paired=True, biases_in_gguf="")

DECODER = Decoder(
    GroupedAttention(scale="attention_multiplier"),
    Experts(),
    embedding_scale="embedding_multiplier",
    residual_scale="residual_multiplier",
    logit_scale="1 / logits_scaling",
)

GRANITE_MOE = Family(
    name="granitemoe",
    model_types=("granitemoe",),
    class_names=("GraniteMoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, EXPERTS),
    post=final_norm_and_head(),
    defaults=DEFAULTS,
    joined=joined_in_layer(*JOINED),
    gguf=Gguf("granitemoe", when="expert_shared_feed_forward_length == 0", keys=KEYS),
    decoder=DECODER,
)

GRANITE_MOE_SHARED = Family(
    name="granitemoeshared",
    model_types=("granitemoeshared",),
    class_names=("GraniteMoeSharedForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, EXPERTS, SHARED_MLP),
    post=final_norm_and_head(),
    defaults=DEFAULTS,
    joined=joined_in_layer(*JOINED, Joined(SHARED_INPUT.name, (SHARED_GATE, SHARED_UP), axis=0)),
    gguf=Gguf("granitemoe", keys={**KEYS, "expert_shared_feed_forward_length": "shared_intermediate_size"}),
    decoder=DECODER,
)
