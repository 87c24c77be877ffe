"""Cohere's Command R and Command R7B: attention and MLP next to each other, behind one layer norm."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Norm, Rope, Weight

HEAD_NORMS = tuple(
    Weight(
        f"self_attn.{each}_norm.weight",
        (heads, "head_dim"),
        needed_when="use_qk_norm",
        gguf=f"attn_{each}_norm.weight",
    )
    for each, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
)
NORM = Norm(function="layer", epsilon="layer_norm_eps")
KEYS = {"logit_scale": "logit_scale", "rope.scaling.type": "'none'"}

COHERE = Family(
    name="cohere",
    model_types=("cohere",),
    class_names=("CohereForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        attention(output_bias="attention_bias", biases_in_gguf=""),
        HEAD_NORMS,
        gated_mlp(),
    ),
    post=final_norm_and_head(),
    tied_by_default=True,
    defaults=decoder_defaults(
        256000,
        8192,
        22528,
        40,
        64,
        max_position_embeddings=8192,
        model_max_length=None,
        layer_norm_eps=1e-5,
        rope_theta=500_000.0,
        logit_scale=0.0625,
        use_qk_norm=False,
    ),
    gguf=Gguf(
        "command-r",
        rope_types=("default",),
        never_has_output=True,
        keys=KEYS,
        true_if_stored={"use_qk_norm": "attn_q_norm.weight"},
        context_length="model_max_length if model_max_length else max_position_embeddings",
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="each_head", qk_norm_function="layer", qk_norm_when="use_qk_norm"),
        norm=NORM,
        positions=Rope("interleaved"),
        is_parallel="True",
        shares_norm="True",
        logit_scale="logit_scale",
    ),
)

COHERE2 = Family(
    name="cohere2",
    model_types=("cohere2",),
    class_names=("Cohere2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        attention(output_bias="attention_bias", biases_in_gguf=""),
        gated_mlp(),
    ),
    post=final_norm_and_head(),
    tied_by_default=True,
    defaults=decoder_defaults(
        256000,
        8192,
        22528,
        40,
        64,
        max_position_embeddings=8192,
        layer_norm_eps=1e-5,
        sliding_window=4096,
        sliding_window_pattern=4,
        logit_scale=0.0625,
    ),
    layer_rules=(window_rule("(layer + 1) % sliding_window_pattern != 0"),),
    gguf=Gguf("cohere2", rope_types=("default",), never_has_output=True, full_attention_period=4, keys=KEYS),
    decoder=Decoder(
        norm=NORM,
        positions=Rope("interleaved", when="layer_type == 'sliding_attention'"),
        is_parallel="True",
        shares_norm="True",
        logit_scale="logit_scale",
    ),
)
