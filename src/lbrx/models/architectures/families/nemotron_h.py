"""Nemotron-H: each layer is a state space, attention, an MLP or, in a variant, a mixture of experts."""

from typing import Any

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import mamba2
from lbrx.models.architectures.mixer_records import Mamba2
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
)
from lbrx.models.architectures.records import (
    Decoder,
    Experts,
    Gguf,
    GroupedAttention,
    Naming,
    Norm,
    PerLayer,
    PlainMlp,
    Weight,
)

TYPE = "(layers_block_type[layer] if layers_block_type else hybrid_override_pattern[layer])"


def is_type(*names: str) -> str:
    """Return the condition that a layer has a type, which configs name in different ways."""
    return "(" + " or ".join(f"{TYPE} == {name!r}" for name in names) + ")"


IS_MAMBA, IS_ATTENTION = is_type("M", "mamba", "linear_attention"), is_type("*", "attention", "full_attention")
IS_MLP, IS_MIXTURE = is_type("-", "mlp"), is_type("E", "moe")
HAS_MIXTURES = "'moe' in layers_block_type if layers_block_type else 'E' in hybrid_override_pattern"
EMBEDDING = embedding("{base}embeddings.weight")
NAMINGS = (Naming("backbone."), Naming("model."), Naming(""))
ATTENTION_BIAS = f"{IS_ATTENTION} and attention_bias"
MLP_BIAS = f"{IS_MLP} and mlp_bias"


def paired(module: str, rows: str, gguf: str, heads: str) -> tuple[Weight, ...]:
    """Return a projection in the order of llama.cpp, which does not matter without positions."""
    return linear(module, rows, "hidden_size", gguf, bias=ATTENTION_BIAS, when=IS_ATTENTION, paired_by=heads)


