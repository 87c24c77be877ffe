"""Decoders with other mixers than attention: state spaces, linear attention, short convolutions."""

from __future__ import annotations

from typing import Any

from family_cases import Case

_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
}
_DELTA_3_5: dict[str, Any] = {**_DELTA, "head_dim": 32, "rope_parameters": _ROPE}
_DENSE_DELTA = {key: value for key, value in _DELTA_3_5.items() if "expert" not in key and "moe" not in key}
_STATE_SPACE = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
_MAMBA_HEADS: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_GRANITE: dict[str, Any] = {
    **_MAMBA_HEADS,
    "mamba_n_groups": 1,
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 48,
    "position_embedding_type": "nope",
    "embedding_multiplier": 12.0,
    "logits_scaling": 6.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
}
_GRANITE_SAVED = {"layer_types": ["mamba", "attention", "mamba"]}
_NEMOTRON: dict[str, Any] = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 8,
    "head_dim": 16,
}
_NEMOTRON_EXPERTS = (
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_overlap",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
)


def _prediction(experts: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors that predict further tokens, which transformers does not load."""
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (64,),
        "post_attention_layernorm.weight": (64,),
        "self_attn.q_proj.weight": (256, 64),
        "self_attn.k_proj.weight": (64, 64),
        "self_attn.v_proj.weight": (64, 64),
        "self_attn.o_proj.weight": (64, 128),
        "self_attn.q_norm.weight": (32,),
        "self_attn.k_norm.weight": (32,),
    }
    mlps = {"mlp.": 96}
    if experts:
        mlps = {f"mlp.experts.{number}.": 32 for number in range(experts)} | {"mlp.shared_expert.": 48}
        layer |= {"mlp.gate.weight": (experts, 64), "mlp.shared_expert_gate.weight": (1, 64)}
    for prefix, size in mlps.items():
        layer |= {f"{prefix}gate_proj.weight": (size, 64), f"{prefix}up_proj.weight": (size, 64)}
        layer |= {f"{prefix}down_proj.weight": (64, size)}
    modules = {"norm": (64,), "pre_fc_norm_embedding": (64,), "pre_fc_norm_hidden": (64,), "fc": (64, 128)}
    return {
        **{f"mtp.{name}.weight": shape for name, shape in modules.items()},
        **{f"mtp.layers.0.{name}": shape for name, shape in layer.items()},
    }


CASES: dict[str, Case] = {
    "lfm2": Case(
        "lfm2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
            "block_dim": 64,
        },
    ),
    "lfm2-adjusted": Case(
        "lfm2",
        {
            "num_hidden_layers": 3,
            "full_attn_idxs": [2],
            "block_multiple_of": 32,
            "conv_bias": False,
            "block_dim": 64,
        },
    ),
    "lfm2_moe": Case(
        "lfm2_moe",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "num_dense_layers": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "qwen3_next": Case("qwen3_next", _DELTA),
    "qwen3_next-sparse-step": Case(
        "qwen3_next",
        {
            **_DELTA,
            "linear_num_value_heads": 2,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
            "decoder_sparse_step": 2,
        },
        peers=(),
    ),
    "qwen3_5_text": Case("qwen3_5_text", _DENSE_DELTA),
    "qwen3_5_text-tied": Case(
        "qwen3_5_text",
        {**_DENSE_DELTA, "linear_num_value_heads": 6, "tie_word_embeddings": True},
    ),
    "qwen3_next-prediction": Case("qwen3_next", {**_DELTA, "head_dim": 32}, tensors=_prediction(4)),
    "qwen3_5_text-prediction": Case(
        "qwen3_5_text", _DENSE_DELTA, tensors=_prediction(0), saved={"mtp_num_hidden_layers": 1}
    ),
    "qwen3_5_moe_text": Case("qwen3_5_moe_text", _DELTA_3_5),
    "mamba2": Case(
        "mamba2",
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
        without=_STATE_SPACE,
    ),
    "mamba2-biases-tied": Case(
        "mamba2",
        {
            "num_heads": 16,
            "head_dim": 8,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 8,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": True,
            "time_step_limit": [0.5, 1.5],
        },
        without=_STATE_SPACE,
        peers=("mlx",),
    ),
    "mamba": Case("mamba", {"state_size": 16}, without=_STATE_SPACE),
    "mamba-biases": Case(
        "mamba",
        {"state_size": 8, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "time_step_rank": 6},
        without=_STATE_SPACE,
        peers=("mlx",),
    ),
    "falcon_mamba": Case("falcon_mamba", {"state_size": 16}, without=_STATE_SPACE),
    "granitemoehybrid": Case("granitemoehybrid", {**_GRANITE, "num_local_experts": 4}, saved=_GRANITE_SAVED),
    "granitemoehybrid-dense": Case(
        "granitemoehybrid",
        {
            **_GRANITE,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
            "tie_word_embeddings": True,
        },
        saved=_GRANITE_SAVED,
    ),
    "granitemoehybrid-rope": Case(
        "granitemoehybrid",
        {**_GRANITE, "num_local_experts": 4, "position_embedding_type": "rope"},
        saved=_GRANITE_SAVED,
        peers=("mlx",),
    ),
    "nemotron_h": Case(
        "nemotron_h",
        {**_NEMOTRON, "layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
        without=("num_hidden_layers",),
        saved={"hybrid_override_pattern": "M-*-", "num_hidden_layers": 4},
        dropped=("layers_block_type", *_NEMOTRON_EXPERTS),
    ),
    "nemotron_h-moe": Case(
        "nemotron_h",
        {
            **_NEMOTRON,
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 2.5,
        },
        without=("num_hidden_layers",),
        saved={"hybrid_override_pattern": "ME*E", "num_hidden_layers": 4},
        dropped=("layers_block_type",),
    ),
    "falcon_h1": Case(
        "falcon_h1",
        {
            **_MAMBA_HEADS,
            "mamba_d_ssm": 128,
            "head_dim": 16,
            "lm_head_multiplier": 0.5,
            "embedding_multiplier": 2.5,
            "mlp_multipliers": [0.75, 0.5],
            "key_multiplier": 0.4,
            "attention_out_multiplier": 0.8,
            "attention_in_multiplier": 1.1,
            "ssm_multipliers": [0.3, 0.25, 0.35, 0.5, 0.32],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.47,
        },
    ),
    "falcon_h1-norm": Case(
        "falcon_h1",
        {**_MAMBA_HEADS, "mamba_d_ssm": 128, "head_dim": 16, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "jamba": Case(
        "jamba",
        {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 0,
            "num_experts": 4,
            "mamba_d_state": 16,
            "mamba_dt_rank": 6,
        },
    ),
    "bamba": Case("bamba", {**_MAMBA_HEADS, "num_hidden_layers": 3, "attn_layer_indices": [1]}, peers=("mlx",)),
}
