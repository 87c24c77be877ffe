"""Nemotron and Jais 2: layer norms and a plain MLP with squared ReLU."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import Decoder, Gguf, Norm, PlainMlp

MLP = plain_mlp("mlp.up_proj", "mlp.down_proj", bias="mlp_bias")

NEMOTRON = Family(
    name="nemotron",
    model_types=("nemotron",),
    class_names=("NemotronForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True, adds_one=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True, adds_one=True),
        attention(output_bias="attention_bias"),
        MLP,
    ),
    post=final_norm_and_head(bias=True, adds_one=True),
    defaults=decoder_defaults(
        256000,
        6144,
        24576,
        32,
        48,
        max_position_embeddings=4096,
        norm_eps=1e-5,
        partial_rotary_factor=0.5,
        mlp_bias=False,
        hidden_act="'relu2'",
    ),
    gguf=Gguf(
        "nemotron",
        rope_types=("default", "linear"),
        keys={"rope.scaling.type": "'none'", "attention.layer_norm_rms_epsilon": "norm_eps"},
    ),
    decoder=Decoder(mlp=PlainMlp("relu2"), norm=Norm(function="layer", adds_one=True, epsilon="norm_eps")),
)

JAIS2 = Family(
    name="jais2",
    model_types=("jais2",),
    class_names=("Jais2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True),
        attention(output_bias="attention_bias"),
        MLP,
    ),
    post=final_norm_and_head(bias=True),
    defaults=decoder_defaults(
        150272,
        3328,
        26624,
        32,
        26,
        max_position_embeddings=8192,
        layer_norm_eps=1e-5,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="'relu2'",
    ),
    gguf=Gguf("jais2"),
    decoder=Decoder(mlp=PlainMlp("relu2"), norm=Norm(function="layer", epsilon="layer_norm_eps")),
)
