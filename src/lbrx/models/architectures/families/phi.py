"""Phi 1 and 2: attention and MLP next to each other, behind one layer norm."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    buffers,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Norm, PlainMlp, Weight

HEAD_NORMS = tuple(
    replace(weight, in_gguf=False)
    for each in "qk"
    for weight in norm(
        f"self_attn.{each}_layernorm", f"attn_{each}_norm", size="head_dim", bias=True, when="qk_layernorm"
    )
)

PHI = Family(
    name="phi",
    model_types=("phi",),
    class_names=("PhiForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        linear("self_attn.q_proj", QUERY_ROWS, "hidden_size", "attn_q", bias=ALWAYS),
        linear("self_attn.k_proj", KEY_VALUE_ROWS, "hidden_size", "attn_k", bias=ALWAYS),
        linear("self_attn.v_proj", KEY_VALUE_ROWS, "hidden_size", "attn_v", bias=ALWAYS),
        linear("self_attn.dense", "hidden_size", QUERY_ROWS, "attn_output", bias=ALWAYS),
        HEAD_NORMS,
        buffers("self_attn.rotary_emb.inv_freq"),
        plain_mlp("mlp.fc1", "mlp.fc2", bias=ALWAYS),
    ),
    post=(
        *norm("{base}final_layernorm", "output_norm", bias=True),
        language_head("{head}lm_head.weight", embedding()),
        Weight(
            "{head}lm_head.bias",
            ("vocab_size",),
            needed_when="has_language_head",
            is_vocabulary=True,
            gguf="output.bias",
        ),
    ),
    defaults=decoder_defaults(
        51200,
        2048,
        8192,
        24,
        32,
        max_position_embeddings=2048,
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.5,
        qk_layernorm=False,
        hidden_act="'gelu_new'",
    ),
    gguf=Gguf("phi2"),
    decoder=Decoder(
        GroupedAttention(qk_norm="head", qk_norm_function="layer", qk_norm_when="qk_layernorm"),
        PlainMlp("gelu_tanh", ("gelu",)),
        Norm(function="layer", epsilon="layer_norm_eps"),
        is_parallel="True",
        shares_norm="True",
    ),
)
