"""EXAONE 3: Llama under other names. EXAONE 4: norms after attention and MLP, and layers without positions."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    KEY_VALUE_ROWS,
    NEVER,
    QUERY_ROWS,
    attention,
    buffers,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    language_head,
    linear,
    norm,
    qk_norms,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Gguf, GroupedAttention, Naming, Norm, Rope

EMBEDDING, BLOCK = embedding("{base}wte.weight"), "{base}h.{layer}."
LLAMA_ROPE = ("default", "linear", "yarn", "llama3")

EXAONE = Family(
    name="exaone",
    model_types=("exaone",),
    class_names=("ExaoneForCausalLM",),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("ln_1", "attn_norm"),
        norm("ln_2", "ffn_norm"),
        linear("attn.attention.q_proj", QUERY_ROWS, "hidden_size", "attn_q"),
        linear("attn.attention.k_proj", KEY_VALUE_ROWS, "hidden_size", "attn_k"),
        linear("attn.attention.v_proj", KEY_VALUE_ROWS, "hidden_size", "attn_v"),
        linear("attn.attention.out_proj", "hidden_size", QUERY_ROWS, "attn_output"),
        buffers("attn.attention.rotary.inv_freq"),
        linear("mlp.c_fc_0", "intermediate_size", "hidden_size", "ffn_gate"),
        linear("mlp.c_fc_1", "intermediate_size", "hidden_size", "ffn_up"),
        linear("mlp.c_proj", "hidden_size", "intermediate_size", "ffn_down"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", "output_norm"), language_head("{head}lm_head.weight", EMBEDDING)),
    layer_prefix=BLOCK,
    layers_key="num_layers",
    namings=(Naming("transformer."),),
    keys={"num_hidden_layers": "num_layers", "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon"},
    defaults=decoder_defaults(102400, 2048, 8192, 32, 32, max_position_embeddings=2048),
    needed_in_mlx=("rope_theta",),
    gguf=Gguf("exaone", rope_types=LLAMA_ROPE, keys={"attention.layer_norm_epsilon": "rms_norm_eps"}),
    decoder=Decoder(),
)

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
    needed_in_mlx=("head_dim", "rope_scaling"),
    gguf=Gguf(
        "exaone4",
        rope_types=LLAMA_ROPE,
        lists_windows=True,
        windows_when="num_hidden_layers == 64",
    ),
    decoder=Decoder(
        GroupedAttention(qk_norm="head"),
        norm=Norm("after"),
        positions=Rope(when="layer_type == 'sliding_attention' or not sliding_window"),
    ),
)
