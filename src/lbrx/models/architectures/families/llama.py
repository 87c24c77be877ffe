"""Llama."""

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
from lbrx.models.architectures.records import Decoder, Gguf

LLAMA = Family(
    name="llama",
    model_types=("llama",),
    class_names=("LlamaForCausalLM", "LLaMAForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(output_bias="attention_bias", is_paired=True), gated_mlp(bias="mlp_bias")),
    post=final_norm_and_head(),
    defaults=decoder_defaults(32000, 4096, 11008, 32, 32, mlp_bias=False, max_position_embeddings=2048),
    gguf=Gguf(
        "llama",
        rope_types=("default", "linear", "yarn", "llama3"),
        true_if_stored={"attention_bias": "attn_q.bias", "mlp_bias": "ffn_up.bias"},
    ),
    decoder=Decoder(),
)
