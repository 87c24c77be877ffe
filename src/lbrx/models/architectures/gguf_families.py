"""The model families that exist both as Hugging Face directories and as GGUF files: their tensors as data.

A rule pairs the name of a tensor in one format with its name in the other. Shapes are those of the Hugging Face
tensor, written with the names of ``lbrx.models.architectures.dimensions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.models.architectures.scope import text_section
from lbrx.models.architectures.value_changes import HALVES_TO_PAIRS_KEY, HALVES_TO_PAIRS_QUERY, SHIFTED, Change


@dataclass(frozen=True, slots=True)
class Rule:
    """A tensor of a family: ``{layer}`` in its names is a number, and so is ``{expert}`` in its Hugging Face name.

    A rule with ``{expert}`` names as many Hugging Face tensors as there are experts; GGUF has them as one stack.

    >>> rule = Rule("layers.{layer}.experts.{expert}.w1.weight", "blk.{layer}.ffn_gate_exps.weight", ("one", "one"))
    >>> rule.is_stack, rule.is_per_layer, rule.is_always_f32
    (True, True, False)
    """

    hf: str
    gguf: str
    shape: tuple[str, ...]
    change: Change | None = None
    is_required: bool = True

    @property
    def is_stack(self) -> bool:
        return "{expert}" in self.hf

    @property
    def is_per_layer(self) -> bool:
        return "{layer}" in self.hf

    @property
    def is_always_f32(self) -> bool:
        """Whether llama.cpp computes with this tensor in f32 only: vectors, norms and routers."""
        return len(self.shape) < 2 or self.gguf.endswith("_norm.weight") or "ffn_gate_inp" in self.gguf


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type`` of Hugging Face and what llama.cpp calls it.

    ``defaults`` are what transformers assumes where a config.json is silent. ``llama_cpp_period`` is the period of
    layers with full attention among those with a sliding window, None where there is no window.
    """

    model_type: str
    class_name: str
    architecture: str  # of GGUF
    rules: tuple[Rule, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rope_types: tuple[str, ...] = ("default", "linear", "yarn")
    llama_cpp_period: int | None = None
    has_output_when_tied: bool = False  # llama.cpp wants the head even if it is the embedding
    never_has_output: bool = False

    @property
    def is_mixture(self) -> bool:
        return any(rule.is_stack for rule in self.rules)

    @property
    def is_gemma(self) -> bool:
        return self.architecture.startswith("gemma")


def _layer(hf: str, gguf: str, *shape: str, change: Change | None = None, required: bool = True) -> Rule:
    return Rule("model.layers.{layer}." + hf, "blk.{layer}." + gguf, shape, change, required)


def _before(change: Change | None = None) -> tuple[Rule, ...]:
    return (
        Rule("model.embed_tokens.weight", "token_embd.weight", ("vocab", "hidden")),
        Rule("model.norm.weight", "output_norm.weight", ("hidden",), change),
        Rule("lm_head.weight", "output.weight", ("vocab", "hidden"), is_required=False),
    )


def _attention(*, is_paired: bool, has_bias: bool = False) -> tuple[Rule, ...]:
    """The projections of attention. With ``is_paired`` llama.cpp rotates neighbours, not halves, of each head."""
    query, key = (HALVES_TO_PAIRS_QUERY, HALVES_TO_PAIRS_KEY) if is_paired else (None, None)
    return (
        _layer("self_attn.q_proj.weight", "attn_q.weight", "query", "hidden", change=query),
        _layer("self_attn.k_proj.weight", "attn_k.weight", "key", "hidden", change=key),
        _layer("self_attn.v_proj.weight", "attn_v.weight", "key", "hidden"),
        _layer("self_attn.o_proj.weight", "attn_output.weight", "hidden", "query"),
        _layer("self_attn.q_proj.bias", "attn_q.bias", "query", change=query, required=has_bias),
        _layer("self_attn.k_proj.bias", "attn_k.bias", "key", change=key, required=has_bias),
        _layer("self_attn.v_proj.bias", "attn_v.bias", "key", required=has_bias),
    )


_OUTPUT_BIAS = (_layer("self_attn.o_proj.bias", "attn_output.bias", "hidden", required=False),)
_NORMS = (
    _layer("input_layernorm.weight", "attn_norm.weight", "hidden"),
    _layer("post_attention_layernorm.weight", "ffn_norm.weight", "hidden"),
)
_GEMMA_NORMS = (
    _layer("input_layernorm.weight", "attn_norm.weight", "hidden", change=SHIFTED),
    _layer("post_attention_layernorm.weight", "post_attention_norm.weight", "hidden", change=SHIFTED),
    _layer("pre_feedforward_layernorm.weight", "ffn_norm.weight", "hidden", change=SHIFTED),
    _layer("post_feedforward_layernorm.weight", "post_ffw_norm.weight", "hidden", change=SHIFTED),
)


def _head_norms(change: Change | None = None) -> tuple[Rule, ...]:
    return (
        _layer("self_attn.q_norm.weight", "attn_q_norm.weight", "head", change=change),
        _layer("self_attn.k_norm.weight", "attn_k_norm.weight", "head", change=change),
    )


_FEED_FORWARD = (
    _layer("mlp.gate_proj.weight", "ffn_gate.weight", "feed_forward", "hidden"),
    _layer("mlp.up_proj.weight", "ffn_up.weight", "feed_forward", "hidden"),
    _layer("mlp.down_proj.weight", "ffn_down.weight", "hidden", "feed_forward"),
)
_FEED_FORWARD_BIASES = (
    _layer("mlp.gate_proj.bias", "ffn_gate.bias", "feed_forward", required=False),
    _layer("mlp.up_proj.bias", "ffn_up.bias", "feed_forward", required=False),
    _layer("mlp.down_proj.bias", "ffn_down.bias", "hidden", required=False),
)
_MIXTRAL_EXPERTS = (
    _layer("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", "experts", "hidden"),
    _layer("block_sparse_moe.experts.{expert}.w1.weight", "ffn_gate_exps.weight", "expert_feed_forward", "hidden"),
    _layer("block_sparse_moe.experts.{expert}.w3.weight", "ffn_up_exps.weight", "expert_feed_forward", "hidden"),
    _layer("block_sparse_moe.experts.{expert}.w2.weight", "ffn_down_exps.weight", "hidden", "expert_feed_forward"),
)
_QWEN_EXPERTS = (
    _layer("mlp.gate.weight", "ffn_gate_inp.weight", "experts", "hidden"),
    _layer("mlp.experts.{expert}.gate_proj.weight", "ffn_gate_exps.weight", "expert_feed_forward", "hidden"),
    _layer("mlp.experts.{expert}.up_proj.weight", "ffn_up_exps.weight", "expert_feed_forward", "hidden"),
    _layer("mlp.experts.{expert}.down_proj.weight", "ffn_down_exps.weight", "hidden", "expert_feed_forward"),
)
_SHARED_EXPERT = (
    _layer("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", "one", "hidden"),
    _layer("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", "shared_feed_forward", "hidden"),
    _layer("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", "shared_feed_forward", "hidden"),
    _layer("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", "hidden", "shared_feed_forward"),
)
_PHI3_LAYERS = (
    _layer("self_attn.qkv_proj.weight", "attn_qkv.weight", "query_key_value", "hidden"),
    _layer("self_attn.o_proj.weight", "attn_output.weight", "hidden", "query"),
    _layer("mlp.gate_up_proj.weight", "ffn_up.weight", "gate_and_up", "hidden"),
    _layer("mlp.down_proj.weight", "ffn_down.weight", "hidden", "feed_forward"),
)
_LLAMA_ATTENTION = (*_NORMS, *_attention(is_paired=True), *_OUTPUT_BIAS)
_LLAMA_ROPE = ("default", "linear", "yarn", "llama3")
_COMMON = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False}
_GEMMA = {**_COMMON, "num_key_value_heads": 4, "num_attention_heads": 8, "head_dim": 256, "tie_word_embeddings": True}

