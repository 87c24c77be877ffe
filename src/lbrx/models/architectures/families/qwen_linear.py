"""Qwen3-Next and Qwen 3.5: three layers of linear attention, then one of gated attention."""

from dataclasses import replace
from typing import Any

from lbrx.models.architectures.families.qwen import DENSE_LAYERS, EXPERT_DEFAULTS, IS_DENSE, IS_SPARSE, MIXTURE
from lbrx.models.architectures.families.qwen import EXPERTS as QWEN_EXPERTS
from lbrx.models.architectures.families.qwen import JOINED as JOINED_EXPERTS
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import FULL, LINEAR, conv, type_of_layer, vector
from lbrx.models.architectures.mixer_records import GatedDeltaNet
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    joined_in_layer,
    linear,
    norm,
    qk_norms,
    usual,
)
from lbrx.models.architectures.records import (
    Decoder,
    GatedMlp,
    Gguf,
    GroupedAttention,
    HeadOrder,
    Joined,
    LayerRule,
    Norm,
    PerLayer,
    Weight,
)

RULE = f"'{LINEAR}' if (layer + 1) % full_attention_interval else '{FULL}'"
TYPE = type_of_layer(RULE)
IS_LINEAR, IS_FULL = f"{TYPE} == '{LINEAR}'", f"{TYPE} == '{FULL}'"
GROUPS, HEADS = "linear_num_key_heads", "linear_num_value_heads"
KEYS, VALUES = f"{GROUPS} * linear_key_head_dim", f"{HEADS} * linear_value_head_dim"
CHANNELS = f"2 * {KEYS} + {VALUES}"
IN_GROUP = f"{HEADS} // {GROUPS} * linear_value_head_dim"  # values that share a head of keys

NORMS = (
    *norm("input_layernorm", "attn_norm", adds_one=True),
    *norm("post_attention_layernorm", "post_attention_norm", adds_one=True),
)
ATTENTION = tuple(
    replace(weight, needed_when=IS_FULL if weight.needed_when is None else f"({IS_FULL}) and {weight.needed_when}")
    for weight in (
        *linear("self_attn.q_proj", f"2 * {QUERY_ROWS}", "hidden_size", "attn_q", bias="attention_bias"),
        *linear("self_attn.k_proj", KEY_VALUE_ROWS, "hidden_size", "attn_k", bias="attention_bias"),
        *linear("self_attn.v_proj", KEY_VALUE_ROWS, "hidden_size", "attn_v", bias="attention_bias"),
        *linear("self_attn.o_proj", "hidden_size", QUERY_ROWS, "attn_output", bias="attention_bias"),
        *qk_norms("head_dim", "head_dim", adds_one=True),
    )
)


def delta_net(*, is_ordered: bool) -> tuple[Weight, ...]:
    """Return the weights of linear attention but for its projections. GGUF has other heads first if ``is_ordered``."""
    order = HeadOrder if is_ordered else lambda **_: None
    conv_order, single, columns = order(first=f"2 * {KEYS}"), order(size=1), order(axis=1)
    steps = vector("linear_attn.dt_bias", HEADS, "ssm_dt.bias", when=IS_LINEAR)
    decays = vector("linear_attn.A_log", HEADS, "ssm_a", when=IS_LINEAR, is_log=True)
    (output,) = linear("linear_attn.out_proj", "hidden_size", VALUES, "ssm_out", when=IS_LINEAR)
    return (
        *conv("linear_attn.conv1d", CHANNELS, "linear_conv_kernel_dim", "ssm_conv1d", when=IS_LINEAR, order=conv_order),
        replace(steps, order=single),
        replace(decays, order=single),
        *norm("linear_attn.norm", "ssm_norm", size="linear_value_head_dim", when=IS_LINEAR),
        replace(output, order=columns),
    )


QKV = Weight("linear_attn.in_proj_qkv.weight", (CHANNELS, "hidden_size"), needed_when=IS_LINEAR, gguf="attn_qkv.weight")
GATE = Weight("linear_attn.in_proj_z.weight", (VALUES, "hidden_size"), needed_when=IS_LINEAR, gguf="attn_gate.weight")
ALPHA = Weight("linear_attn.in_proj_a.weight", (HEADS, "hidden_size"), needed_when=IS_LINEAR, gguf="ssm_alpha.weight")
BETA = Weight("linear_attn.in_proj_b.weight", (HEADS, "hidden_size"), needed_when=IS_LINEAR, gguf="ssm_beta.weight")
ORDERED = (
    replace(QKV, order=HeadOrder(first=f"2 * {KEYS}")),
    replace(GATE, order=HeadOrder()),
    replace(BETA, order=HeadOrder(size=1)),
    replace(ALPHA, order=HeadOrder(size=1)),
    *delta_net(is_ordered=True),
)
BOTH = Weight("linear_attn.in_proj_qkvz.weight", (f"{CHANNELS} + {VALUES}", "hidden_size"))
IN_GROUPS = (
    usual(BOTH, QKV.name, when=IS_LINEAR),
    replace(QKV, joined_in=BOTH.name),
    replace(GATE, joined_in=BOTH.name),
    *linear("linear_attn.in_proj_ba", f"2 * {HEADS}", "hidden_size", "ssm_ba", when=IS_LINEAR),
    *delta_net(is_ordered=False),
)
RUNS = ("linear_key_head_dim", "linear_key_head_dim", IN_GROUP, IN_GROUP)