INNER = "mamba_num_heads * mamba_head_dim"
COMMON = (
    *norm("norm", "attn_norm"),
    *mamba2(
        "mixer",
        heads="mamba_num_heads",
        inner=INNER,
        size="ssm_state_size",
        groups="n_groups",
        taps="conv_kernel",
        bias="use_bias or mamba_proj_bias",
        conv_bias="use_conv_bias",
        when=IS_MAMBA,
    ),
    *paired("mixer.q_proj", QUERY_ROWS, "attn_q", "num_attention_heads"),
    *paired("mixer.k_proj", KEY_VALUE_ROWS, "attn_k", "num_key_value_heads"),
    *linear("mixer.v_proj", KEY_VALUE_ROWS, "hidden_size", "attn_v", bias=ATTENTION_BIAS, when=IS_ATTENTION),
    *linear("mixer.o_proj", "hidden_size", QUERY_ROWS, "attn_output", bias=ATTENTION_BIAS, when=IS_ATTENTION),
    *linear("mixer.up_proj", "intermediate_size", "hidden_size", "ffn_up", bias=MLP_BIAS, when=IS_MLP),
    *linear("mixer.down_proj", "hidden_size", "intermediate_size", "ffn_down", bias=MLP_BIAS, when=IS_MLP),
)
COUNT, SIZE, SHARED = "n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"
LATENT = "(moe_latent_size if moe_latent_size else hidden_size)"
HAS_LATENT = f"{IS_MIXTURE} and moe_latent_size"
STACKS = {role: f"mixer.switch_mlp.{name}.weight" for role, name in (("up", "fc1"), ("down", "fc2"))}
SHAPES = {"up": (SIZE, LATENT), "down": (LATENT, SIZE)}
MIXTURE = (
    *linear("mixer.gate", COUNT, "hidden_size", "ffn_gate_inp", when=IS_MIXTURE),
    Weight("mixer.gate.e_score_correction_bias", (COUNT,), needed_when=IS_MIXTURE, gguf="exp_probs_b.bias"),
    *(
        Weight(
            f"mixer.experts.{{item}}.{role}_proj.weight",
            SHAPES[role],
            items=COUNT,
            needed_when=IS_MIXTURE,
            replaced_by=(STACKS[role],),
            gguf=f"ffn_{role}_exps.weight",
            mlx=STACKS[role],
        )
        for role in ("up", "down")
    ),
    *(Weight(STACKS[role], (COUNT, *SHAPES[role]), optional=True) for role in ("up", "down")),
    *linear("mixer.shared_experts.up_proj", SHARED, "hidden_size", "ffn_up_shexp", when=IS_MIXTURE),
    *linear("mixer.shared_experts.down_proj", "hidden_size", SHARED, "ffn_down_shexp", when=IS_MIXTURE),
    *linear("mixer.fc1_latent_proj", LATENT, "hidden_size", "ffn_latent_down", when=HAS_LATENT),
    *linear("mixer.fc2_latent_proj", "hidden_size", LATENT, "ffn_latent_up", when=HAS_LATENT),
)
DEFAULTS: dict[str, Any] = decoder_defaults(
    131072,
    4096,
    21504,
    4,
    32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    layer_norm_epsilon=1e-5,
    layers_block_type=None,
    hybrid_override_pattern="'ME*-'",
    mlp_bias=False,
    use_bias=False,
    mamba_proj_bias=False,
    use_conv_bias=True,
    mamba_num_heads=128,
    mamba_head_dim=64,
    ssm_state_size=128,
    n_groups=8,
    conv_kernel=4,
    moe_latent_size=None,
)
del DEFAULTS["rms_norm_eps"], DEFAULTS["rope_theta"]
OF_EXPERTS = {
    COUNT: 8,
    "num_experts_per_tok": 2,
    SIZE: 7688,
    SHARED: 7688,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
EPSILON = "attention.layer_norm_rms_epsilon"
KEYS = {
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "rope.dimension_count": "head_dim",
    "rope.scaling.finetuned": "False",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.inner_size": INNER,
    "ssm.time_step_rank": "mamba_num_heads",
}
CONFIG = {
    "layer_norm_epsilon": "attention_layer_norm_epsilon",
    "mamba_num_heads": "ssm_time_step_rank",
    "mamba_head_dim": "ssm_inner_size // ssm_time_step_rank",
}
REQUIRES = {
    "not (use_bias or mamba_proj_bias)": "biases of state spaces",
    "use_conv_bias": "convolutions without a bias",
    "not moe_latent_size": "experts that compute smaller vectors",
}
KV_HEADS = {"attention.head_count_kv": f"num_key_value_heads if {IS_ATTENTION} else 0"}
BLOCK_TYPE = "'attention' if attention_head_count_kv[layer] else '{}' if feed_forward_length[layer] else 'mamba'"
POST = (*norm("{base}norm_f", "output_norm"), language_head("{head}lm_head.weight", EMBEDDING))
MAMBA = Mamba2(heads="mamba_num_heads", width="mamba_head_dim", size="ssm_state_size", limits="time_step_limit")
MIXERS = PerLayer(
    f"'mamba' if {IS_MAMBA} else 'attention' if {IS_ATTENTION} else 'none'",
    {"mamba": MAMBA, "attention": GroupedAttention(), "none": None},
)
MLPS = PerLayer(
    f"'mlp' if {IS_MLP} else 'moe' if {IS_MIXTURE} else 'none'",
    {
        "mlp": PlainMlp("relu2"),
        "moe": Experts(
            activation="relu2",
            scoring="sigmoid",
            count=COUNT,
            normalized="norm_topk_prob",
            scale="routed_scaling_factor",
            groups="n_group",
            is_gated=False,
        ),
        "none": None,
    },
)
DECODER = Decoder(mixer=MIXERS, mlp=MLPS, norm=Norm(epsilon="layer_norm_epsilon"), positions=None)

NEMOTRON_H = Family(
    name="nemotron_h",
    model_types=("nemotron_h",),
    class_names=("NemotronHForCausalLM",),
    variants={"nemotron_h_moe": HAS_MIXTURES},
    pre=(EMBEDDING,),
    layer=in_layer(COMMON),
    post=POST,
    namings=NAMINGS,
    layer_lists=("layers_block_type", "hybrid_override_pattern"),
    omitted_sizes=("num_hidden_layers",),
    defaults={**DEFAULTS, "hybrid_override_pattern": "'M-*-'"},
    gguf=Gguf(
        "nemotron_h",
        without=(EPSILON,),
        context_length="1048576",
        keys=KEYS,
        config=CONFIG,
        layer_keys={**KV_HEADS, "feed_forward_length": f"intermediate_size if {IS_MLP} else 0"},
        layer_config={"layers_block_type": BLOCK_TYPE.format("mlp")},
        requires=REQUIRES,
    ),
    decoder=DECODER,
)

NEMOTRON_H_MOE = Family(
    name="nemotron_h_moe",
    model_types=("nemotron_h",),
    class_names=("NemotronHForCausalLM",),
    pre=(EMBEDDING,),
    layer=in_layer(COMMON, MIXTURE),
    post=POST,
    namings=NAMINGS,
    layer_lists=("layers_block_type", "hybrid_override_pattern"),
    omitted_sizes=("num_hidden_layers", "intermediate_size"),
    defaults={**DEFAULTS, **OF_EXPERTS},
    gguf=Gguf(
        "nemotron_h_moe",
        without=(EPSILON,),
        context_length="1048576",
        keys={
            **KEYS,
            "expert_feed_forward_length": SIZE,
            "expert_shared_feed_forward_length": SHARED,
            "expert_shared_count": "n_shared_experts",
            "expert_weights_norm": "norm_topk_prob",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
        },
        config=CONFIG,
        layer_keys={**KV_HEADS, "feed_forward_length": f"{SIZE} if {IS_MIXTURE} else 0"},
        layer_config={"layers_block_type": BLOCK_TYPE.format("moe")},
        requires={
            **REQUIRES,
            "not ('mlp' in layers_block_type if layers_block_type else '-' in "
            "hybrid_override_pattern)": "layers of plain MLPs next to mixtures",
        },
    ),
    decoder=DECODER,
)
