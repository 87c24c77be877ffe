"""Arcee Foundation Models: like Llama with a plain MLP and squared ReLU."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    plain_mlp,
)
from lbrx.models.architectures.records import Decoder, Gguf, PlainMlp

ARCEE = Family(
    name="arcee",
    model_types=("arcee",),
    class_names=("ArceeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(output_bias="attention_bias", is_paired=True),
        plain_mlp("mlp.up_proj", "mlp.down_proj", bias="mlp_bias"),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        32000,
        2560,
        18432,
        32,
        32,
        mlp_bias=False,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        hidden_act="'relu2'",
    ),
    gguf=Gguf("arcee", rope_types=("default", "linear", "yarn", "llama3")),
    decoder=Decoder(mlp=PlainMlp("relu2")),
)