SHARED_EXPERT = (
    *linear("mlp.shared_expert_gate", 1, "hidden_size", "ffn_gate_inp_shexp", when=IS_SPARSE),
    *gated_mlp("mlp.shared_expert", "shared_expert_intermediate_size", "ffn_{}_shexp", when=IS_SPARSE),
)
EXPERTS = (*QWEN_EXPERTS, *SHARED_EXPERT)
DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "layer_types": None,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    GROUPS: 16,
    HEADS: 32,
}
OF_EXPERTS: dict[str, Any] = {
    **EXPERT_DEFAULTS,
    "intermediate_size": "moe_intermediate_size",
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
RULES = (LayerRule("layer_types", RULE),)
POST = final_norm_and_head(adds_one=True)
NORM = Norm(adds_one=True, names=("attn_norm", "", "post_attention_norm", ""))
GATED_ATTENTION = GroupedAttention(qk_norm="head", is_gated=True)


def mixers(delta: GatedDeltaNet) -> PerLayer:
    """Return the mixers by the type of a layer."""
    return PerLayer("layer_type", {LINEAR: delta, FULL: GATED_ATTENTION})


def gguf_record(name: str, *, has_sections: bool) -> Gguf:
    """Return how llama.cpp stores the families; it has sections of positions in those with images."""
    return Gguf(
        name,
        keys={
            "ssm.conv_kernel": "linear_conv_kernel_dim",
            "ssm.state_size": "linear_key_head_dim",
            "ssm.group_count": GROUPS,
            "ssm.time_step_rank": HEADS,
            "ssm.inner_size": VALUES,
            "full_attention_interval": "full_attention_interval",
        },
        layer_keys={"attention.recurrent_layers": IS_LINEAR},
        layer_config={
            "layer_types": f"'{LINEAR}' if (attention_recurrent_layers[layer] if attention_recurrent_layers"
            f" else (layer + 1) % full_attention_interval[layer]) else '{FULL}'"
        },
        config={"linear_value_head_dim": "ssm_inner_size // ssm_time_step_rank"},
        stored_defaults={"attention_recurrent_layers": None},
        rope_lists={"rope.dimension_sections": (*(f"mrope_section[{part}]" for part in range(3)), "0")}
        if has_sections
        else {},
        rope_defaults={"mrope_section": (11, 11, 10)},
        requires={"not attention_bias": "biases of attention"},
    )


PREDICTION = in_layer(
    norm("enorm", "nextn.enorm", adds_one=True),
    norm("hnorm", "nextn.hnorm", adds_one=True),
    linear("eh_proj", "hidden_size", "2 * hidden_size", "nextn.eh_proj"),
    norm("shared_head.norm", "nextn.shared_head_norm", adds_one=True),
)
PREDICTION_KEY = "mtp_num_hidden_layers"
PREDICTION_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}

QWEN3_NEXT = Family(
    name="qwen3_next",
    model_types=("qwen3_next",),
    class_names=("Qwen3NextForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(NORMS, IN_GROUPS, ATTENTION, EXPERTS),
    prediction=PREDICTION,
    prediction_key=PREDICTION_KEY,
    prediction_names=PREDICTION_NAMES,
    post=POST,
    defaults=decoder_defaults(
        151936, 2048, 5632, 48, 16, num_key_value_heads=2, num_experts_per_tok=10, num_local_experts=512, **DEFAULTS
    )
    | {**OF_EXPERTS, "intermediate_size": 5632},
    layer_rules=(*RULES, DENSE_LAYERS),
    joined=(
        *JOINED_EXPERTS,
        *joined_in_layer(Joined(BOTH.name, (QKV.name, GATE.name), axis=0, groups=GROUPS, runs=RUNS)),
    ),
    has_mlx_forms=True,
    gguf=gguf_record("qwen3next", has_sections=False),
    decoder=Decoder(
        mixer=mixers(GatedDeltaNet()),
        mlp=PerLayer(IS_DENSE, {True: GatedMlp(), False: MIXTURE}),
        norm=NORM,
        layer_types=(LINEAR, FULL),
    ),
)

QWEN3_5 = Family(
    name="qwen3_5",
    model_types=("qwen3_5_text", "qwen3_5"),
    class_names=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    pre=(embedding(),),
    layer=in_layer(NORMS, ORDERED, ATTENTION, gated_mlp()),
    prediction=PREDICTION,
    prediction_key=PREDICTION_KEY,
    prediction_names=PREDICTION_NAMES,
    post=POST,
    defaults=decoder_defaults(
        248320, 4096, 12288, 32, 16, num_key_value_heads=4, max_position_embeddings=32768, **DEFAULTS
    ),
    layer_rules=RULES,
    gguf=gguf_record("qwen35", has_sections=True),
    decoder=Decoder(mixer=mixers(GatedDeltaNet(tiled_in_gguf=True)), norm=NORM, layer_types=(LINEAR, FULL)),
)

QWEN3_5_MOE = Family(
    name="qwen3_5_moe",
    model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
    class_names=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    pre=(embedding(),),
    layer=in_layer(NORMS, ORDERED, ATTENTION, EXPERTS),
    prediction=PREDICTION,
    prediction_key=PREDICTION_KEY,
    prediction_names=PREDICTION_NAMES,
    post=POST,
    omitted_sizes=("intermediate_size",),
    defaults=decoder_defaults(
        248320, 2048, 512, 40, 16, num_key_value_heads=2, num_experts_per_tok=8, num_local_experts=256, **DEFAULTS
    )
    | OF_EXPERTS,
    layer_rules=RULES,
    joined=JOINED_EXPERTS,
    gguf=gguf_record("qwen35moe", has_sections=True),
    decoder=Decoder(
        mixer=mixers(GatedDeltaNet(tiled_in_gguf=True)), mlp=MIXTURE, norm=NORM, layer_types=(LINEAR, FULL)
    ),
)
