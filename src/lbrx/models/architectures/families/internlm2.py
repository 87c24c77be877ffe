"""InternLM 2: Llama with queries, keys and values in one tensor, next to each other for each head of keys."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    decoder_defaults,
    embedding,
    in_layer,
    joined_in_layer,
    language_head,
    linear,
    norm,
    usual,
)
from lbrx.models.architectures.records import Decoder, Gguf, Joined, Weight

EMBEDDING = embedding("{base}tok_embeddings.weight")
PACKED = Weight("attention.wqkv.weight", (f"{QUERY_ROWS} + 2 * {KEY_VALUE_ROWS}", "hidden_size"))
PARTS = tuple(f"attention.w{each}.weight" for each in "qkv")
SEPARATE = tuple(
    Weight(name, (rows, "hidden_size"), joined_in=PACKED.name, gguf=f"attn_{each}.weight", paired_by=paired_by)
    for each, name, rows, paired_by in zip(
        "qkv",
        PARTS,
        (QUERY_ROWS, KEY_VALUE_ROWS, KEY_VALUE_ROWS),
        ("num_attention_heads", "num_key_value_heads", None),
        strict=True,
    )
)

INTERNLM2 = Family(
    name="internlm2",
    model_types=("internlm2",),
    class_names=("InternLM2ForCausalLM",),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("attention_norm", "attn_norm"),
        norm("ffn_norm", "ffn_norm"),
        SEPARATE,
        (usual(PACKED, *PARTS), Weight("attention.wo.weight", ("hidden_size", QUERY_ROWS), gguf="attn_output.weight")),
        linear("feed_forward.w1", "intermediate_size", "hidden_size", "ffn_gate"),
        linear("feed_forward.w3", "intermediate_size", "hidden_size", "ffn_up"),
        linear("feed_forward.w2", "hidden_size", "intermediate_size", "ffn_down"),
    ),
    post=(*norm("{base}norm", "output_norm"), language_head("{head}output.weight", EMBEDDING)),
    defaults=decoder_defaults(
        92544, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=32768, rope_theta=1e6, bias=False
    ),
    joined=joined_in_layer(
        Joined(
            PACKED.name,
            PARTS,
            view=(
                "num_key_value_heads",
                "(num_attention_heads // num_key_value_heads + 2) * head_dim",
                "hidden_size",
            ),
        )
    ),
    gguf=Gguf("internlm2", requires={"not bias": "biases"}),
    decoder=Decoder(requires=("not bias",)),
)
