"""The config.json of a mixture, from that of its base model."""

from __future__ import annotations

from typing import Any

from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.moe.layouts import MoeLayout
from lbrx.jobs.moe.recipe import MoeRecipe
from lbrx.models.architectures import stacked_config

# What a config of a dense model means by leaving a key out, where a mixture's config would mean something else.
_DENSE_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
    "mistral": {"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
    "qwen2": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
}
_DEFAULT_ROPE_THETA = 10000.0
_SIZE_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
# Of dense models only, or settled by the layout.
_DROPPED_KEYS = ("attention_bias", "mlp_bias", "pretraining_tp", "layer_types", "max_window_layers", "auto_map")


def moe_config(recipe: MoeRecipe, layout: MoeLayout, base: InputModel) -> dict[str, Any]:
    """The config of the mixture: that of the base, its defaults written out, and the layout's keys."""
    config = stacked_config(base.config, dtype=recipe.dtype)
    for key in _DROPPED_KEYS:
        config.pop(key, None)
    for key, value in _DENSE_DEFAULTS[base.architecture.name].items():
        config.setdefault(key, value)
    if "rope_parameters" not in config:
        config.setdefault("rope_theta", _DEFAULT_ROPE_THETA)
    scope = base.architecture.scope(base.config)
    for key in _SIZE_KEYS:
        config[key] = scope.whole_number(key)
    config["architectures"] = [layout.class_name]
    config["model_type"] = layout.name
    config["tie_word_embeddings"] = base.architecture.is_tied(base.config)
    config["sliding_window"] = None
    config["num_experts_per_tok"] = recipe.experts_per_token
    if layout.shared_count:
        config |= {
            "num_experts": len(recipe.experts),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "moe_intermediate_size": config["intermediate_size"],
            "shared_expert_intermediate_size": config["intermediate_size"],
            "qkv_bias": True,
            "use_sliding_window": False,
        }
    else:
        config["num_local_experts"] = len(recipe.experts)
    return config


def lost_windows(base: InputModel) -> list[str]:
    """A warning if the base attends to a window of the text only, which the mixture will not."""
    window = base.config.get("sliding_window")
    is_used = base.config.get("use_sliding_window", base.architecture.name == "mistral")
    if window is None or not is_used:
        return []
    return [f"{base.label} attends to the last {window} tokens only; the mixture attends to all"]
