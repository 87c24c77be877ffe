"""Falcon."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    buffers,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import (
    Alibi,
    Decoder,
    Gguf,
    GroupedAttention,
    Naming,
    Norm,
    PerLayer,
    PlainMlp,
    Rope,
)

BLOCK = "{base}h.{layer}."
EMBEDDING = embedding("{base}word_embeddings.weight")
# Grouped keys, one key and value for all heads, or one for each head.
KEY_HEADS = "num_kv_heads if new_decoder_architecture else 1 if multi_query else num_attention_heads"
TWO_NORMS = "parallel_attn and num_ln_in_parallel_attn == 2"
NORM = Norm(function="layer", epsilon="layer_norm_epsilon")

FALCON = Family(
    name="falcon",
    model_types=("falcon", "RefinedWebModel", "RefinedWeb"),
    class_names=("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("ln_attn", "attn_norm_2", bias=True, when=TWO_NORMS),
        norm("ln_mlp", "attn_norm", bias=True, when=TWO_NORMS),
        norm("input_layernorm", "attn_norm", bias=True, when=f"not ({TWO_NORMS})"),
        tuple(
            replace(weight, in_gguf=False)
            for weight in norm("post_attention_layernorm", "ffn_norm", bias=True, when="not parallel_attn")
        ),
        linear(
            "self_attention.query_key_value",
            "(num_attention_heads + 2 * num_key_value_heads) * head_dim",
            "hidden_size",
            "attn_qkv",
            bias="bias",
            grouped_by=("num_attention_heads", "num_key_value_heads"),
        ),
        linear("self_attention.dense", "hidden_size", "hidden_size", "attn_output", bias="bias"),
        buffers("self_attention.rotary_emb.inv_freq", "self_attention.maybe_rotary.inv_freq"),
        plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias="bias"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", "output_norm", bias=True), language_head("{head}lm_head.weight", EMBEDDING)),
    layer_prefix=BLOCK,
    namings=(Naming("transformer."), Naming("")),
    tied_by_default=True,
    omitted_sizes=("intermediate_size", "num_hidden_layers", "num_attention_heads"),
    defaults=decoder_defaults(
        65024,
        4544,
        0,
        32,
        71,
        model_type="'falcon'",
        num_hidden_layers="n_layer",
        n_layer=32,
        num_attention_heads="n_head",
        n_head=71,
        num_kv_heads="n_head_kv",
        n_head_kv="num_attention_heads",
        num_key_value_heads=KEY_HEADS,
        intermediate_size="ffn_hidden_size",
        ffn_hidden_size="4 * hidden_size",
        hidden_act="activation",
        activation="'gelu'",
        layer_norm_epsilon=1e-5,
        max_position_embeddings=2048,
        new_decoder_architecture="model_type == 'RefinedWeb'",
        num_ln_in_parallel_attn="2 if new_decoder_architecture else 1",
        multi_query=True,
        parallel_attn=True,
        alibi=False,
        bias=False,
    ),
    gguf=Gguf(
        "falcon",
        keys={"tensor_data_layout": "'jploski'"},
        hard_coded={"alibi": "False", "bias": "False"},
        context_length="2048",
        derived={
            "new_decoder_architecture": "True",
            "num_kv_heads": "num_key_value_heads",
            "num_ln_in_parallel_attn": "2 if 'attn_norm_2.weight' in stored else 1",
        },
    ),
    decoder=Decoder(
        GroupedAttention(joined="groups"),
        PlainMlp("gelu"),
        PerLayer(
            TWO_NORMS,
            {True: replace(NORM, names=("attn_norm_2", "", "attn_norm", "")), False: NORM},
        ),
        PerLayer("alibi", {True: Alibi(is_scaled=True), False: Rope()}),
        is_parallel="parallel_attn",
        shares_norm="num_ln_in_parallel_attn != 2",
    ),
)
