"""OLMo: norms without weights, and queries, keys and values within limits. OLMo 3: OLMo 2 with windows."""

from lbrx.models.architectures.families.olmo2 import DECODER, LAYER
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    language_head,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Norm

OLMO = Family(
    name="olmo",
    model_types=("olmo",),
    class_names=("OlmoForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(attention(output_bias="attention_bias", is_paired=True, biases_in_gguf=""), gated_mlp()),
    post=(language_head("{head}lm_head.weight", embedding()),),
    defaults=decoder_defaults(50304, 4096, 11008, 32, 32, max_position_embeddings=2048, clip_qkv=None),
    gguf=Gguf("olmo", keys={"attention.clamp_kqv": "clip_qkv"}),
    decoder=Decoder(GroupedAttention(clip="clip_qkv"), norm=Norm(function="layer", epsilon="0.00001")),
)

OLMO3 = Family(
    name="olmo3",
    model_types=("olmo3",),
    class_names=("Olmo3ForCausalLM",),
    pre=(embedding(),),
    layer=LAYER,
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        50304,
        4096,
        11008,
        32,
        32,
        rms_norm_eps=1e-5,
        max_position_embeddings=2048,
        sliding_window=4096,
        rope_theta=500_000.0,
        rope_local_base_freq="rope_theta",
    ),
    layer_rules=(window_rule("(layer + 1) % 4 != 0"),),
    gguf=Gguf("olmo2", has_output_when_tied=True, lists_windows=True, when="attention_sliding_window > 0"),
    decoder=DECODER,
)
