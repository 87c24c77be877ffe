"""Falcon-H1: each layer adds a state space and attention; numbers of the config multiply parts of it."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import mamba2
from lbrx.models.architectures.mixer_records import Mamba2, Sum
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    gated_mlp,
    in_layer,
    language_head,
    norm,
)
from lbrx.models.architectures.records import Decoder, GatedMlp, Gguf, GroupedAttention, Scales, Weight

INNER = "(mamba_d_ssm if mamba_d_ssm else mamba_expand * hidden_size)"
VECTORS = "mamba_n_groups * mamba_d_state"
RUNS = (INNER, INNER, VECTORS, VECTORS, "mamba_n_heads")
# llama.cpp has the products of these weights and the multipliers.
SCALES: dict[str, Scales] = {
    "ffn_gate.weight": ("mlp_multipliers[0]",),
    "ffn_down.weight": ("mlp_multipliers[1]",),
    "attn_q.weight": ("attention_in_multiplier",),
    "attn_k.weight": ("key_multiplier", "attention_in_multiplier"),
    "attn_v.weight": ("attention_in_multiplier",),
    "attn_output.weight": ("attention_out_multiplier",),
    "ssm_in.weight": (
        "ssm_in_multiplier",
        tuple((run, f"ssm_multipliers[{part}]") for part, run in enumerate(RUNS)),
    ),
    "ssm_out.weight": ("ssm_out_multiplier",),
    "output.weight": ("lm_head_multiplier",),
    "token_embd.weight": ("embedding_multiplier",),
}
MAMBA = mamba2(
    "mamba",
    heads="mamba_n_heads",
    inner=INNER,
    size="mamba_d_state",
    groups="mamba_n_groups",
    taps="mamba_d_conv",
    bias="mamba_proj_bias",
    conv_bias="mamba_conv_bias",
    norm_when="mamba_rms_norm",
)


def scaled(*weights: Weight) -> tuple[Weight, ...]:
    """Return weights with the factors that GGUF includes."""
    return tuple(replace(weight, gguf_scales=SCALES.get(weight.gguf or "", ())) for weight in weights)


NORMS = (*norm("input_layernorm", "attn_norm"), Weight("pre_ff_layernorm.weight", ("hidden_size",), gguf="ffn_norm"))
(EMBEDDING,) = scaled(embedding())
(HEAD,) = scaled(language_head("{head}lm_head.weight", EMBEDDING))
MULTIPLIERS = (
    "lm_head_multiplier",
    "embedding_multiplier",
    "key_multiplier",
    "attention_out_multiplier",
    "attention_in_multiplier",
    "ssm_in_multiplier",
    "ssm_out_multiplier",
)

FALCON_H1 = Family(
    name="falcon_h1",
    model_types=("falcon_h1",),
    class_names=("FalconH1ForCausalLM",),
    pre=(EMBEDDING,),
    layer=in_layer(
        NORMS,
        scaled(*MAMBA),
        scaled(*(each for each in attention(output_bias="attention_bias", biases_in_gguf="") if not each.is_buffer)),
        scaled(*gated_mlp("feed_forward", bias="mlp_bias")),
    ),
    post=(*norm("{base}final_layernorm", "output_norm"), HEAD),
    defaults=decoder_defaults(
        128000,
        4096,
        14336,
        32,
        32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        mamba_d_ssm=1024,
        mamba_n_heads=128,
        mamba_n_groups=1,
        mamba_d_state=256,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_conv_bias=True,
        mamba_proj_bias=False,
        mamba_rms_norm=False,
        mamba_norm_before_gate=True,
        mlp_bias=False,
        mlp_multipliers=(1.0, 1.0),
        ssm_multipliers=(1.0,) * 5,
    )
    | {"rms_norm_eps": 1e-5}
    | dict.fromkeys(MULTIPLIERS, 1.0),
    gguf=Gguf(
        "falcon-h1",
        keys={
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.inner_size": INNER,
            "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": "mamba_n_heads",
            "ssm.group_count": "mamba_n_groups",
        },
        config={
            "mamba_d_ssm": "ssm_inner_size",
            "mamba_d_head": "ssm_inner_size // ssm_time_step_rank",
            "mamba_norm_before_gate": "False",
        },
        true_if_stored={"mamba_rms_norm": "ssm_norm.weight"},
        requires={
            "not (mamba_proj_bias or attention_bias or mlp_bias)": "biases",
            "mamba_conv_bias": "convolutions without a bias",
            "not (mamba_rms_norm and mamba_norm_before_gate)": "norms before the gate",
        },
    ),
    decoder=Decoder(
        mixer=Sum(
            (
                Mamba2(
                    heads="mamba_n_heads",
                    width=f"{INNER} // mamba_n_heads",
                    size="mamba_d_state",
                    groups="mamba_n_groups",
                    taps="mamba_d_conv",
                    epsilon="rms_norm_eps",
                    norm_when="mamba_rms_norm",
                    norm_before_gate="mamba_norm_before_gate",
                    scales="ssm_multipliers",
                ),
                GroupedAttention(scale="key_multiplier * (1 / head_dim) ** 0.5"),
            ),
            (("ssm_in_multiplier", "ssm_out_multiplier"), ("attention_in_multiplier", "attention_out_multiplier")),
        ),
        mlp=GatedMlp(gate_scale="mlp_multipliers[0]", scale="mlp_multipliers[1]"),
        embedding_scale="embedding_multiplier",
        logit_scale="lm_head_multiplier",
    ),
)
