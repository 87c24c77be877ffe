"""The role of a tensor in a GGUF file, derived from its name; the rules of quantization mixes use it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

EMBEDDING_NAMES = ("token_embd.weight", "per_layer_token_embd.weight")
OUTPUT_NAME = "output.weight"
_LAYER = re.compile(r"blk\.(\d+)\.")

# Routers, norms, convolutions and positions: small, and sensitive to quantization.
_KEPT_WHOLE = ("position_embd.weight", "token_types.weight")
_KEPT_PARTS = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    *(f"time_mix_{part}.weight" for part in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2")),
    *(f"time_mix_{part}.weight" for part in ("g1", "g2", "decay_w1", "decay_w2", "lerp_fused")),
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)


class Role(Enum):
    """The role of a tensor. VALUE includes joined projections, because they contain the values."""

    OUTPUT = "output"
    EMBEDDING = "embedding"
    VALUE = "attention value"
    KEY = "attention key"
    QUERY = "attention query"
    ATTENTION_OUTPUT = "attention output"
    UP = "feed-forward up"
    GATE = "feed-forward gate"
    DOWN = "feed-forward down"
    OTHER = "other"


# The first substring that a name contains decides.
_ROLES = (
    ("attn_qkv.weight", Role.VALUE),
    ("attn_kv_b.weight", Role.VALUE),
    ("attn_v.weight", Role.VALUE),
    ("attn_k.weight", Role.KEY),
    ("attn_q.weight", Role.QUERY),
    ("attn_output.weight", Role.ATTENTION_OUTPUT),
    ("ffn_up", Role.UP),
    ("ffn_gate", Role.GATE),
    ("ffn_down", Role.DOWN),
)


def role_of(name: str) -> Role:
    """Return the role of a tensor.

    >>> role_of("blk.3.ffn_down_exps.weight"), role_of("output.weight")
    (<Role.DOWN: 'feed-forward down'>, <Role.OUTPUT: 'output'>)
    """
    if name == OUTPUT_NAME:
        return Role.OUTPUT
    if name in EMBEDDING_NAMES:
        return Role.EMBEDDING
    return next((role for part, role in _ROLES if part in name), Role.OTHER)


def layer_of(name: str) -> int | None:
    """Return the number of the block of a tensor, or None.

    >>> layer_of("blk.12.attn_q.weight"), layer_of("output.weight")
    (12, None)
    """
    match = _LAYER.match(name)
    return int(match[1]) if match else None


def counting_order(name: str) -> tuple[int, str]:
    """Return the sort key for rules such as "the first eighth": by block, then by name."""
    layer = layer_of(name)
    return (-1 if layer is None else layer, name)


def reason_to_keep(name: str, shape: Sequence[int]) -> str | None:
    """Return why a tensor is never quantized, or None if it may be.

    >>> reason_to_keep("blk.0.attn_norm.weight", (64,)), reason_to_keep("blk.0.attn_q.weight", (64, 64))
    ('one dimension', None)
    """
    if sum(size > 1 for size in shape[:-1]) == 0:  # axes of size 1 do not count
        return "one dimension"
    if not name.endswith("weight"):
        return "not a weight"
    if name in _KEPT_WHOLE or any(part in name for part in _KEPT_PARTS):
        return "never quantized"
    return None
