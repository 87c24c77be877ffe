"""The known architectures that are older than Llama's names: GPT-2, GPT-NeoX and Falcon."""

from __future__ import annotations

from lbrx.models.architectures.architecture import Architecture, Naming, Weight
from lbrx.models.architectures.builders import (
    ALWAYS,
    HEAD_DIM,
    buffers,
    conv1d,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
)

TRANSFORMER_NAMINGS = (Naming("transformer."), Naming(""))
BLOCK = "{base}h.{layer}."

GPT2_EMBEDDING = embedding("{base}wte.weight", "n_embd")

GPT2 = Architecture(
    name="gpt2",
    model_types=("gpt2",),
    class_names=("GPT2LMHeadModel", "GPT2Model", "GPT2DoubleHeadsModel"),
    pre=(GPT2_EMBEDDING, Weight("{base}wpe.weight", ("n_positions", "n_embd"))),
    layer=in_layer(
        norm("ln_1", "n_embd", bias=True),
        conv1d("attn.c_attn", "n_embd", "3 * n_embd"),
        conv1d("attn.c_proj", "n_embd", "n_embd"),
        (Weight("attn.bias", (1, 1, "n_positions", "n_positions"), optional=True, is_buffer=True),),
        buffers("attn.masked_bias"),
        norm("ln_cross_attn", "n_embd", bias=True, when="add_cross_attention"),
        conv1d("crossattention.c_attn", "n_embd", "2 * n_embd", when="add_cross_attention"),
        conv1d("crossattention.q_attn", "n_embd", "n_embd", when="add_cross_attention"),
        conv1d("crossattention.c_proj", "n_embd", "n_embd", when="add_cross_attention"),
        norm("ln_2", "n_embd", bias=True),
        conv1d("mlp.c_fc", "n_embd", "n_inner"),
        conv1d("mlp.c_proj", "n_inner", "n_embd"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", "n_embd", bias=True), language_head("{head}lm_head.weight", GPT2_EMBEDDING)),
    layer_prefix=BLOCK,
    layers_key="n_layer",
    namings=TRANSFORMER_NAMINGS,
    tied_by_default=True,
    defaults={
        "vocab_size": 50257,
        "n_embd": "hidden_size",
        "hidden_size": 768,
        "n_layer": "num_hidden_layers",
        "num_hidden_layers": 12,
        "n_positions": "max_position_embeddings",
        "max_position_embeddings": 1024,
        "n_inner": "4 * n_embd",
        "add_cross_attention": False,
    },
)

GPT_NEOX_EMBEDDING = embedding("{base}embed_in.weight")

GPT_NEOX = Architecture(
    name="gpt_neox",
    model_types=("gpt_neox",),
    class_names=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    pre=(GPT_NEOX_EMBEDDING,),
    layer=in_layer(
        norm("input_layernorm", bias=True),
        norm("post_attention_layernorm", bias=True),
        linear("attention.query_key_value", "3 * hidden_size", "hidden_size", bias="attention_bias"),
        linear("attention.dense", "hidden_size", "hidden_size", bias="attention_bias"),
        buffers("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        linear("mlp.dense_h_to_4h", "intermediate_size", "hidden_size", bias=ALWAYS),
        linear("mlp.dense_4h_to_h", "hidden_size", "intermediate_size", bias=ALWAYS),
    ),
    post=(
        *norm("{base}final_layer_norm", bias=True),
        language_head("{head}embed_out.weight", GPT_NEOX_EMBEDDING),
    ),
    namings=(Naming("gpt_neox."), Naming("")),
    defaults={
        "vocab_size": 50432,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "attention_bias": True,
    },
)

FALCON_EMBEDDING = embedding("{base}word_embeddings.weight")
# With grouped keys, with one key and value for all heads, or with one for each head.
FALCON_QKV_ROWS = (
    "(2 * num_kv_heads + num_attention_heads) * head_dim if new_decoder_architecture"
    " else hidden_size + 2 * head_dim if multi_query else 3 * hidden_size"
)
FALCON_TWO_NORMS = "parallel_attn and num_ln_in_parallel_attn == 2"

FALCON = Architecture(
    name="falcon",
    model_types=("falcon", "RefinedWebModel", "RefinedWeb"),
    class_names=("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
    pre=(FALCON_EMBEDDING,),
    layer=in_layer(
        norm("ln_attn", bias=True, when=FALCON_TWO_NORMS),
        norm("ln_mlp", bias=True, when=FALCON_TWO_NORMS),
        norm("input_layernorm", bias=True, when=f"not ({FALCON_TWO_NORMS})"),
        norm("post_attention_layernorm", bias=True, when="not parallel_attn"),
        linear("self_attention.query_key_value", FALCON_QKV_ROWS, "hidden_size", bias="bias"),
        linear("self_attention.dense", "hidden_size", "hidden_size", bias="bias"),
        buffers("self_attention.rotary_emb.inv_freq", "self_attention.maybe_rotary.inv_freq"),
        linear("mlp.dense_h_to_4h", "ffn_hidden_size", "hidden_size", bias="bias"),
        linear("mlp.dense_4h_to_h", "hidden_size", "ffn_hidden_size", bias="bias"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", bias=True), language_head("{head}lm_head.weight", FALCON_EMBEDDING)),
    layer_prefix=BLOCK,
    namings=TRANSFORMER_NAMINGS,
    tied_by_default=True,
    defaults={
        "model_type": "'falcon'",
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": "n_layer",
        "n_layer": 32,
        "num_attention_heads": "n_head",
        "n_head": 71,
        "num_kv_heads": "n_head_kv",
        "n_head_kv": "num_attention_heads",
        "head_dim": HEAD_DIM,
        "ffn_hidden_size": "4 * hidden_size",
        "new_decoder_architecture": "model_type == 'RefinedWeb'",
        "num_ln_in_parallel_attn": "2 if new_decoder_architecture else 1",
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
    },
)
