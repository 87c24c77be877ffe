"""StarCoder 2."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    norm,
    plain_mlp,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Gguf, Norm, PlainMlp

STARCODER2 = Family(
    name="starcoder2",
    model_types=("starcoder2",),
    class_names=("Starcoder2ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm", bias=True),
        norm("post_attention_layernorm", "ffn_norm", bias=True),
        attention(bias="use_bias", output_bias="use_bias"),
        plain_mlp("mlp.c_fc", "mlp.c_proj", bias="use_bias"),
    ),
    post=final_norm_and_head(bias=True),
    tied_by_default=True,
    defaults=decoder_defaults(
        49152,
        3072,
        12288,
        30,
        24,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        norm_epsilon=1e-5,
        use_bias=True,
        sliding_window=None,
        hidden_act="'gelu_pytorch_tanh'",
    ),
    layer_rules=(window_rule("sliding_window"),),
    gguf=Gguf("starcoder2", true_if_stored={"use_bias": "attn_q.bias"}),
    decoder=Decoder(mlp=PlainMlp("gelu_tanh", ("gelu",)), norm=Norm(function="layer", epsilon="norm_epsilon")),
)
