"""Mistral, Ministral 3, whose queries grow with their position, and Mixtral, which has experts."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    NEVER,
    TWO_NORMS,
    W123,
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
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Experts, Gguf, GroupedAttention, Joined, Weight

ATTENTION = attention(bias=NEVER, output_bias=NEVER, is_paired=True)
GGUF = Gguf("llama", rope_types=("default", "linear", "yarn", "llama3"))

FUSED = fused_experts("num_local_experts", "intermediate_size")
ROUTER = Weight("mlp.gate.weight", ("num_local_experts", "hidden_size"), optional=True)
JOINED = joined_in_layer(
    *joined_experts(FUSED, "block_sparse_moe", W123), Joined(ROUTER.name, ("block_sparse_moe.gate.weight",))
)

MISTRAL = Family(
    name="mistral",
    model_types=("mistral",),
    class_names=("MistralForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, gated_mlp()),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        32000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=131072, sliding_window=None
    ),
    layer_rules=(window_rule("sliding_window"),),
    gguf=GGUF,
    decoder=Decoder(),
)

TRAINED_LENGTH = (
    "rope_parameters['original_max_position_embeddings'] if rope_parameters else "
    "rope_scaling['original_max_position_embeddings'] if rope_scaling else max_position_embeddings"
)

MINISTRAL3 = Family(
    name="ministral3",
    model_types=("ministral3",),
    class_names=("Ministral3ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, gated_mlp()),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        131072,
        4096,
        14336,
        34,
        32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262144,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        sliding_window=None,
        rope_parameters=None,
        rope_scaling=None,
        llama_4_scaling_beta="rope_parameters['llama_4_scaling_beta'] if rope_parameters else None",
    ),
    layer_rules=(window_rule("sliding_window"),),
    gguf=Gguf(
        "mistral3",
        when="attention_temperature_scale",
        rope_types=("default", "yarn"),
        yarn_log_multiplier=1.0,
        keys={"attention.temperature_scale": "llama_4_scaling_beta"},
    ),
    decoder=Decoder(
        GroupedAttention(temperature=("llama_4_scaling_beta", TRAINED_LENGTH, "llama_4_scaling_beta"), first_position=0)
    ),
)

MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    class_names=("MixtralForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        ATTENTION,
        experts(
            "block_sparse_moe",
            W123,
            count="num_local_experts",
            size="intermediate_size",
            joined=FUSED,
            other_router=ROUTER,
        ),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        32000,
        4096,
        14336,
        32,
        32,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=131072,
        sliding_window=None,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
    ),
    layer_rules=(window_rule("sliding_window"),),
    joined=JOINED,
    gguf=GGUF,
    decoder=Decoder(mlp=Experts()),
)
