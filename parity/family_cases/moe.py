"""Decoders with experts."""

from __future__ import annotations

from typing import Any

from family_cases import Case

_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

CASES: dict[str, Case] = {
    "mixtral": Case("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2_moe": Case("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen2_moe-sparse-step": Case(
        "qwen2_moe",
        {**_EXPERTS, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2, "norm_topk_prob": True},
    ),
    "qwen3_moe": Case("qwen3_moe", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
}
