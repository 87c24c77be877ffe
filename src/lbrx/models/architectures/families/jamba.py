"""Jamba: state spaces and some layers of attention, with MLPs or experts."""

from dataclasses import replace

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import mamba
from lbrx.models.architectures.mixer_records import Mamba
from lbrx.models.architectures.parts import (
    NEVER,
    PROJECTIONS,
    attention,
    decoder_defaults,
    embedding,
    experts,
    fused_experts,
    gated_mlp,
    in_layer,
    joined_experts,
    joined_in_layer,
    language_head,
    norm,
)
from lbrx.models.architectures.records import Decoder, Experts, GatedMlp, Gguf, GroupedAttention, PerLayer

IS_ATTENTION = "layer % attn_layer_period == attn_layer_offset"
IS_MAMBA = "layer % attn_layer_period != attn_layer_offset"
IS_MIXTURE = "num_experts > 1 and layer % expert_layer_period == expert_layer_offset"
IS_MLP = f"not ({IS_MIXTURE})"
RANK = "((hidden_size + 15) // 16 if mamba_dt_rank == 'auto' else mamba_dt_rank)"
INNER = "(mamba_expand * hidden_size)"
FUSED = fused_experts("num_experts", "intermediate_size", "feed_forward.experts")
ATTENTION = tuple(
    replace(weight, needed_when=IS_ATTENTION if weight.needed_when is None else weight.needed_when)
    for weight in attention(bias=NEVER, output_bias=NEVER)
    if not weight.is_buffer
)
MAMBA = tuple(
    replace(
        weight,
        needed_when=None
        if weight.needed_when is None
        else weight.needed_when.replace("use_bias", "mamba_proj_bias").replace("use_conv_bias", "mamba_conv_bias"),
    )
    for weight in mamba("mamba", inner=INNER, size="mamba_d_state", taps="mamba_d_conv", rank=RANK, when=IS_MAMBA)
)
NORMS = (
    *norm("mamba.dt_layernorm", "ssm_dt_norm", size=RANK, when=IS_MAMBA),
    *norm("mamba.b_layernorm", "ssm_b_norm", size="mamba_d_state", when=IS_MAMBA),
    *norm("mamba.c_layernorm", "ssm_c_norm", size="mamba_d_state", when=IS_MAMBA),
)
EXPERTS = experts(
    "feed_forward",
    PROJECTIONS,
    count="num_experts",
    size="intermediate_size",
    when=IS_MIXTURE,
    joined=FUSED,
    router="router",
)
DEFAULTS = decoder_defaults(
    65536,
    4096,
    14336,
    32,
    32,
    num_key_value_heads=8,
    max_position_embeddings=262144,
    num_experts=16,
    num_experts_per_tok=2,
    expert_layer_period=2,
    expert_layer_offset=1,
    attn_layer_period=8,
    attn_layer_offset=4,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_dt_rank="'auto'",
    mamba_conv_bias=True,
    mamba_proj_bias=False,
)
del DEFAULTS["rope_theta"]
MIXERS = PerLayer(
    IS_ATTENTION,
    {
        True: GroupedAttention(),
        False: Mamba(
            inner=INNER,
            size="mamba_d_state",
            taps="mamba_d_conv",
            rank=RANK,
            norms="weights",
            norm_epsilon="rms_norm_eps",
        ),
    },
)

JAMBA = Family(
    name="jamba",
    model_types=("jamba",),
    class_names=("JambaForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("pre_ff_layernorm", "ffn_norm"),
        ATTENTION,
        MAMBA,
        NORMS,
        EXPERTS,
        gated_mlp("feed_forward", when=IS_MLP),
    ),
    post=(*norm("{base}final_layernorm", "output_norm"), language_head("{head}lm_head.weight", embedding())),
    defaults=DEFAULTS,
    joined=joined_in_layer(*joined_experts(FUSED, "feed_forward")),
    gguf=Gguf(
        "jamba",
        without=("attention.key_length", "attention.value_length"),
        keys={
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.inner_size": INNER,
            "ssm.state_size": "mamba_d_state",
            "ssm.time_step_rank": RANK,
        },
        config={"mamba_expand": "ssm_inner_size // embedding_length", "mamba_dt_rank": "ssm_time_step_rank"},
        periods={
            "attention.head_count_kv": ("attn_layer_period", "attn_layer_offset"),
            "ffn_gate_inp.weight": ("expert_layer_period", "expert_layer_offset"),
        },
        layer_keys={"attention.head_count_kv": f"num_key_value_heads if {IS_ATTENTION} else 0"},
        requires={"not mamba_proj_bias": "biases of state spaces", "mamba_conv_bias": "convolutions without a bias"},
    ),
    decoder=Decoder(
        mixer=MIXERS,
        mlp=PerLayer(IS_MIXTURE, {True: Experts(scoring="softmax", count="num_experts"), False: GatedMlp()}),
        positions=None,
    ),
)
