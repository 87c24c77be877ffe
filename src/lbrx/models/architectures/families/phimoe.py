"""Phi 3.5 MoE: two experts per token, layer norms with biases, positions for long texts."""

from lbrx.models.architectures.families.mistral import ROUTER as _MIXTRAL_ROUTER
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
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
    norm,
)
from lbrx.models.architectures.records import Decoder, Experts, Gguf, Joined, Norm, Weight

FUSED = fused_experts("num_local_experts", "intermediate_size")
ROUTER = Weight("mlp.router.weight", _MIXTRAL_ROUTER.shape, optional=True)

PHIMOE = Family(
    name="phimoe",
    model_types=("phimoe",),
    class_names=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True),
        attention(output_bias="attention_bias"),
        experts(
            "block_sparse_moe",
            W123,
            count="num_local_experts",
            size="intermediate_size",
            joined=FUSED,
            other_router=ROUTER,
        ),
    ),
    post=(
        *final_norm_and_head(bias=True),
        Weight(
            "{head}lm_head.bias", ("vocab_size",), needed_when="lm_head_bias", is_vocabulary=True, gguf="output.bias"
        ),
    ),
    defaults=decoder_defaults(
        32064,
        4096,
        6400,
        32,
        32,
        num_key_value_heads=8,
        num_local_experts=16,
        num_experts_per_tok=2,
        router_jitter_noise=0.01,
        lm_head_bias=False,
        sliding_window=None,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        max_position_embeddings=131072,
        original_max_position_embeddings="max_position_embeddings",
    ),
    joined=joined_in_layer(
        *joined_experts(FUSED, "block_sparse_moe", W123), Joined(ROUTER.name, ("block_sparse_moe.gate.weight",))
    ),
    gguf=Gguf(
        "phimoe",
        rope_types=("default", "longrope"),
        needs_window=True,
        true_if_stored={"attention_bias": "attn_q.bias"},
        fixed={"lm_head_bias": True},
        differs={"True": "llama.cpp normalizes without means and weights the experts of phimoe otherwise"},
        keys={"attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.layer_norm_epsilon": "None"},
    ),
    decoder=Decoder(mlp=Experts(scoring="sparsemixer"), norm=Norm(function="layer")),
)
