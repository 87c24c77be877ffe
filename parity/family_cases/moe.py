"""Decoders with experts."""

from __future__ import annotations

from typing import Any

from family_cases import Case

_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
_LATENT: dict[str, Any] = {
    **_ROUTED,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
}
_GLM: dict[str, Any] = {**_ROUTED, "head_dim": 16, "num_nextn_predict_layers": 0}
_SIGMOID = {"scoring_func": "sigmoid"}
_ERNIE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 2,
}
_GRANITE: dict[str, Any] = {
    **_LOCAL,
    "embedding_multiplier": 2.0,
    "logits_scaling": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}
_LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192,
}

CASES: dict[str, Case] = {
    "mixtral": Case("mixtral", {**_LOCAL, "sliding_window": None}),
    "qwen2_moe": Case("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen2_moe-sparse-step": Case(
        "qwen2_moe",
        {**_EXPERTS, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2, "norm_topk_prob": True},
    ),
    "qwen3_moe": Case("qwen3_moe", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "olmoe": Case("olmoe", {**_EXPERTS, "num_key_value_heads": 4}),
    "olmoe-clip": Case("olmoe", {**_EXPERTS, "num_key_value_heads": 4, "clip_qkv": 0.5, "norm_topk_prob": True}),
    "granitemoe": Case("granitemoe", _GRANITE),
    "granitemoeshared": Case("granitemoeshared", {**_GRANITE, "shared_intermediate_size": 48}),
    "phimoe": Case("phimoe", {**_LOCAL, "attention_bias": True, "lm_head_bias": True}),
    "phimoe-hub": Case(
        "phimoe",
        {**_LOCAL, "attention_bias": True, "lm_head_bias": True},
        saved={"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": 64},
    ),
    "deepseek_v2": Case("deepseek_v2", {**_LATENT, "topk_method": "greedy", "routed_scaling_factor": 1.5}),
    "deepseek_v2-yarn": Case(
        "deepseek_v2", {**_LATENT, "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}
    ),
    "deepseek_v2-groups": Case(
        "deepseek_v2", {**_LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    ),
    "deepseek_v2-no-query-rank": Case("deepseek_v2", {**_LATENT, "q_lora_rank": None}),
    "deepseek_v3": Case(
        "deepseek_v3",
        {**_LATENT, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0},
        saved=_SIGMOID,
    ),
    "deepseek_v3-yarn": Case(
        "deepseek_v3",
        {**_LATENT, "n_group": 1, "topk_group": 1, "rope_parameters": _YARN, "num_nextn_predict_layers": 0},
        saved=_SIGMOID,
    ),
    "gpt_oss": Case("gpt_oss", {**_LOCAL, "head_dim": 16, "sliding_window": 8, "intermediate_size": 64}),
    "glm4_moe": Case("glm4_moe", {**_GLM, "use_qk_norm": True, "attention_bias": True}),
    "glm4_moe-groups": Case("glm4_moe", {**_GLM, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
    "llama4_text": Case("llama4_text", _LLAMA4, peers=("llama.cpp",)),
    "llama4_text-chunks": Case(
        "llama4_text", {**_LLAMA4, "attention_chunk_size": 8, "floor_scale": 4}, peers=("llama.cpp",)
    ),
    "ernie4_5_moe": Case("ernie4_5_moe", _ERNIE),
    "dots1": Case(
        "dots1", {**_ROUTED, "head_dim": 16, "num_key_value_heads": 4, "norm_topk_prob": True}, saved=_SIGMOID
    ),
    "minimax": Case("minimax", {**_LOCAL, "head_dim": 16, "block_size": 16}, peers=("llama.cpp",)),
    "minimax_m2": Case(
        "minimax_m2",
        {**_LOCAL, "head_dim": 16, "rotary_dim": 8},
        saved={**_SIGMOID, "shared_intermediate_size": 0},
    ),
    "hunyuan_v1_moe": Case("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}, peers=("llama.cpp",)),
    "afmoe": Case(
        "afmoe",
        {
            **_EXPERTS,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
            "sliding_window": 8,
            "mup_enabled": True,
        },
        saved={"score_func": "sigmoid", "route_norm": True},
    ),
}
