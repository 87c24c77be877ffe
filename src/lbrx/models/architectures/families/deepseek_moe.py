"""The first DeepSeek mixtures: attention as in Llama, and shared experts without a gate.

The family is not in the registry: transformers has no code for it. `lbrx moe` writes it.
"""

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
)

DEEPSEEK_MOE = Family(
    name="deepseek",
    model_types=("deepseek",),
    class_names=("DeepseekForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(),
        experts("mlp", PROJECTIONS, count="n_routed_experts", size="moe_intermediate_size"),
        gated_mlp(
            "mlp.shared_experts",
            "moe_intermediate_size * (n_shared_experts if n_shared_experts else 1)",
            "ffn_{}_shexp",
            when="n_shared_experts",
        ),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        102400,
        4096,
        11008,
        30,
        32,
        num_key_value_heads=32,
        n_routed_experts=64,
        n_shared_experts=None,
        num_experts_per_tok=2,
        moe_intermediate_size=1407,
        attention_bias=False,
        max_position_embeddings=2048,
    ),
)
