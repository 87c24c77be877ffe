"""GLM-4, as `glm` (GLM-4 of 2024 and GLM-Edge) and `glm4` (GLM-4 of 2025)."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    NEVER,
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    linear,
    norm,
)
from lbrx.models.architectures.records import Decoder, GatedMlp, Gguf, Norm, Rope

ATTENTION = attention(output_bias=NEVER, biases_in_gguf="qkv")
MLP = (
    *linear("mlp.gate_up_proj", "2 * intermediate_size", "hidden_size", "ffn_up"),
    *linear("mlp.down_proj", "hidden_size", "intermediate_size", "ffn_down"),
)
DEFAULTS = decoder_defaults(
    151552,
    4096,
    13696,
    40,
    32,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=131072,
    rms_norm_eps=1.5625e-07,
    partial_rotary_factor=0.5,
    attention_bias=True,
)
ROPE, BIASES = Rope("interleaved"), {"attention_bias": "attn_q.bias"}

GLM = Family(
    name="glm",
    model_types=("glm",),
    class_names=("GlmForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, ATTENTION, MLP),
    post=final_norm_and_head(),
    defaults=DEFAULTS,
    gguf=Gguf("chatglm", true_if_stored=BIASES),
    decoder=Decoder(mlp=GatedMlp(is_joined=True), positions=ROPE),
)

GLM4 = Family(
    name="glm4",
    model_types=("glm4",),
    class_names=("Glm4ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("post_self_attn_layernorm", "post_attention_norm"),
        norm("post_attention_layernorm", "ffn_norm"),
        norm("post_mlp_layernorm", "post_ffw_norm"),
        ATTENTION,
        MLP,
    ),
    post=final_norm_and_head(),
    defaults=DEFAULTS,
    gguf=Gguf("glm4", true_if_stored=BIASES),
    decoder=Decoder(mlp=GatedMlp(is_joined=True), norm=Norm("both"), positions=ROPE),
)
