"""BLOOM: scores that decrease with distance instead of positions, and a norm of the embedding."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import Alibi, Decoder, Gguf, GroupedAttention, Naming, Norm, PlainMlp

BLOCK = "{base}h.{layer}."
EMBEDDING = embedding("{base}word_embeddings.weight")

BLOOM = Family(
    name="bloom",
    model_types=("bloom",),
    class_names=("BloomForCausalLM", "BloomModel"),
    pre=(EMBEDDING, *norm("{base}word_embeddings_layernorm", "token_embd_norm", bias=True)),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True),
        linear(
            "self_attention.query_key_value",
            "3 * hidden_size",
            "hidden_size",
            "attn_qkv",
            bias=ALWAYS,
            grouped_by=("num_attention_heads", "num_attention_heads"),
        ),
        linear("self_attention.dense", "hidden_size", "hidden_size", "attn_output", bias=ALWAYS),
        plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=ALWAYS),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", "output_norm", bias=True), language_head("{head}lm_head.weight", EMBEDDING)),
    layer_prefix=BLOCK,
    layers_key="n_layer",
    namings=(Naming("transformer."), Naming("")),
    keys={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    tied_by_default=True,
    omitted_sizes=("hidden_size", "intermediate_size"),
    defaults=decoder_defaults(
        250880,
        0,
        0,
        2,
        8,
        hidden_size="n_embed",
        n_embed=64,
        intermediate_size="4 * hidden_size",
        max_position_embeddings="seq_length if seq_length else 2048",
        seq_length=None,
        layer_norm_eps=1e-5,
        apply_residual_connection_post_layernorm=False,
        rope_theta=None,
    ),
    gguf=Gguf(
        "bloom",
        context_length="seq_length if seq_length else hidden_size",
        hard_coded={"apply_residual_connection_post_layernorm": "False"},
    ),
    decoder=Decoder(
        GroupedAttention(joined="groups", key_heads="num_attention_heads"),
        PlainMlp("gelu_tanh"),
        Norm(function="layer", epsilon="layer_norm_eps"),
        Alibi(),
        embedding_norm=True,
        requires=("not apply_residual_connection_post_layernorm",),
    ),
)
