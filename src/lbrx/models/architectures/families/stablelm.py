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
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Norm, Weight

HEAD_NORMS = tuple(
    Weight(
        f"self_attn.{each}_layernorm.norms.{{item}}.weight",
        ("head_dim",),
        items=count,
        needed_when="qk_layernorm",
        gguf=f"attn_{each}_norm.weight",
    )
    for each, count in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
)

STABLELM = Family(
    name="stablelm",
    model_types=("stablelm", "stablelm_epoch"),
    class_names=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True, when="not use_parallel_residual"),
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
        max_position_embeddings=4096,
        layer_norm_eps=1e-5,
        partial_rotary_factor="rope_pct",
        rope_pct=0.25,
        use_qkv_bias=False,
        qk_layernorm=False,
        use_parallel_residual=False,
    ),
    gguf=Gguf(
        "stablelm",
        keys={"use_parallel_residual": "use_parallel_residual"},
        true_if_stored={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="each_head", qk_norm_function="layer", qk_norm_when="qk_layernorm"),
        norm=Norm(function="layer", epsilon="layer_norm_eps"),
        is_parallel="use_parallel_residual",
        shares_norm="True",
    ),
)
