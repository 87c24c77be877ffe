"""ModernBERT and Nomic BERT: encoders with rotary positions and gated MLPs."""

from __future__ import annotations

from lbrx.models.architectures.families.bert import SIZES, biased, heads, layer_norm
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import in_layer, linear, window_rule
from lbrx.models.architectures.records import Gguf, Naming, Weight

NOMIC_BLOCK = "{base}encoder.layers.{layer}."


def _norm(module: str, gguf: str, when: str = "True") -> tuple[Weight, ...]:
    return (
        Weight(f"{module}.weight", ("hidden_size",), needed_when=when, gguf=f"{gguf}.weight"),
        Weight(f"{module}.bias", ("hidden_size",), needed_when=f"norm_bias and {when}", gguf=f"{gguf}.bias"),
    )


MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    class_names=("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    pre=(
        Weight(
            "{base}embeddings.tok_embeddings.weight",
            ("vocab_size", "hidden_size"),
            is_vocabulary=True,
            gguf="token_embd.weight",
        ),
        *_norm("{base}embeddings.norm", "token_embd_norm"),
    ),
    layer=in_layer(
        _norm("attn_norm", "attn_norm", when="layer > 0"),
        linear("attn.Wqkv", "3 * hidden_size", "hidden_size", "attn_qkv", bias="attention_bias"),
        linear("attn.Wo", "hidden_size", "hidden_size", "attn_output", bias="attention_bias"),
        _norm("mlp_norm", "ffn_norm"),
        linear("mlp.Wi", "2 * intermediate_size", "hidden_size", "ffn_up", bias="mlp_bias"),
        linear("mlp.Wo", "hidden_size", "intermediate_size", "ffn_down", bias="mlp_bias"),
    ),
    post=(
        *_norm("{base}final_norm", "output_norm"),
        Weight("head.dense.weight", ("hidden_size", "hidden_size"), optional=True, gguf="cls.weight"),
        Weight("head.dense.bias", ("hidden_size",), optional=True, gguf="cls.bias"),
        Weight("head.norm.weight", ("hidden_size",), optional=True, gguf="cls.norm.weight"),
        Weight("head.norm.bias", ("hidden_size",), optional=True),
        Weight("decoder.weight", ("vocab_size", "hidden_size"), optional=True, is_vocabulary=True),
        Weight("decoder.bias", ("vocab_size",), optional=True, is_vocabulary=True),
        *heads("classifier", gguf="cls.output"),
    ),
    namings=(Naming("model."), Naming("")),
    tied_by_default=True,
    layer_rules=(window_rule("layer % global_attn_every_n_layers != 0"),),
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "global_attn_every_n_layers": 3,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "norm_eps": 1e-5,
        "local_attention": 128,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "hidden_activation": "'gelu'",
        "classifier_pooling": "'cls'",
    },
    omitted_sizes=SIZES,
    gguf=Gguf(
        "modern-bert",
        is_encoder=True,
        keys={
            "block_count": "num_hidden_layers",
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "feed_forward_length": "intermediate_size",
            "attention.head_count": "num_attention_heads",
            "rope.freq_base": "global_rope_theta",
            "rope.freq_base_swa": "local_rope_theta",
            "attention.layer_norm_rms_epsilon": "norm_eps",
            "attention.causal": "False",
            "classifier.pooling_type": "2 if classifier_pooling == 'cls' else 1",
            "attention.sliding_window": "local_attention",
            "attention.sliding_window_pattern": "global_attn_every_n_layers",
            "rope.scaling.type": "'none'",
            "vocab_size": "vocab_size",
            "hidden_activation": "hidden_activation",
        },
    ),
)

NOMIC_BERT = Family(
    name="nomic_bert",
    model_types=("nomic_bert",),
    class_names=("NomicBertModel",),
    pre=(
        Weight(
            "{base}embeddings.word_embeddings.weight",
            ("vocab_size", "hidden_size"),
            is_vocabulary=True,
            gguf="token_embd.weight",
        ),
        Weight(
            "{base}embeddings.token_type_embeddings.weight",
            ("type_vocab_size", "hidden_size"),
            gguf="token_types.weight",
        ),
        *layer_norm("{base}emb_ln", gguf="token_embd_norm"),
    ),
    layer=in_layer(
        linear("attn.Wqkv", "3 * hidden_size", "hidden_size", "attn_qkv", bias="qkv_proj_bias"),
        linear("attn.out_proj", "hidden_size", "hidden_size", "attn_output", bias="qkv_proj_bias"),
        layer_norm("norm1", gguf="attn_output_norm"),
        linear("mlp.fc11", "intermediate_size", "hidden_size", "ffn_up", bias="mlp_fc1_bias"),
        linear("mlp.fc12", "intermediate_size", "hidden_size", "ffn_gate", bias="mlp_fc1_bias"),
        linear("mlp.fc2", "hidden_size", "intermediate_size", "ffn_down", bias="mlp_fc2_bias"),
        layer_norm("norm2", gguf="layer_output_norm"),
        prefix=NOMIC_BLOCK,
    ),
    post=(*biased("{base}pooler.dense", "hidden_size", "hidden_size", optional=True), *heads("classifier")),
    layer_prefix=NOMIC_BLOCK,
    namings=(Naming(""), Naming("bert."), Naming("model.")),
    tied_by_default=True,
    defaults={
        "vocab_size": 30528,
        "hidden_size": "n_embd",
        "n_embd": 768,
        "intermediate_size": "n_inner",
        "n_inner": 3072,
        "num_hidden_layers": "n_layer",
        "n_layer": 12,
        "num_attention_heads": "n_head",
        "n_head": 12,
        "max_position_embeddings": "n_positions",
        "n_positions": 2048,
        "type_vocab_size": 2,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
    },
)
