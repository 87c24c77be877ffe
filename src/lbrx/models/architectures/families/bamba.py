"""Bamba: state spaces, and some layers of attention with half-rotated heads. llama.cpp computes it otherwise."""

from dataclasses import replace

from lbrx.models.architectures.families.granite_hybrid import OF_MAMBA
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import mamba2
from lbrx.models.architectures.mixer_records import Mamba2
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    gated_mlp,
    in_layer,
    language_head,
    norm,
)
from lbrx.models.architectures.records import Decoder, GroupedAttention, LayerRule, PerLayer

IS_ATTENTION = "layer in attn_layer_indices"
INNER = "mamba_expand * hidden_size"
ATTENTION = tuple(
    replace(
        weight, needed_when=IS_ATTENTION if weight.needed_when is None else f"{IS_ATTENTION} and {weight.needed_when}"
    )
    for weight in attention(output_bias="attention_bias")
    if not weight.is_buffer
)

BAMBA = Family(
    name="bamba",
    model_types=("bamba",),
    class_names=("BambaForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("pre_ff_layernorm", "ffn_norm"),
        ATTENTION,
        mamba2(
            "mamba",
            heads="mamba_n_heads",
            inner=INNER,
            size="mamba_d_state",
            groups="mamba_n_groups",
            taps="mamba_d_conv",
            bias="mamba_proj_bias",
            conv_bias="mamba_conv_bias",
            when=f"not {IS_ATTENTION}",
        ),
        gated_mlp("feed_forward", bias="mlp_bias"),
    ),
    post=(*norm("{base}final_layernorm", "output_norm"), language_head("{head}lm_head.weight", embedding())),
    defaults=decoder_defaults(
        128000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=262144, mlp_bias=False
    )
    | OF_MAMBA
    | {"rms_norm_eps": 1e-5, "attn_layer_indices": (), "partial_rotary_factor": 0.5},
    layer_rules=(LayerRule("attn_layer_indices", IS_ATTENTION, is_index_list=True),),
    decoder=Decoder(
        mixer=PerLayer(
            IS_ATTENTION,
            {
                True: GroupedAttention(),
                False: Mamba2(
                    heads="mamba_n_heads",
                    width=f"{INNER} // mamba_n_heads",
                    size="mamba_d_state",
                    groups="mamba_n_groups",
                    taps="mamba_d_conv",
                    epsilon="rms_norm_eps",
                ),
            },
        )
    ),
)
