"""What the tensors of a model are called, in Hugging Face directories and in GGUF files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.inference.spec import ModelSpec

_HF = {
    "attention_norm": "input_layernorm",
    "queries": "self_attn.q_proj",
    "keys": "self_attn.k_proj",
    "values": "self_attn.v_proj",
    "queries_keys_values": "self_attn.qkv_proj",
    "output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
    "router": "block_sparse_moe.gate",
}
# Gemma has a norm before and one after each block, and calls the one after attention what others call the MLP's.
_HF_NORMS_AFTER_BLOCKS = {
    "after_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "after_mlp_norm": "post_feedforward_layernorm",
}
_HF_EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}
_MLX_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_GGUF = {
    "attention_norm": "attn_norm",
    "queries": "attn_q",
    "keys": "attn_k",
    "values": "attn_v",
    "queries_keys_values": "attn_qkv",
    "output": "attn_output",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "after_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "after_mlp_norm": "post_ffw_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "gate_up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_gate_inp",
}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a file: those outside layers, and how those of a layer are made.

    ``stacked_experts`` and ``single_experts`` are the two ways in which experts are stored: as one tensor of three
    axes, or as matrices of their own.
    """

    embedding: str
    final_norm: str
    output: str
    layer_prefix: str
    roles: Mapping[str, str]
    stacked_experts: Mapping[str, str]
    single_experts: str | None = None
    rope_factors: str | None = None

    def of(self, layer: int, role: str, part: str = "weight") -> str:
        """The name of a tensor of a layer.

        >>> hf_names(["model.embed_tokens.weight"], False).of(3, "gate")
        'model.layers.3.mlp.gate_proj.weight'
        """
        return f"{self.layer_prefix}{layer}.{self.roles[role]}.{part}"

    def of_expert(self, layer: int, expert: int, role: str) -> str:
        """The name of a matrix of an expert that is stored alone."""
        return f"{self.layer_prefix}{layer}.{self.single_experts}.{expert}.{_HF_EXPERTS[role]}.weight"

    def of_stacked_experts(self, layer: int, role: str) -> str:
        return f"{self.layer_prefix}{layer}.{self.stacked_experts[role]}.weight"


def hf_names(present: Iterable[str], norms_after_blocks: bool) -> Names:
    """The names of a Hugging Face or MLX directory; models within others have a prefix, which is found."""
    ending = "embed_tokens.weight"
    embedding = next((name for name in present if name.endswith(ending)), f"model.{ending}")
    prefix = embedding.removesuffix(ending)
    outer = next((name for name in present if name.endswith("lm_head.weight")), "lm_head.weight")
    return Names(
        embedding=embedding,
        final_norm=f"{prefix}norm.weight",
        output=outer,
        layer_prefix=f"{prefix}layers.",
        roles=_HF | (_HF_NORMS_AFTER_BLOCKS if norms_after_blocks else {}),
        stacked_experts={role: f"block_sparse_moe.switch_mlp.{name}" for role, name in _MLX_EXPERTS.items()},
        single_experts="block_sparse_moe.experts",
    )


GGUF_NAMES = Names(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    output="output.weight",
    layer_prefix="blk.",
    roles=_GGUF,
    stacked_experts={role: f"ffn_{role}_exps" for role in ("gate", "up", "down")},
    rope_factors="rope_freqs.weight",
)


def norm_roles(spec: ModelSpec) -> tuple[str, ...]:
    """The norms of a layer over the hidden state."""
    after = ("after_attention_norm", "after_mlp_norm") if spec.family.norms_after_blocks else ()
    return ("attention_norm", "mlp_norm", *after)
