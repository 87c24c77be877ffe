"""Qwen 1: queries, keys and values in one tensor, and two halves of an MLP."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    buffers,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    linear,
    norm,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Naming, Norm, Rope

BLOCK = "{base}h.{layer}."
EMBEDDING = embedding("{base}wte.weight")
HALF = "intermediate_size // 2"

QWEN1 = Family(
    name="qwen",
    model_types=("qwen",),
    class_names=("QWenLMHeadModel",),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("ln_1", "attn_norm"),
        linear("attn.c_attn", "3 * kv_channels * num_attention_heads", "hidden_size", "attn_qkv", bias=ALWAYS),
        linear("attn.c_proj", "hidden_size", "kv_channels * num_attention_heads", "attn_output"),
        buffers("attn.masked_bias", "attn.bias", "attn.rotary_emb.inv_freq"),
        norm("ln_2", "ffn_norm"),
        linear("mlp.w1", HALF, "hidden_size", "ffn_up"),
        linear("mlp.w2", HALF, "hidden_size", "ffn_gate"),
        linear("mlp.c_proj", "hidden_size", HALF, "ffn_down"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", "output_norm"), language_head("{head}lm_head.weight", EMBEDDING)),
    layer_prefix=BLOCK,
    namings=(Naming("transformer."),),
    defaults=decoder_defaults(
        151936,
        4096,
        22016,
        32,
        32,
        head_dim="kv_channels",
        kv_channels="hidden_size // num_attention_heads",
        max_position_embeddings="seq_length",
        seq_length=8192,
        layer_norm_epsilon=1e-6,
        rope_theta="rotary_emb_base",
        rotary_emb_base=10_000.0,
        use_dynamic_ntk=False,
        use_logn_attn=False,
    ),
    gguf=Gguf("qwen", keys={"attention.layer_norm_epsilon": "layer_norm_epsilon"}),
    decoder=Decoder(
        GroupedAttention(joined="parts", key_heads="num_attention_heads"),
        norm=Norm(epsilon="layer_norm_epsilon"),
        positions=Rope(),
    ),
)
