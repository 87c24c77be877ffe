"""GPT-J."""

from lbrx.models.architectures.families.gpt2 import BLOCK, EMBEDDING, KEYS, MASKS, NAMINGS, NORM, POST
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import ALWAYS, decoder_defaults, in_layer, linear, norm, plain_mlp
from lbrx.models.architectures.records import Decoder, PlainMlp, Rope, Weight

GPTJ = Family(
    name="gptj",
    model_types=("gptj",),
    class_names=("GPTJForCausalLM", "GPTJModel"),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("ln_1", "attn_norm", bias=True),
        linear("attn.q_proj", "hidden_size", "hidden_size", "attn_q"),
        linear("attn.k_proj", "hidden_size", "hidden_size", "attn_k"),
        linear("attn.v_proj", "hidden_size", "hidden_size", "attn_v"),
        linear("attn.out_proj", "hidden_size", "hidden_size", "attn_output"),
        MASKS,
        plain_mlp("mlp.fc_in", "mlp.fc_out", bias=ALWAYS),
        prefix=BLOCK,
    ),
    post=(
        *POST,
        Weight(
            "{head}lm_head.bias",
            ("vocab_size",),
            needed_when="has_language_head",
            is_vocabulary=True,
            gguf="output.bias",
        ),
    ),
    layer_prefix=BLOCK,
    layers_key="n_layer",
    namings=NAMINGS,
    keys=KEYS,
    omitted_sizes=("intermediate_size",),
    defaults=decoder_defaults(
        50400,
        4096,
        0,
        28,
        16,
        intermediate_size="4 * hidden_size",
        max_position_embeddings=2048,
        layer_norm_eps=1e-5,
        rotary_dim=64,
    ),
    decoder=Decoder(
        mlp=PlainMlp("gelu_tanh", ("gelu",)),
        norm=NORM,
        positions=Rope("interleaved", size="rotary_dim if rotary_dim else head_dim"),
        is_parallel="True",
        shares_norm="True",
    ),
)
