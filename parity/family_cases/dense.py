"""Decoders without experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from family_cases import SMALL, Case


def _rope(rope_type: str, theta: float = 10_000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **more}}


_GEMMA: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
_GEMMA4: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 8}
_LONG_FACTORS = {
    "long_factor": [1 + 0.3 * number for number in range(8)],
    "short_factor": [1 + 0.1 * number for number in range(8)],
}

_NAMES_OF_LLAMA = {
    "model.embed_tokens.weight": (64, 64),
    "model.norm.weight": (64,),
    "lm_head.weight": (64, 64),
    "model.layers.{}.input_layernorm.weight": (64,),
    "model.layers.{}.post_attention_layernorm.weight": (64,),
    "model.layers.{}.self_attn.o_proj.weight": (64, 64),
    "model.layers.{}.mlp.gate_proj.weight": (96, 64),
    "model.layers.{}.mlp.up_proj.weight": (96, 64),
    "model.layers.{}.mlp.down_proj.weight": (64, 96),
}
_BAICHUAN = {"rms_norm_eps": 1e-6, "num_key_value_heads": None}
_BAICHUAN_TENSORS = {**_NAMES_OF_LLAMA, "model.layers.{}.self_attn.W_pack.weight": (192, 64)}
_MINICPM = {
    "rms_norm_eps": 1e-5,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 16,
    "tie_word_embeddings": False,
}
_MINICPM_TENSORS = {
    **_NAMES_OF_LLAMA,
    "model.layers.{}.self_attn.q_proj.weight": (64, 64),
    "model.layers.{}.self_attn.k_proj.weight": (32, 64),
    "model.layers.{}.self_attn.v_proj.weight": (32, 64),
}
_INTERNLM_TENSORS = {
    "model.tok_embeddings.weight": (64, 64),
    "model.norm.weight": (64,),
    "output.weight": (64, 64),
    "model.layers.{}.attention_norm.weight": (64,),
    "model.layers.{}.ffn_norm.weight": (64,),
    "model.layers.{}.attention.wqkv.weight": (128, 64),
    "model.layers.{}.attention.wo.weight": (64, 64),
    "model.layers.{}.feed_forward.w1.weight": (96, 64),
    "model.layers.{}.feed_forward.w3.weight": (96, 64),
    "model.layers.{}.feed_forward.w2.weight": (64, 96),
}
_EXAONE = {"layer_norm_epsilon": 1e-5, "activation_function": "silu", "num_layers": 2, "num_hidden_layers": None}
_EXAONE_TENSORS = {
    "transformer.wte.weight": (64, 64),
    "transformer.ln_f.weight": (64,),
    "lm_head.weight": (64, 64),
    "transformer.h.{}.ln_1.weight": (64,),
    "transformer.h.{}.ln_2.weight": (64,),
    "transformer.h.{}.attn.attention.q_proj.weight": (64, 64),
    "transformer.h.{}.attn.attention.k_proj.weight": (32, 64),
    "transformer.h.{}.attn.attention.v_proj.weight": (32, 64),
    "transformer.h.{}.attn.attention.out_proj.weight": (64, 64),
    "transformer.h.{}.mlp.c_fc_0.weight": (96, 64),
    "transformer.h.{}.mlp.c_fc_1.weight": (96, 64),
    "transformer.h.{}.mlp.c_proj.weight": (64, 96),
}
_QWEN = {
    "intermediate_size": 192,
    "kv_channels": 16,
    "layer_norm_epsilon": 1e-6,
    "seq_length": 64,
    "num_key_value_heads": None,
    "tie_word_embeddings": False,
}
_QWEN_TENSORS = {
    "transformer.wte.weight": (64, 64),
    "transformer.ln_f.weight": (64,),
    "lm_head.weight": (64, 64),
    "transformer.h.{}.ln_1.weight": (64,),
    "transformer.h.{}.ln_2.weight": (64,),
    "transformer.h.{}.attn.c_attn.weight": (192, 64),
    "transformer.h.{}.attn.c_attn.bias": (192,),
    "transformer.h.{}.attn.c_proj.weight": (64, 64),
    "transformer.h.{}.mlp.w1.weight": (96, 64),
    "transformer.h.{}.mlp.w2.weight": (96, 64),
    "transformer.h.{}.mlp.c_proj.weight": (64, 96),
}


def _remote(
    model_type: str, class_name: str, config: dict[str, Any], tensors: dict[str, tuple[int, ...]], **forgotten: float
) -> Case:
    """A family that transformers does not have: the names of its tensors, ``{}`` for the two layers."""
    whole = {"model_type": model_type, "architectures": [class_name], **SMALL, "dtype": "float32", **config}
    shapes = {name.format(layer): shape for name, shape in tensors.items() for layer in range(2)}
    kept = {key: value for key, value in whole.items() if value is not None}
    return Case(model_type, kept, auto=None, tensors=shapes, forgotten=forgotten)


_NO_SIZES = ("intermediate_size", "num_key_value_heads")

CASES: dict[str, Case] = {
    "llama": Case("llama"),
    "llama-tied-biases": Case("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": Case("llama", {"head_dim": 32}),
    "llama-rope-linear": Case("llama", _rope("linear", factor=4.0)),
    "llama-rope-llama3": Case(
        "llama",
        _rope(
            "llama3",
            5e5,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama-rope-yarn": Case("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "mistral": Case("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral-window": Case("mistral", {"sliding_window": 8, "head_dim": 16}),
    "qwen2": Case("qwen2"),
    "qwen2-tied-window": Case(
        "qwen2",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": Case("qwen3", {"head_dim": 32}),
    "gemma": Case("gemma", {"head_dim": 32}),
    "gemma2": Case("gemma2", {**_GEMMA, "num_hidden_layers": 3}),
    "gemma3_text": Case("gemma3_text", {**_GEMMA, "num_hidden_layers": 7}),
    "gemma3_text-rope-linear": Case(
        "gemma3_text",
        {
            **_GEMMA,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
    "olmo2": Case("olmo2"),
    "olmo2-tied": Case("olmo2", {"tie_word_embeddings": True}),
    "phi3": Case("phi3", {"original_max_position_embeddings": 64, "sliding_window": None}),
    "phi3-longrope": Case(
        "phi3",
        {
            "original_max_position_embeddings": 512,
            "max_position_embeddings": 1024,
            **_rope("longrope", original_max_position_embeddings=512, **_LONG_FACTORS),
        },
    ),
    "phi3-half-rotated": Case(
        "phi3", {"original_max_position_embeddings": 64, **_rope("default", partial_rotary_factor=0.5)}
    ),
    "gpt2": Case("gpt2", {"n_ctx": 64}, without=("intermediate_size", "num_key_value_heads")),
    "gpt_neox": Case(
        "gpt_neox",
        {"rotary_pct": 0.5, "intermediate_size": 256},
        without=("num_key_value_heads",),
        saved={"rotary_pct": 0.5},
    ),
    "gpt_neox-sequential": Case(
        "gpt_neox",
        {"use_parallel_residual": False, "attention_bias": False},
        without=("num_key_value_heads",),
        saved={"rotary_pct": 0.25},
    ),
    "falcon": Case(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "tie_word_embeddings": False},
        without=("num_key_value_heads", "intermediate_size"),
    ),
    "falcon-7b": Case(
        "falcon",
        {"multi_query": True, "num_kv_heads": 1, "parallel_attn": True, "bias": False, "alibi": False},
        without=("num_key_value_heads", "intermediate_size"),
    ),
    "stablelm": Case("stablelm", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm-parallel-qk-norm": Case(
        "stablelm",
        {"use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.25},
        peers=("mlx",),
    ),
    "llama-rope-dynamic": Case("llama", _rope("dynamic", factor=2.0), peers=()),
    "llama-rope-longrope": Case(
        "llama",
        {"max_position_embeddings": 64, **_rope("longrope", original_max_position_embeddings=32, **_LONG_FACTORS)},
        peers=(),
    ),
    "smollm3": Case("smollm3", {"num_hidden_layers": 4}),
    "smollm3-window": Case(
        "smollm3",
        {"num_hidden_layers": 3, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 8},
        peers=(),
    ),
    "seed_oss": Case("seed_oss", {"head_dim": 16}),
    "arcee": Case("arcee"),
    "olmo": Case("olmo", {"clip_qkv": 1.5}, peers=("llama.cpp",)),
    "olmo-no-clip": Case("olmo", peers=("llama.cpp",)),
    "olmo3": Case("olmo3", {"num_hidden_layers": 4, "sliding_window": 8}),
    "cohere": Case("cohere"),
    "cohere-qk-norm": Case("cohere", {"use_qk_norm": True}),
    "cohere2": Case(
        "cohere2", {"num_hidden_layers": 4, "sliding_window": 8, "head_dim": 16}, saved={"rotary_pct": 1.0}
    ),
    "phi": Case("phi", {"intermediate_size": 256, "num_key_value_heads": 4}),
    "phi-qk-norm": Case("phi", {"qk_layernorm": True}, peers=()),
    "starcoder2": Case("starcoder2"),
    "starcoder2-window": Case("starcoder2", {"sliding_window": 8}, peers=("llama.cpp",)),
    "starcoder2-no-biases": Case("starcoder2", {"use_bias": False}, peers=()),
    "granite": Case(
        "granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.125,
        },
    ),
    "exaone4": Case("exaone4", {"num_hidden_layers": 4, "sliding_window": 8}),
    "exaone4-full": Case("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "glm": Case("glm", {"head_dim": 16, "rms_norm_eps": 1e-5}),
    "glm4": Case("glm4", {"head_dim": 16}),
    "nemotron": Case("nemotron", {"head_dim": 16}),
    "jais2": Case("jais2", {"head_dim": 16}),
    "ernie4_5": Case("ernie4_5", {"head_dim": 16}),
    "ernie4_5-biases": Case("ernie4_5", {"head_dim": 16, "use_bias": True}),
    "helium": Case("helium", {"head_dim": 16}),
    "hunyuan_v1_dense": Case("hunyuan_v1_dense", {"head_dim": 16}),
    "hunyuan_v1_dense-alpha": Case(
        "hunyuan_v1_dense",
        {"head_dim": 16, "max_position_embeddings": 32768, **_rope("dynamic", alpha=1000.0, factor=1.0)},
    ),
    "gpt2-scales": Case(
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "n_ctx": 64, "n_inner": 80},
        without=("intermediate_size", "num_key_value_heads"),
        peers=(),
    ),
    "gpt_bigcode": Case(
        "gpt_bigcode",
        {"attention_softmax_in_fp32": False},
        without=("intermediate_size", "num_key_value_heads"),
    ),
    "gpt_bigcode-heads": Case(
        "gpt_bigcode", {"multi_query": False}, without=("intermediate_size", "num_key_value_heads"), peers=()
    ),
    "gptj": Case("gptj", {"rotary_dim": 8}, without=("intermediate_size", "num_key_value_heads"), peers=("mlx",)),
    "opt": Case("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}, without=_NO_SIZES, peers=()),
    "opt-no-biases": Case(
        "opt",
        {"ffn_dim": 96, "word_embed_proj_dim": 64, "enable_bias": False, "activation_function": "gelu"},
        without=_NO_SIZES,
        peers=(),
    ),
    "biogpt": Case("biogpt", without=("num_key_value_heads",), peers=()),
    "bloom": Case("bloom", {"num_attention_heads": 4}, without=(*_NO_SIZES, "max_position_embeddings")),
    "bloom-six-heads": Case(
        "bloom",
        {"num_attention_heads": 6, "hidden_size": 48},
        without=(*_NO_SIZES, "max_position_embeddings"),
        peers=("llama.cpp",),
    ),
    "falcon-rw": Case(
        "falcon",
        {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
        without=_NO_SIZES,
        peers=(),
        attention="sdpa",  # eager attention of transformers 5 adds the slopes twice
    ),
    "falcon-one-norm": Case(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        without=_NO_SIZES,
        peers=("llama.cpp",),
    ),
    "stablelm-qk-norm": Case("stablelm", {"qk_layernorm": True, "partial_rotary_factor": 0.25}, peers=("mlx",)),
    "vaultgemma": Case("vaultgemma", {**_GEMMA, "num_hidden_layers": 3}, peers=()),
    "ministral3": Case(
        "ministral3",
        {
            "head_dim": 16,
            **_rope(
                "yarn",
                1e6,
                factor=4.0,
                original_max_position_embeddings=16,
                max_position_embeddings=64,
                beta_fast=32.0,
                beta_slow=1.0,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.25,
            ),
        },
    ),
    "exaone": _remote(
        "exaone", "ExaoneForCausalLM", _EXAONE, _EXAONE_TENSORS, **{"exaone.attention.layer_norm_rms_epsilon": 1e-5}
    ),
    "internlm2": _remote(
        "internlm2", "InternLM2ForCausalLM", {"rms_norm_eps": 1e-5, "bias": False, "rope_theta": 1e6}, _INTERNLM_TENSORS
    ),
    # llama.cpp has positions only with 32 or 40 layers.
    "baichuan": replace(
        _remote("baichuan", "BaichuanForCausalLM", _BAICHUAN, _BAICHUAN_TENSORS),
        packed={"W_pack": ("q_proj", "k_proj", "v_proj")},
    ),
    "minicpm": _remote("minicpm", "MiniCPMForCausalLM", _MINICPM, _MINICPM_TENSORS),
    "qwen": _remote("qwen", "QWenLMHeadModel", _QWEN, _QWEN_TENSORS, **{"qwen.attention.layer_norm_rms_epsilon": 1e-6}),
    "gemma4": Case(
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 30.0,
        },
        saved={"global_head_dim": 32, "num_global_key_value_heads": 1},
    ),
    # The logits of llama.cpp differ by 3 %, those of mlx_lm do not.
    "gemma4-inputs": Case(
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
        saved={"global_head_dim": 32},
        peers=("converter", "mlx"),
    ),
}
