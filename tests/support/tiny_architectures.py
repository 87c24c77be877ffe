"""A tiny config for every architecture, and the names that its tensors have, written out by hand.

The names are those of checkpoints on the Hub: ``{i}`` stands for the layer's number.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Tiny(NamedTuple):
    config: dict[str, Any]
    pre: list[str]
    layer: list[str]
    post: list[str]

    def names(self) -> list[str]:
        """All names, layer by layer."""
        layer_count = self.config.get("num_hidden_layers") or self.config["n_layer"]
        layers = [name.replace("{i}", str(i)) for i in range(layer_count) for name in self.layer]
        return [*self.pre, *layers, *self.post]


def _decoder(model_type: str, class_name: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": False,
        **more,
    }


def _layer(*names: str) -> list[str]:
    return [f"model.layers.{{i}}.{name}" for name in names]


QKVO = [f"self_attn.{x}_proj.weight" for x in "qkvo"]
QKV_BIAS = [f"self_attn.{x}_proj.bias" for x in "qkv"]
QK_NORM = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
MLP = ["mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"]
NORMS = ["input_layernorm.weight", "post_attention_layernorm.weight"]
GEMMA_NORMS = [*NORMS, "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"]
MOE = [
    "mlp.gate.weight",
    *(f"mlp.experts.{e}.{x}_proj.weight" for e in (0, 1) for x in ("gate", "up", "down")),
]
SHARED = [
    "mlp.shared_expert.gate_proj.weight",
    "mlp.shared_expert.up_proj.weight",
    "mlp.shared_expert.down_proj.weight",
    "mlp.shared_expert_gate.weight",
]
EMBED = ["model.embed_tokens.weight"]
HEAD = ["model.norm.weight", "lm_head.weight"]
EXPERTS = {"num_experts": 2, "moe_intermediate_size": 24}

TINY: dict[str, Tiny] = {
    "llama": Tiny(_decoder("llama", "LlamaForCausalLM"), EMBED, _layer(*NORMS, *QKVO, *MLP), HEAD),
    "mistral": Tiny(_decoder("mistral", "MistralForCausalLM"), EMBED, _layer(*NORMS, *QKVO, *MLP), HEAD),
    "mixtral": Tiny(
        _decoder("mixtral", "MixtralForCausalLM", num_local_experts=2),
        EMBED,
        _layer(
            *NORMS,
            *QKVO,
            "block_sparse_moe.gate.weight",
            *(f"block_sparse_moe.experts.{e}.{w}.weight" for e in (0, 1) for w in ("w1", "w2", "w3")),
        ),
        HEAD,
    ),
    "qwen2": Tiny(_decoder("qwen2", "Qwen2ForCausalLM"), EMBED, _layer(*NORMS, *QKVO, *QKV_BIAS, *MLP), HEAD),
    "qwen2_moe": Tiny(
        _decoder("qwen2_moe", "Qwen2MoeForCausalLM", shared_expert_intermediate_size=40, **EXPERTS),
        EMBED,
        _layer(*NORMS, *QKVO, *QKV_BIAS, *MOE, *SHARED),
        HEAD,
    ),
    "qwen3": Tiny(_decoder("qwen3", "Qwen3ForCausalLM"), EMBED, _layer(*NORMS, *QKVO, *QK_NORM, *MLP), HEAD),
    "qwen3_moe": Tiny(
        _decoder("qwen3_moe", "Qwen3MoeForCausalLM", **EXPERTS),
        EMBED,
        _layer(*NORMS, *QKVO, *QK_NORM, *MOE),
        HEAD,
    ),
    "gemma": Tiny(
        _decoder("gemma", "GemmaForCausalLM", tie_word_embeddings=True),
        EMBED,
        _layer(*NORMS, *QKVO, *MLP),
        HEAD[:1],
    ),
    "gemma2": Tiny(
        _decoder("gemma2", "Gemma2ForCausalLM", tie_word_embeddings=True),
        EMBED,
        _layer(*GEMMA_NORMS, *QKVO, *MLP),
        HEAD[:1],
    ),
    "gemma3": Tiny(
        _decoder("gemma3_text", "Gemma3ForCausalLM", tie_word_embeddings=True),
        EMBED,
        _layer(*GEMMA_NORMS, *QKVO, *QK_NORM, *MLP),
        HEAD[:1],
    ),
    "phi3": Tiny(
        _decoder("phi3", "Phi3ForCausalLM"),
        EMBED,
        _layer(
            *NORMS,
            "self_attn.qkv_proj.weight",
            "self_attn.o_proj.weight",
            "mlp.gate_up_proj.weight",
            "mlp.down_proj.weight",
        ),
        HEAD,
    ),
    "olmo2": Tiny(
        _decoder("olmo2", "Olmo2ForCausalLM"),
        EMBED,
        _layer(*QKVO, *QK_NORM, *MLP, "post_attention_layernorm.weight", "post_feedforward_layernorm.weight"),
        HEAD,
    ),
    "stablelm": Tiny(
        _decoder("stablelm", "StableLmForCausalLM", use_qkv_bias=True, qk_layernorm=True),
        EMBED,
        _layer(
            *NORMS,
            "input_layernorm.bias",
            "post_attention_layernorm.bias",
            *QKVO,
            *QKV_BIAS,
            *(f"self_attn.q_layernorm.norms.{head}.weight" for head in range(4)),
            *(f"self_attn.k_layernorm.norms.{head}.weight" for head in range(2)),
            *MLP,
        ),
        ["model.norm.weight", "model.norm.bias", "lm_head.weight"],
    ),
    "gpt2": Tiny(
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": 64,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 3,
            "n_positions": 16,
        },
        ["transformer.wte.weight", "transformer.wpe.weight"],
        [
            f"transformer.h.{{i}}.{module}.{part}"
            for module in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
            for part in ("weight", "bias")
        ],
        ["transformer.ln_f.weight", "transformer.ln_f.bias"],
    ),
    "gpt_neox": Tiny(
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
        },
        ["gpt_neox.embed_in.weight"],
        [
            f"gpt_neox.layers.{{i}}.{module}.{part}"
            for module in (
                "input_layernorm",
                "post_attention_layernorm",
                "attention.query_key_value",
                "attention.dense",
                "mlp.dense_h_to_4h",
                "mlp.dense_4h_to_h",
            )
            for part in ("weight", "bias")
        ],
        ["gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias", "embed_out.weight"],
    ),
    "falcon": Tiny(
        {
            "architectures": ["FalconForCausalLM"],
            "model_type": "falcon",
            "vocab_size": 64,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "num_hidden_layers": 3,
            "new_decoder_architecture": True,
            "tie_word_embeddings": False,
        },
        ["transformer.word_embeddings.weight"],
        [
            f"transformer.h.{{i}}.{name}"
            for name in (
                "ln_attn.weight",
                "ln_attn.bias",
                "ln_mlp.weight",
                "ln_mlp.bias",
                "self_attention.query_key_value.weight",
                "self_attention.dense.weight",
                "mlp.dense_h_to_4h.weight",
                "mlp.dense_4h_to_h.weight",
            )
        ],
        ["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"],
    ),
}
