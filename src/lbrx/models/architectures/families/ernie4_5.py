"""ERNIE 4.5 without experts."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
)
from lbrx.models.architectures.records import Decoder, Gguf, Rope

ERNIE4_5 = Family(
    name="ernie4_5",
    model_types=("ernie4_5",),
    class_names=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(bias="use_bias", output_bias="use_bias"), gated_mlp(bias="use_bias")),
    post=final_norm_and_head(),
    tied_by_default=True,
    defaults=decoder_defaults(
        103424,
        1024,
        3072,
        18,
        16,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        use_bias=False,
    ),
    gguf=Gguf("ernie4_5", true_if_stored={"use_bias": "attn_q.bias"}, hard_coded={"use_bias": "False"}),
    decoder=Decoder(positions=Rope("interleaved")),
)
