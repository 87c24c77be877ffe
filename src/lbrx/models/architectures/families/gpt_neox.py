"""GPT-NeoX, such as Pythia."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    buffers,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Naming, Norm, PlainMlp

EMBEDDING = embedding("{base}embed_in.weight")

GPT_NEOX = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    class_names=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True),
        linear(
            "attention.query_key_value",
            "3 * hidden_size",
            "hidden_size",
            "attn_qkv",
            bias="attention_bias",
            grouped_by=("num_attention_heads", "num_attention_heads"),
        ),
        linear("attention.dense", "hidden_size", "hidden_size", "attn_output", bias="attention_bias"),
        buffers("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=ALWAYS),
    ),
    post=(
        *norm("{base}final_layer_norm", "output_norm", bias=True),
        language_head("{head}embed_out.weight", EMBEDDING),
    ),
    namings=(Naming("gpt_neox."), Naming("")),
    defaults=decoder_defaults(
        50432,
        6144,
        24576,
        44,
        64,
        max_position_embeddings=2048,
        layer_norm_eps=1e-5,
        rope_theta="rotary_emb_base",
        rotary_emb_base="rope_parameters['rope_theta'] if rope_parameters else 10000",
        partial_rotary_factor="rotary_pct",
        rotary_pct="rope_parameters['partial_rotary_factor'] if rope_parameters else 0.25",
        rope_parameters=None,
        attention_bias=True,
        use_parallel_residual=True,
    ),
    needed_in_mlx=("rotary_emb_base", "rotary_pct"),
    gguf=Gguf(
        "gptneox",
        keys={"use_parallel_residual": "use_parallel_residual"},
        true_if_stored={"attention_bias": "attn_qkv.bias"},
    ),
    decoder=Decoder(
        GroupedAttention(joined="groups", key_heads="num_attention_heads"),
        PlainMlp("gelu", ("gelu_tanh",)),
        Norm(function="layer", epsilon="layer_norm_eps"),
        is_parallel="use_parallel_residual",
    ),
)
