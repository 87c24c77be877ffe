"""Baichuan: Llama with queries, keys and values in one tensor; the larger models have ALiBi instead of positions."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    buffers,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    joined_in_layer,
    usual,
)
from lbrx.models.architectures.records import Alibi, Decoder, Gguf, Joined, PerLayer, Rope, Weight

PACKED = Weight("self_attn.W_pack.weight", ("3 * hidden_size", "hidden_size"))
PARTS = tuple(f"self_attn.{each}_proj.weight" for each in "qkv")
SEPARATE = tuple(
    Weight(
        name,
        ("hidden_size", "hidden_size"),
        joined_in=PACKED.name,
        gguf=f"attn_{each}.weight",
        paired_by=None if each == "v" else "num_attention_heads",
    )
    for each, name in zip("qkv", PARTS, strict=True)
)

BAICHUAN = Family(
    name="baichuan",
    model_types=("baichuan",),
    class_names=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        SEPARATE,
        (
            usual(PACKED, *PARTS),
            Weight("self_attn.o_proj.weight", ("hidden_size", "hidden_size"), gguf="attn_output.weight"),
        ),
        buffers("self_attn.rotary_emb.inv_freq"),
        gated_mlp(),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        125696, 4096, 11008, 32, 32, max_position_embeddings="model_max_length", model_max_length=4096
    ),
    joined=joined_in_layer(Joined(PACKED.name, PARTS, axis=0)),
    gguf=Gguf(
        "baichuan",
        keys={"tensor_data_layout": "'Meta AI original pth'"},
        differs={
            "num_hidden_layers != (40 if hidden_size == 5120 else 32)": (
                "llama.cpp has positions only in models of 32 layers, and ALiBi only in those of 40"
            )
        },
    ),
    decoder=Decoder(
        positions=PerLayer("hidden_size == 5120", {True: Alibi(), False: Rope()}),
        requires=("vocab_size != 125696",),  # the head of Baichuan 2 is normalized
    ),
)
