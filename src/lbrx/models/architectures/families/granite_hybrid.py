"""Granite 4: state spaces and some layers of attention, with experts and a shared MLP, or with the latter alone."""

from dataclasses import replace
from typing import Any

from lbrx.models.architectures.families.granite_moe import DEFAULTS as MOE_DEFAULTS
from lbrx.models.architectures.families.granite_moe import (
    EXPERTS,
    JOINED,
    KEYS,
    SHARED_GATE,
    SHARED_INPUT,
    SHARED_MLP,
    SHARED_UP,
)
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import mamba2, type_of_layer
from lbrx.models.architectures.mixer_records import Mamba2
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    embedding,
    final_norm_and_head,
    in_layer,
    joined_in_layer,
)
from lbrx.models.architectures.records import (
    Decoder,
    Experts,
    GatedMlp,
    Gguf,
    GroupedAttention,
    Joined,
    LayerRule,
    PerLayer,
    Rope,
    Weight,
)

TYPE = type_of_layer("'linear_attention'")
IS_ATTENTION = f"({TYPE} == 'attention' or {TYPE} == 'full_attention')"
IS_MAMBA = f"not {IS_ATTENTION}"
INNER = "mamba_expand * hidden_size"
SOURCES = "'mamba' in layer_types or 'linear_attention' in layer_types if layer_types else True"
ATTENTION = tuple(
    replace(
        weight, needed_when=IS_ATTENTION if weight.needed_when is None else f"{IS_ATTENTION} and {weight.needed_when}"
    )
    for weight in attention(output_bias="attention_bias", is_paired=True, biases_in_gguf="")
    if not weight.is_buffer
)
MAMBA = mamba2(
    "mamba",
    heads="mamba_n_heads",
    inner=INNER,
    size="mamba_d_state",
    groups="mamba_n_groups",
    taps="mamba_d_conv",
    bias="mamba_proj_bias",
    conv_bias="mamba_conv_bias",
    when=IS_MAMBA,
)
OF_MAMBA: dict[str, Any] = {
    "layer_types": None,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "position_embedding_type": "'nope'",
    "shared_intermediate_size": 1024,
}
SHARED = "shared_intermediate_size"
DENSE_NAMES = {"ffn_gate_shexp.weight": "ffn_gate.weight", "ffn_up_shexp.weight": "ffn_up.weight"}
DENSE_NAMES |= {"ffn_down_shexp.weight": "ffn_down.weight"}


def renamed(weight: Weight) -> Weight:
    """Return a weight of the shared MLP as the only MLP of a layer."""
    return weight if weight.gguf is None else replace(weight, gguf=DENSE_NAMES[weight.gguf])


RULES = (LayerRule("layer_types", "'linear_attention'"),)
MLX_JOINED = Joined(SHARED_INPUT.name, (SHARED_GATE, SHARED_UP), axis=0)
MIXERS = PerLayer(
    f"'attention' if {IS_ATTENTION} else 'mamba'",
    {
        "attention": GroupedAttention(scale="attention_multiplier"),
        "mamba": Mamba2(
            heads="mamba_n_heads",
            width=f"{INNER} // mamba_n_heads",
            size="mamba_d_state",
            groups="mamba_n_groups",
            taps="mamba_d_conv",
            epsilon="rms_norm_eps",
        ),
    },
)


def gguf_record(when: str) -> Gguf:
    """Return how llama.cpp stores the family with or without experts."""
    return Gguf(
        "granitehybrid",
        when=when,
        context_length="1048576",
        keys={
            **KEYS,
            "rope.scaling.finetuned": "False",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_feed_forward_length": SHARED,
            "ssm.conv_kernel": "mamba_d_conv",
            "ssm.state_size": "mamba_d_state",
            "ssm.group_count": "mamba_n_groups",
            "ssm.inner_size": INNER,
            "ssm.time_step_rank": "mamba_n_heads",
        },
        config={"mamba_expand": "ssm_inner_size // embedding_length", "position_embedding_type": "'nope'"},
        layer_keys={"attention.head_count_kv": f"num_key_value_heads if {IS_ATTENTION} else 0"},
        layer_config={"layer_types": "'attention' if attention_head_count_kv[layer] else 'mamba'"},
        requires={
            "not mamba_proj_bias": "biases of state spaces",
            SOURCES: "only layers of attention",
            "position_embedding_type != 'rope'": "rotated queries and keys",
        },
    )


def decoder(mlp: Any) -> Decoder:
    """Return how the family runs."""
    return Decoder(
        mixer=MIXERS,
        mlp=mlp,
        positions=Rope(when="position_embedding_type == 'rope'"),
        layer_types=("mamba", "attention", "linear_attention", "full_attention"),
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        logit_scale="1 / logits_scaling",
    )


GRANITE_HYBRID_DENSE = Family(
    name="granitemoehybrid_dense",
    model_types=("granitemoehybrid",),
    class_names=("GraniteMoeHybridForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, MAMBA, tuple(map(renamed, SHARED_MLP))),
    post=final_norm_and_head(),
    defaults={**MOE_DEFAULTS, **OF_MAMBA},
    layer_rules=RULES,
    joined=joined_in_layer(MLX_JOINED),
    gguf=gguf_record("expert_count == 0"),
    decoder=decoder(GatedMlp()),
)

GRANITE_HYBRID = Family(
    name="granitemoehybrid",
    model_types=("granitemoehybrid",),
    class_names=("GraniteMoeHybridForCausalLM",),
    variants={"granitemoehybrid_dense": "num_local_experts == 0"},
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, MAMBA, EXPERTS, SHARED_MLP),
    post=final_norm_and_head(),
    defaults={**MOE_DEFAULTS, **OF_MAMBA},
    layer_rules=RULES,
    joined=joined_in_layer(*JOINED, MLX_JOINED),
    gguf=gguf_record("expert_count > 0"),
    decoder=decoder(Experts()),
)
