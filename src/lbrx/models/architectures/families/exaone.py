"""EXAONE 4: norms after attention and MLP; layers with full attention have no positions if others have windows."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    NEVER,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    norm,
    qk_norms,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Norm, Rope

EXAONE4 = Family(
    name="exaone4",
    model_types=("exaone4",),
    class_names=("Exaone4ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(
        attention(bias=NEVER, output_bias=NEVER),
        qk_norms("head_dim", "head_dim"),
        norm("post_attention_layernorm", "post_attention_norm"),
        gated_mlp(),
        norm("post_feedforward_layernorm", "post_ffw_norm"),
    ),
    post=final_norm_and_head(),
    defaults=decoder_defaults(
        102400,
        4096,
        16384,
        32,
        32,
        rms_norm_eps=1e-5,
        max_position_embeddings=2048,
        sliding_window=4096,
        sliding_window_pattern=4,
    ),
    layer_rules=(window_rule("(layer + 1) % sliding_window_pattern != 0 if sliding_window else False"),),
    gguf=Gguf(
        "exaone4",
        rope_types=("default", "linear", "yarn", "llama3"),
        lists_windows=True,
        windows_when="num_hidden_layers == 64",
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="head"),
        norm=Norm("after"),
        positions=Rope(when="layer_type == 'sliding_attention' or not sliding_window"),
    ),
)
