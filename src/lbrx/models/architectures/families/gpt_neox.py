"""GPT-NeoX."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import ALWAYS, buffers, embedding, in_layer, language_head, linear, norm
from lbrx.models.architectures.records import Naming

GPT_NEOX_EMBEDDING = embedding("{base}embed_in.weight")

GPT_NEOX = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    class_names=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    pre=(GPT_NEOX_EMBEDDING,),
    layer=in_layer(
        norm("input_layernorm", bias=True),
        norm("post_attention_layernorm", bias=True),
        linear("attention.query_key_value", "3 * hidden_size", "hidden_size", bias="attention_bias"),
        linear("attention.dense", "hidden_size", "hidden_size", bias="attention_bias"),
        buffers("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        linear("mlp.dense_h_to_4h", "intermediate_size", "hidden_size", bias=ALWAYS),
        linear("mlp.dense_4h_to_h", "hidden_size", "intermediate_size", bias=ALWAYS),
    ),
    post=(
        *norm("{base}final_layer_norm", bias=True),
        language_head("{head}embed_out.weight", GPT_NEOX_EMBEDDING),
    ),
    namings=(Naming("gpt_neox."), Naming("")),
    defaults={
        "vocab_size": 50432,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "attention_bias": True,
    },
)
