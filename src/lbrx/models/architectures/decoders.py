"""The known architectures that use the names which Llama introduced.

The last arguments of each are the values that a config.json means by leaving a key out; the nested
``text_config`` of multi-modal models leaves out much.
"""

from __future__ import annotations

from typing import Any

from lbrx.models.architectures.architecture import Architecture, LayerRule, Naming, Weight
from lbrx.models.architectures.builders import (
    ALWAYS,
    HEAD_DIM,
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    attention,
    buffers,
    embedding,
    experts,
    gated_mlp,
    in_layer,
    language_head,
    linear,
    norm,
    stacked,
)

# Text-only, then the language model inside of multi-modal checkpoints (old and new), then without a head.
DECODER_NAMINGS = (
    Naming("model."),
    Naming("language_model.model.", "language_model."),
    Naming("model.language_model."),
    Naming(""),
)
EMBED_TOKENS = embedding("{base}embed_tokens.weight")
TWO_NORMS = (*norm("input_layernorm"), *norm("post_attention_layernorm"))
FOUR_NORMS = (*TWO_NORMS, *norm("pre_feedforward_layernorm"), *norm("post_feedforward_layernorm"))
HEAD_NORMS = (*norm("self_attn.q_norm", "head_dim"), *norm("self_attn.k_norm", "head_dim"))


def decoder(
    name: str,
    class_names: tuple[str, ...],
    layer: tuple[tuple[Weight, ...], ...],
    sizes: tuple[int, int, int, int, int],
    *,
    model_types: tuple[str, ...] = (),
    final_norm_bias: bool = False,
    tied_by_default: bool = False,
    layer_rules: tuple[LayerRule, ...] = (),
    **defaults: Any,
) -> Architecture:
    """An architecture with the names that Llama introduced.

    ``sizes`` are the defaults of vocab_size, hidden_size, intermediate_size, num_hidden_layers and
    num_attention_heads.
    """
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    common = {"num_key_value_heads": "num_attention_heads", "head_dim": HEAD_DIM, "attention_bias": False}
    return Architecture(
        name=name,
        model_types=(name, *model_types),
        class_names=class_names,
        pre=(EMBED_TOKENS,),
        layer=in_layer(*layer),
        post=(
            *norm("{base}norm", bias=final_norm_bias),
            language_head("{head}lm_head.weight", EMBED_TOKENS),
        ),
        namings=DECODER_NAMINGS,
        tied_by_default=tied_by_default,
        defaults={**common, **dict(zip(keys, sizes, strict=True)), **defaults},
        layer_rules=layer_rules,
    )


LLAMA = decoder(
    "llama",
    ("LlamaForCausalLM", "LLaMAForCausalLM"),
    (TWO_NORMS, attention(output_bias="attention_bias"), gated_mlp(bias="mlp_bias")),
    (32000, 4096, 11008, 32, 32),
    mlp_bias=False,
)

MISTRAL = decoder(
    "mistral",
    ("MistralForCausalLM",),
    (TWO_NORMS, attention(bias=None), gated_mlp()),
    (32000, 4096, 14336, 32, 32),
    num_key_value_heads=8,
)

MIXTRAL = decoder(
    "mixtral",
    ("MixtralForCausalLM",),
    (
        TWO_NORMS,
        attention(bias=None),
        linear("block_sparse_moe.gate", "num_local_experts", "hidden_size"),
        experts(
            "block_sparse_moe.experts",
            [
                (
                    matrix,
                    rows,
                    columns,
                    (stacked(f"block_sparse_moe.switch_mlp.{mlx}.weight", "num_local_experts", rows, columns),),
                )
                for matrix, mlx, rows, columns in (
                    ("w1", "gate_proj", "intermediate_size", "hidden_size"),
                    ("w2", "down_proj", "hidden_size", "intermediate_size"),
                    ("w3", "up_proj", "intermediate_size", "hidden_size"),
                )
            ],
            "num_local_experts",
        ),
    ),
    (32000, 4096, 14336, 32, 32),
    num_key_value_heads=8,
    num_local_experts=8,
)

SLIDING_AFTER = LayerRule(
    "layer_types",
    "'sliding_attention' if use_sliding_window and layer >= max_window_layers else 'full_attention'",
)
QWEN_WINDOW: dict[str, Any] = {"use_sliding_window": False, "max_window_layers": 28}

QWEN2 = decoder(
    "qwen2",
    ("Qwen2ForCausalLM",),
    (TWO_NORMS, attention(bias=ALWAYS), gated_mlp()),
    (151936, 4096, 22016, 32, 32),
    num_key_value_heads=32,
    layer_rules=(SLIDING_AFTER,),
    **QWEN_WINDOW,
)

QWEN3 = decoder(
    "qwen3",
    ("Qwen3ForCausalLM",),
    (TWO_NORMS, attention(output_bias="attention_bias"), HEAD_NORMS, gated_mlp()),
    (151936, 4096, 22016, 32, 32),
    num_key_value_heads=32,
    head_dim=128,
    layer_rules=(SLIDING_AFTER,),
    **QWEN_WINDOW,
)

