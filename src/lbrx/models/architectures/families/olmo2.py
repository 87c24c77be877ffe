"""OLMo 2: norms after attention and MLP, and norms of whole rows of queries and keys."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    QUERY_ROWS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
    qk_norms,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Norm

LAYER = in_layer(
    attention(output_bias="attention_bias", biases_in_gguf=""),
    qk_norms(QUERY_ROWS, KEY_VALUE_ROWS),
    norm("post_attention_layernorm", "post_attention_norm"),
    gated_mlp(),
    norm("post_feedforward_layernorm", "post_ffw_norm"),
)
DECODER = Decoder(mixer=GroupedAttention(qk_norm="row"), norm=Norm("after"))

OLMO2 = Family(
    name="olmo2",
    model_types=("olmo2",),
    class_names=("Olmo2ForCausalLM",),
    pre=(embedding(),),
    layer=LAYER,
    post=final_norm_and_head(),
    defaults=decoder_defaults(50304, 4096, 11008, 32, 32, rms_norm_eps=1e-5, max_position_embeddings=2048),
    gguf=Gguf("olmo2", has_output_when_tied=True, when="attention_sliding_window == 0"),
    decoder=DECODER,
)
