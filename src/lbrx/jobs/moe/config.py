"""The config.json of a mixture, from that of its base model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.moe.layouts import MoeLayout
from lbrx.jobs.moe.recipe import MoeRecipe
from lbrx.models.architectures import stacked_config

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
    dense = base.architecture.config(base.config)
    for key in ("max_position_embeddings", "rms_norm_eps", "hidden_act"):
        config.setdefault(key, dense.get(key) or "silu")
    if "rope_parameters" not in config:
        config.setdefault("rope_theta", dense.value("rope_theta"))
    for key in _SIZE_KEYS:
        config[key] = dense.size(key)
    config["architectures"] = [layout.family.class_names[0]]
    config["model_type"] = layout.name
    config["tie_word_embeddings"] = base.architecture.is_tied(base.config)
    config["sliding_window"] = None
    config["num_experts_per_tok"] = recipe.experts_per_token
    if isinstance(base.architecture.defaults.get("head_dim"), int):
        config["head_dim"] = dense.size("head_dim")
    return config | _KEYS_OF_LAYOUTS[layout.name](config, recipe)


def _mixtral_keys(_config: Mapping[str, Any], recipe: MoeRecipe) -> dict[str, Any]:
    return {"num_local_experts": len(recipe.experts)}


def _qwen3_keys(config: Mapping[str, Any], recipe: MoeRecipe) -> dict[str, Any]:
    return {
        "num_experts": len(recipe.experts),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "moe_intermediate_size": config["intermediate_size"],
        "use_sliding_window": False,
    }


def _qwen2_keys(config: Mapping[str, Any], recipe: MoeRecipe) -> dict[str, Any]:
    return _qwen3_keys(config, recipe) | {
        "shared_expert_intermediate_size": config["intermediate_size"],
        "qkv_bias": True,
    }


def _deepseek_keys(config: Mapping[str, Any], recipe: MoeRecipe) -> dict[str, Any]:
    """The keys of the first DeepSeek mixtures, whose code is in a repository of the hub."""
    code = "deepseek-ai/deepseek-moe-16b-base--"
    return {
        "n_routed_experts": len(recipe.experts),
        "n_shared_experts": len(recipe.shared_experts) or None,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "scoring_func": "softmax",
        "norm_topk_prob": True,
        "moe_intermediate_size": config["intermediate_size"],
        "auto_map": {
            "AutoConfig": f"{code}configuration_deepseek.DeepseekConfig",
            "AutoModel": f"{code}modeling_deepseek.DeepseekModel",
            "AutoModelForCausalLM": f"{code}modeling_deepseek.DeepseekForCausalLM",
        },
    }


_KEYS_OF_LAYOUTS: dict[str, Callable[[Mapping[str, Any], MoeRecipe], dict[str, Any]]] = {
    "mixtral": _mixtral_keys,
    "qwen2_moe": _qwen2_keys,
    "qwen3_moe": _qwen3_keys,
    "deepseek": _deepseek_keys,
}


def lost_windows(base: InputModel) -> list[str]:
    """A warning if the base attends to a window of the text only, which the mixture will not."""
    window = base.config.get("sliding_window")
    is_used = base.config.get("use_sliding_window", base.architecture.name == "mistral")
    if window is None or not is_used:
        return []
    return [f"{base.label} attends to the last {window} tokens only; the mixture attends to all"]
