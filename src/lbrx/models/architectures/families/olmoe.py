"""OLMoE: many small experts, norms of whole rows of queries and keys."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    PROJECTIONS,
    QUERY_ROWS,
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    experts,
    final_norm_and_head,
    fused_experts,
    in_layer,
    joined_experts,
    joined_in_layer,
    qk_norms,
)
from lbrx.models.architectures.records import Decoder, Experts, Gguf, GroupedAttention

FUSED = fused_experts("num_experts", "intermediate_size")

OLMOE = Family(
    name="olmoe",
    model_types=("olmoe",),
    class_names=("OlmoeForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        TWO_NORMS,
        attention(output_bias="attention_bias", biases_in_gguf=""),
        qk_norms(QUERY_ROWS, KEY_VALUE_ROWS),
        experts("mlp", PROJECTIONS, count="num_experts", size="intermediate_size", joined=FUSED),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        50304,
        2048,
        2048,
        16,
        16,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=False,
        clip_qkv=None,
        rms_norm_eps=1e-5,
        max_position_embeddings=4096,
    ),
    joined=joined_in_layer(*joined_experts(FUSED, "mlp")),
    gguf=Gguf(
        "olmoe",
        fixed={"norm_topk_prob": False},
        differs={"clip_qkv": "'clip_qkv' bounds queries, keys and values, but not in llama.cpp"},
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="row", clip="clip_qkv"),
        Experts(scoring="softmax", count="num_experts", normalized="norm_topk_prob"),
    ),
)
