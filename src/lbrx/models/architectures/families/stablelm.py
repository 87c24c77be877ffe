"""StableLM."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
)
from lbrx.models.architectures.records import Weight

HEAD_NORMS = tuple(
    Weight(f"self_attn.{norms}.norms.{{item}}.weight", ("head_dim",), items=count, needed_when="qk_layernorm")
    for norms, count in (("q_layernorm", "num_attention_heads"), ("k_layernorm", "num_key_value_heads"))
)

STABLELM = Family(
    name="stablelm",
    model_types=("stablelm", "stablelm_epoch"),
    class_names=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", bias=True),
        norm("post_attention_layernorm", bias=True, when="not use_parallel_residual"),
        attention(bias="use_qkv_bias"),
        HEAD_NORMS,
        gated_mlp(),
    ),
    post=final_norm_and_head(bias=True),
    defaults=decoder_defaults(
        50304,
        2560,
        6912,
        32,
        32,
        num_key_value_heads=32,
        use_qkv_bias=False,
        qk_layernorm=False,
        use_parallel_residual=False,
    ),
)
