"""MiniCPM 1 and 2: Llama with factors for embedding, residual sums and logits."""

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

RESIDUAL = "scale_depth / num_hidden_layers ** 0.5"

MINICPM = Family(
    name="minicpm",
    model_types=("minicpm",),
    class_names=("MiniCPMForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(is_paired=True, biases_in_gguf=""), gated_mlp()),
    post=final_norm_and_head(),
    tied_by_default=True,
    defaults=decoder_defaults(
        32000,
        4096,
        11008,
        32,
        32,
        max_position_embeddings=2048,
        scale_emb=1.0,
        scale_depth="num_hidden_layers ** 0.5",
        dim_model_base="hidden_size",
    ),
    needed_in_mlx=("rope_theta",),
    gguf=Gguf(
        "minicpm",
        keys={
            "embedding_scale": "scale_emb",
            "residual_scale": RESIDUAL,
            "logit_scale": "hidden_size / dim_model_base",
        },
        config={
            "scale_emb": "embedding_scale",
            "scale_depth": "residual_scale * block_count ** 0.5",
            "dim_model_base": "embedding_length / logit_scale",
        },
    ),
    decoder=Decoder(embedding_scale="scale_emb", residual_scale=RESIDUAL, logit_scale="dim_model_base / hidden_size"),
)
