"""Falcon."""

from lbrx.models.architectures.config import HEAD_DIM
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import buffers, embedding, in_layer, language_head, linear, norm
from lbrx.models.architectures.records import Naming

BLOCK = "{base}h.{layer}."
FALCON_EMBEDDING = embedding("{base}word_embeddings.weight")
# Grouped keys, one key and value for all heads, or one for each head.
FALCON_QKV_ROWS = (
    "(2 * num_kv_heads + num_attention_heads) * head_dim if new_decoder_architecture"
    " else hidden_size + 2 * head_dim if multi_query else 3 * hidden_size"
)
FALCON_TWO_NORMS = "parallel_attn and num_ln_in_parallel_attn == 2"

FALCON = Family(
    name="falcon",
    model_types=("falcon", "RefinedWebModel", "RefinedWeb"),
    class_names=("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
    pre=(FALCON_EMBEDDING,),
    layer=in_layer(
        norm("ln_attn", bias=True, when=FALCON_TWO_NORMS),
        norm("ln_mlp", bias=True, when=FALCON_TWO_NORMS),
        norm("input_layernorm", bias=True, when=f"not ({FALCON_TWO_NORMS})"),
        norm("post_attention_layernorm", bias=True, when="not parallel_attn"),
        linear("self_attention.query_key_value", FALCON_QKV_ROWS, "hidden_size", bias="bias"),
        linear("self_attention.dense", "hidden_size", "hidden_size", bias="bias"),
        buffers("self_attention.rotary_emb.inv_freq", "self_attention.maybe_rotary.inv_freq"),
        linear("mlp.dense_h_to_4h", "ffn_hidden_size", "hidden_size", bias="bias"),
        linear("mlp.dense_4h_to_h", "hidden_size", "ffn_hidden_size", bias="bias"),
        prefix=BLOCK,
    ),
    post=(*norm("{base}ln_f", bias=True), language_head("{head}lm_head.weight", FALCON_EMBEDDING)),
    layer_prefix=BLOCK,
    namings=(Naming("transformer."), Naming("")),
    tied_by_default=True,
    defaults={
        "model_type": "'falcon'",
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": "n_layer",
        "n_layer": 32,
        "num_attention_heads": "n_head",
        "n_head": 71,
        "num_kv_heads": "n_head_kv",
        "n_head_kv": "num_attention_heads",
        "head_dim": HEAD_DIM,
        "ffn_hidden_size": "4 * hidden_size",
        "new_decoder_architecture": "model_type == 'RefinedWeb'",
        "num_ln_in_parallel_attn": "2 if new_decoder_architecture else 1",
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
    },
)
