"""Helium."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    NEVER,
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
)
from lbrx.models.architectures.records import Decoder, Rope

HELIUM = Family(
    name="helium",
    model_types=("helium",),
    class_names=("HeliumForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(output_bias=NEVER), gated_mlp(bias="mlp_bias")),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        48000,
        2560,
        7040,
        24,
        20,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-8,
        rope_theta=100_000.0,
        mlp_bias=False,
    ),
    decoder=Decoder(positions=Rope("interleaved")),
)
