"""GPT-2."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import buffers, conv1d, embedding, in_layer, language_head, norm
from lbrx.models.architectures.records import Naming, Weight

BLOCK = "{base}h.{layer}."
GPT2_EMBEDDING = embedding("{base}wte.weight", "n_embd")

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    class_names=("GPT2LMHeadModel", "GPT2Model", "GPT2DoubleHeadsModel"),
    pre=(GPT2_EMBEDDING, Weight("{base}wpe.weight", ("n_positions", "n_embd"))),
    layer=in_layer(
        norm("ln_1", size="n_embd", bias=True),
        conv1d("attn.c_attn", "n_embd", "3 * n_embd"),
        conv1d("attn.c_proj", "n_embd", "n_embd"),
        (Weight("attn.bias", (1, 1, "n_positions", "n_positions"), optional=True, is_buffer=True),),
        buffers("attn.masked_bias"),
        norm("ln_cross_attn", size="n_embd", bias=True, when="add_cross_attention"),
        conv1d("crossattention.c_attn", "n_embd", "2 * n_embd", when="add_cross_attention"),
        conv1d("crossattention.q_attn", "n_embd", "n_embd", when="add_cross_attention"),
        conv1d("crossattention.c_proj", "n_embd", "n_embd", when="add_cross_attention"),
        norm("ln_2", size="n_embd", bias=True),
        conv1d("mlp.c_fc", "n_embd", "n_inner"),
        conv1d("mlp.c_proj", "n_inner", "n_embd"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", size="n_embd", bias=True), language_head("{head}lm_head.weight", GPT2_EMBEDDING)),
    layer_prefix=BLOCK,
    layers_key="n_layer",
    namings=(Naming("transformer."), Naming("")),
    tied_by_default=True,
    defaults={
        "vocab_size": 50257,
        "n_embd": "hidden_size",
        "hidden_size": 768,
        "n_layer": "num_hidden_layers",
        "num_hidden_layers": 12,
        "n_positions": "max_position_embeddings",
        "max_position_embeddings": 1024,
        "n_inner": "4 * n_embd",
        "add_cross_attention": False,
    },
)
