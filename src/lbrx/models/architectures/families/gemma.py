"""Gemma 1 to 3."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
    qk_norms,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, GatedMlp, Gguf, GroupedAttention, Norm

FOUR_NORMS = (
    *norm("input_layernorm", "attn_norm", adds_one=True),
    *norm("post_attention_layernorm", "post_attention_norm", adds_one=True),
    *norm("pre_feedforward_layernorm", "ffn_norm", adds_one=True),
    *norm("post_feedforward_layernorm", "post_ffw_norm", adds_one=True),
)
ATTENTION = attention(output_bias="attention_bias", biases_in_gguf="qkv")
MLP, NORM, SCALE = GatedMlp("gelu_tanh"), Norm("both", adds_one=True), "hidden_size ** 0.5"
GEMMA2_DEFAULTS = decoder_defaults(
    256000,
    2304,
    9216,
    26,
    8,
    num_key_value_heads=4,
    head_dim=256,
    max_position_embeddings=8192,
    sliding_window=4096,
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
    query_pre_attn_scalar=256,
    use_bidirectional_attention=False,
)

GEMMA = Family(
    name="gemma",
    model_types=("gemma",),
    class_names=("GemmaForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", adds_one=True),
        norm("post_attention_layernorm", "ffn_norm", adds_one=True),
        ATTENTION,
        gated_mlp(),
    ),
    post=final_norm_and_head(adds_one=True),
    tied_by_default=True,
    defaults=decoder_defaults(
        256000, 3072, 24576, 28, 16, num_key_value_heads=16, head_dim=256, max_position_embeddings=8192
    ),
    gguf=Gguf("gemma", never_has_output=True),
    decoder=Decoder(mlp=replace(MLP, alternatives=("gelu",)), norm=Norm(adds_one=True), embedding_scale=SCALE),
)

VAULTGEMMA = Family(
    name="vaultgemma",
    model_types=("vaultgemma",),
    class_names=("VaultGemmaForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", adds_one=True),
        norm("pre_feedforward_layernorm", "ffn_norm", adds_one=True),
        ATTENTION,
        gated_mlp(),
    ),
    post=final_norm_and_head(adds_one=True),
    tied_by_default=True,
    defaults=GEMMA2_DEFAULTS,
    layer_rules=(window_rule("(layer + 1) % 2"),),
    decoder=Decoder(mlp=MLP, norm=Norm(adds_one=True), embedding_scale=SCALE),
)

GEMMA2 = Family(
    name="gemma2",
    model_types=("gemma2",),
    class_names=("Gemma2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(FOUR_NORMS, ATTENTION, gated_mlp()),
    post=final_norm_and_head(adds_one=True),
    tied_by_default=True,
    defaults=GEMMA2_DEFAULTS,
    omitted_sizes=("num_attention_heads", "vocab_size"),
    layer_rules=(window_rule("(layer + 1) % 2"),),
    gguf=Gguf(
        "gemma2",
        full_attention_period=2,
        never_has_output=True,
        layers_scaled_by_width=46,
        assumed={"attn_logit_softcapping": 50, "final_logit_softcapping": 30},
    ),
    decoder=Decoder(mlp=MLP, norm=NORM, embedding_scale=SCALE),
)

GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    class_names=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    pre=(embedding(),),
    layer=in_layer(FOUR_NORMS, ATTENTION, qk_norms("head_dim", "head_dim", adds_one=True), gated_mlp()),
    post=final_norm_and_head(adds_one=True),
    tied_by_default=True,
    defaults=decoder_defaults(
        262208,
        2304,
        9216,
        26,
        8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131072,
        sliding_window=4096,
        sliding_window_pattern="_sliding_window_pattern",
        _sliding_window_pattern=6,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        query_pre_attn_scalar=256,
        use_bidirectional_attention=False,
    ),
    omitted_sizes=("num_attention_heads", "vocab_size"),
    layer_rules=(window_rule("(layer + 1) % sliding_window_pattern"),),
    gguf=Gguf("gemma3", full_attention_period=6, layers_scaled_by_width=62),
    decoder=Decoder(GroupedAttention(qk_norm="head"), MLP, NORM, embedding_scale=SCALE),
)