IS_DENSE = "layer in mlp_only_layers or num_experts == 0 or (layer + 1) % decoder_sparse_step != 0"
IS_SPARSE = f"not ({IS_DENSE})"
DENSE_LAYERS = LayerRule("mlp_only_layers", IS_DENSE, is_index_list=True, resets=(("decoder_sparse_step", 1),))
QWEN_GATE_UP = stacked("mlp.experts.gate_up_proj", "num_experts", "2 * moe_intermediate_size", "hidden_size")
QWEN_DOWN = stacked("mlp.experts.down_proj", "num_experts", "hidden_size", "moe_intermediate_size")
QWEN_EXPERTS = (
    *linear("mlp.gate", "num_experts", "hidden_size", when=IS_SPARSE),
    *experts(
        "mlp.experts",
        [
            (matrix, rows, columns, (fused, stacked(f"mlp.switch_mlp.{matrix}.weight", "num_experts", rows, columns)))
            for matrix, rows, columns, fused in (
                ("gate_proj", "moe_intermediate_size", "hidden_size", QWEN_GATE_UP),
                ("up_proj", "moe_intermediate_size", "hidden_size", QWEN_GATE_UP),
                ("down_proj", "hidden_size", "moe_intermediate_size", QWEN_DOWN),
            )
        ],
        "num_experts",
        IS_SPARSE,
    ),
    *gated_mlp(when=IS_DENSE),
)
QWEN_MOE: dict[str, Any] = {"mlp_only_layers": (), "decoder_sparse_step": 1}

QWEN2_MOE = decoder(
    "qwen2_moe",
    ("Qwen2MoeForCausalLM",),
    (
        TWO_NORMS,
        attention(bias="qkv_bias"),
        QWEN_EXPERTS,
        gated_mlp("mlp.shared_expert", "shared_expert_intermediate_size", when=IS_SPARSE),
        linear("mlp.shared_expert_gate", 1, "hidden_size", when=IS_SPARSE),
    ),
    (151936, 2048, 5632, 24, 16),
    num_key_value_heads=16,
    qkv_bias=True,
    num_experts="num_local_experts",
    num_local_experts=60,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    layer_rules=(DENSE_LAYERS,),
    **QWEN_MOE,
)

QWEN3_MOE = decoder(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM",),
    (TWO_NORMS, attention(output_bias="attention_bias"), HEAD_NORMS, QWEN_EXPERTS),
    (151936, 2048, 6144, 24, 32),
    num_key_value_heads=4,
    num_experts="num_local_experts",
    num_local_experts=128,
    moe_intermediate_size=768,
    layer_rules=(DENSE_LAYERS,),
    **QWEN_MOE,
)

GEMMA = decoder(
    "gemma",
    ("GemmaForCausalLM",),
    (TWO_NORMS, attention(output_bias="attention_bias"), gated_mlp()),
    (256000, 3072, 24576, 28, 16),
    num_key_value_heads=16,
    head_dim=256,
    tied_by_default=True,
)


def sliding_except_every(period: str) -> LayerRule:
    """Sliding attention in all layers but every so-many-th."""
    return LayerRule("layer_types", f"'sliding_attention' if (layer + 1) % {period} else 'full_attention'")


GEMMA2 = decoder(
    "gemma2",
    ("Gemma2ForCausalLM",),
    (FOUR_NORMS, attention(output_bias="attention_bias"), gated_mlp()),
    (256000, 2304, 9216, 26, 8),
    num_key_value_heads=4,
    head_dim=256,
    tied_by_default=True,
    layer_rules=(sliding_except_every("2"),),
)

GEMMA3 = decoder(
    "gemma3",
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    (FOUR_NORMS, attention(output_bias="attention_bias"), HEAD_NORMS, gated_mlp()),
    (262208, 2304, 9216, 26, 8),
    model_types=("gemma3_text",),
    num_key_value_heads=4,
    head_dim=256,
    tied_by_default=True,
    sliding_window_pattern="_sliding_window_pattern",
    _sliding_window_pattern=6,
    layer_rules=(sliding_except_every("sliding_window_pattern"),),
)

PHI3 = decoder(
    "phi3",
    ("Phi3ForCausalLM",),
    (
        TWO_NORMS,
        linear("self_attn.qkv_proj", f"{QUERY_ROWS} + 2 * {KEY_VALUE_ROWS}", "hidden_size"),
        linear("self_attn.o_proj", "hidden_size", QUERY_ROWS),
        buffers("self_attn.rotary_emb.inv_freq"),
        linear("mlp.gate_up_proj", "2 * intermediate_size", "hidden_size"),
        linear("mlp.down_proj", "hidden_size", "intermediate_size"),
    ),
    (32064, 3072, 8192, 32, 32),
)

STABLELM = decoder(
    "stablelm",
    ("StableLmForCausalLM", "StableLMEpochForCausalLM"),
    (
        norm("input_layernorm", bias=True),
        norm("post_attention_layernorm", bias=True, when="not use_parallel_residual"),
        attention(bias="use_qkv_bias"),
        tuple(
            Weight(f"self_attn.{norms}.norms.{{item}}.weight", ("head_dim",), items=count, needed_when="qk_layernorm")
            for norms, count in (("q_layernorm", "num_attention_heads"), ("k_layernorm", "num_key_value_heads"))
        ),
        gated_mlp(),
    ),
    (50304, 2560, 6912, 32, 32),
    model_types=("stablelm_epoch",),
    final_norm_bias=True,
    num_key_value_heads=32,
    use_qkv_bias=False,
    qk_layernorm=False,
    use_parallel_residual=False,
)
