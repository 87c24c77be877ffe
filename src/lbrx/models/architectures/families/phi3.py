"""Phi-3."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    TWO_NORMS,
    buffers,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    linear,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, GatedMlp, Gguf, GroupedAttention

PHI3 = Family(
    name="phi3",
    model_types=("phi3",),
    class_names=("Phi3ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        linear("self_attn.qkv_proj", f"{QUERY_ROWS} + 2 * {KEY_VALUE_ROWS}", "hidden_size", "attn_qkv"),
        linear("self_attn.o_proj", "hidden_size", QUERY_ROWS, "attn_output"),
        buffers("self_attn.rotary_emb.inv_freq"),
        linear("mlp.gate_up_proj", "2 * intermediate_size", "hidden_size", "ffn_up"),
        linear("mlp.down_proj", "hidden_size", "intermediate_size", "ffn_down"),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        32064,
        3072,
        8192,
        32,
        32,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
        original_max_position_embeddings=4096,
        sliding_window=None,
    ),
    layer_rules=(window_rule("sliding_window"),),
    gguf=Gguf("phi3", rope_types=("default", "longrope"), needs_window=True),
    decoder=Decoder(GroupedAttention(joined="parts"), GatedMlp(is_joined=True)),
)