_ROWS = (
    Family(
        "llama",
        "LlamaForCausalLM",
        "llama",
        (*_before(), *_LLAMA_ATTENTION, *_FEED_FORWARD, *_FEED_FORWARD_BIASES),
        {**_COMMON, "max_position_embeddings": 2048},
        _LLAMA_ROPE,
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        "llama",
        (*_before(), *_LLAMA_ATTENTION, *_FEED_FORWARD),
        {**_COMMON, "max_position_embeddings": 131072, "num_key_value_heads": 8},
        _LLAMA_ROPE,
    ),
    Family(
        "mixtral",
        "MixtralForCausalLM",
        "llama",
        (*_before(), *_LLAMA_ATTENTION, *_MIXTRAL_EXPERTS),
        {
            **_COMMON,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        _LLAMA_ROPE,
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        "qwen2",
        (*_before(), *_NORMS, *_attention(is_paired=False, has_bias=True), *_FEED_FORWARD),
        {**_COMMON, "max_position_embeddings": 32768},
    ),
    Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        "qwen2moe",
        (*_before(), *_NORMS, *_attention(is_paired=False, has_bias=True), *_QWEN_EXPERTS, *_SHARED_EXPERT),
        {
            **_COMMON,
            "max_position_embeddings": 32768,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "norm_topk_prob": False,
        },
        has_output_when_tied=True,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        "qwen3",
        (*_before(), *_NORMS, *_attention(is_paired=False), *_head_norms(), *_FEED_FORWARD),
        {**_COMMON, "max_position_embeddings": 32768, "head_dim": 128},
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        "qwen3moe",
        (*_before(), *_NORMS, *_attention(is_paired=False), *_head_norms(), *_QWEN_EXPERTS),
        {
            **_COMMON,
            "max_position_embeddings": 32768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
        },
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        "gemma2",
        (*_before(SHIFTED), *_GEMMA_NORMS, *_attention(is_paired=False), *_FEED_FORWARD),
        {
            **_GEMMA,
            "max_position_embeddings": 8192,
            "vocab_size": 256000,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 256,
        },
        llama_cpp_period=2,
        never_has_output=True,
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        "gemma3",
        (*_before(SHIFTED), *_GEMMA_NORMS, *_attention(is_paired=False), *_head_norms(SHIFTED), *_FEED_FORWARD),
        {
            **_GEMMA,
            "max_position_embeddings": 131072,
            "vocab_size": 262208,
            "sliding_window": 4096,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
        },
        llama_cpp_period=6,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        "phi3",
        (*_before(), *_NORMS, *_PHI3_LAYERS),
        {
            **_COMMON,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        ("default", "longrope"),
    ),
)
FAMILIES: dict[str, Family] = {row.model_type: row for row in _ROWS}
_ALIASES = {"gemma3": "gemma3_text"}


def family_of_config(config: Mapping[str, Any] | None, where: str) -> Family:
    """The family that a config.json names; of a multimodal Gemma 3 that of its language model.

    >>> family_of_config({"model_type": "mistral"}, "a model").architecture
    'llama'
    """
    if config is None:
        raise UsageError(f"{where}: has no config.json, which names the architecture")
    model_type = text_section(config).get("model_type") or config.get("model_type")
    name = _ALIASES.get(str(model_type), str(model_type))
    if name not in FAMILIES:
        raise UsageError(
            f"{where}: the model_type of config.json is {model_type!r}, which cannot be converted; "
            f"expected one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}"
        )
    return FAMILIES[name]


GGUF_ARCHITECTURES = tuple(dict.fromkeys(family.architecture for family in _ROWS))


def family_of_gguf(metadata: Mapping[str, Any], where: str) -> Family:
    """The family of a GGUF file. Mistral and Llama are one architecture there, and Llama stands for both.

    >>> family_of_gguf({"general.architecture": "llama", "llama.expert_count": 8}, "a.gguf").model_type
    'mixtral'
    """
    name = metadata.get("general.architecture")
    is_mixture = bool(metadata.get(f"{name}.expert_count", 0))
    for family in _ROWS:
        if family.architecture == name and family.is_mixture == is_mixture:
            return family
    raise UsageError(
        f"{where}: general.architecture is {name!r}"
        + (" with experts" if is_mixture else "")
        + f", which cannot be converted; expected one of {', '.join(GGUF_ARCHITECTURES)}"
    )
