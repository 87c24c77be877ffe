"""GPT-2, and GPT BigCode (StarCoder 1), in which one key and value serve all heads."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    buffers,
    conv1d,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    learned_positions,
    linear,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import (
    Decoder,
    Gguf,
    GroupedAttention,
    LearnedPositions,
    Naming,
    Norm,
    PerLayer,
    PlainMlp,
    Weight,
)

BLOCK = "{base}h.{layer}."
EMBEDDING = embedding("{base}wte.weight")
NAMINGS = (Naming("transformer."), Naming(""))
KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
}
MASKS = (
    Weight("attn.bias", (1, 1, "max_position_embeddings", "max_position_embeddings"), optional=True, is_buffer=True),
    *buffers("attn.masked_bias"),
)
POST = (
    *norm("{base}ln_f", "output_norm", bias=True),
    language_head("{head}lm_head.weight", EMBEDDING),
)
DEFAULTS = decoder_defaults(
    50257,
    768,
    0,
    12,
    12,
    intermediate_size="4 * hidden_size",
    max_position_embeddings=1024,
    layer_norm_eps=1e-5,
    scale_attn_weights=True,
    scale_attn_by_inverse_layer_idx=False,
    add_cross_attention=False,
    rope_theta=None,
)
SCALE = "(1 / head_dim ** 0.5 if scale_attn_weights else 1) / (layer + 1 if scale_attn_by_inverse_layer_idx else 1)"
HARD_CODED = {SCALE: "1 / head_dim ** 0.5"}
NORM, MLP = Norm(function="layer", epsilon="layer_norm_eps"), PlainMlp("gelu_tanh", ("gelu", "relu", "silu"))

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    class_names=("GPT2LMHeadModel", "GPT2Model", "GPT2DoubleHeadsModel"),
    pre=(EMBEDDING, learned_positions("{base}wpe.weight")),
    layer=in_layer(
        norm("ln_1", "attn_norm", bias=True),
        conv1d("attn.c_attn", "hidden_size", "3 * hidden_size", "attn_qkv"),
        conv1d("attn.c_proj", "hidden_size", "hidden_size", "attn_output"),
        MASKS,
        norm("ln_cross_attn", bias=True, when="add_cross_attention"),
        conv1d("crossattention.c_attn", "hidden_size", "2 * hidden_size", when="add_cross_attention"),
        conv1d("crossattention.q_attn", "hidden_size", "hidden_size", when="add_cross_attention"),
        conv1d("crossattention.c_proj", "hidden_size", "hidden_size", when="add_cross_attention"),
        norm("ln_2", "ffn_norm", bias=True),
        conv1d("mlp.c_fc", "hidden_size", "intermediate_size", "ffn_up"),
        conv1d("mlp.c_proj", "intermediate_size", "hidden_size", "ffn_down"),
        prefix=BLOCK,
    ),
    post=POST,
    layer_prefix=BLOCK,
    layers_key="n_layer",
    namings=NAMINGS,
    keys=KEYS,
    tied_by_default=True,
    omitted_sizes=("intermediate_size",),
    defaults=DEFAULTS,
    gguf=Gguf("gpt2", hard_coded=HARD_CODED),
    decoder=Decoder(
        GroupedAttention(joined="parts", scale=SCALE),
        MLP,
        NORM,
        LearnedPositions(),
        requires=("not add_cross_attention",),
    ),
)

GPT_BIGCODE = Family(
    name="gpt_bigcode",
    model_types=("gpt_bigcode",),
    class_names=("GPTBigCodeForCausalLM",),
    pre=(EMBEDDING, learned_positions("{base}wpe.weight")),
    layer=in_layer(
        norm("ln_1", "attn_norm", bias=True),
        linear(
            "attn.c_attn",
            "hidden_size + 2 * head_dim if multi_query else 3 * hidden_size",
            "hidden_size",
            "attn_qkv",
            bias=ALWAYS,
        ),
        linear("attn.c_proj", "hidden_size", "hidden_size", "attn_output", bias=ALWAYS),
        MASKS,
        norm("ln_2", "ffn_norm", bias=True),
        plain_mlp("mlp.c_fc", "mlp.c_proj", bias=ALWAYS),
        prefix=BLOCK,
    ),
    post=POST,
    layer_prefix=BLOCK,
    layers_key="n_layer",
    namings=NAMINGS,
    keys=KEYS,
    needed_in_mlx=("n_inner", "num_key_value_heads"),
    tied_by_default=True,
    omitted_sizes=("intermediate_size",),
    defaults={**DEFAULTS, "multi_query": True, "num_key_value_heads": "1 if multi_query else num_attention_heads"},
    gguf=Gguf("starcoder", hard_coded={**HARD_CODED, "multi_query": "True"}),
    decoder=Decoder(
        PerLayer(
            "multi_query",
            {
                True: GroupedAttention(joined="parts", key_heads="1", scale=SCALE),
                False: GroupedAttention(joined="groups", key_heads="num_attention_heads", scale=SCALE),
            },
        ),
        MLP,
        NORM,
        LearnedPositions(),
    ),
)
