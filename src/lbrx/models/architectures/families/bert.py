"""BERT, RoBERTa and DistilBERT: encoders with learned positions and norms after attention and MLP."""

from __future__ import annotations

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import buffers, in_layer
from lbrx.models.architectures.records import Dimension, Gguf, Naming, Weight

BERT_BLOCK = "{base}encoder.layer.{layer}."
DISTILBERT_BLOCK = "{base}transformer.layer.{layer}."


def biased(
    module: str, rows: Dimension, columns: Dimension, gguf: str | None = None, *, optional: bool = False
) -> tuple[Weight, ...]:
    """Return a matrix and its bias."""
    return (
        Weight(f"{module}.weight", (rows, columns), optional, gguf=gguf and f"{gguf}.weight"),
        Weight(f"{module}.bias", (rows,), optional, gguf=gguf and f"{gguf}.bias"),
    )


def layer_norm(
    module: str, size: Dimension = "hidden_size", gguf: str | None = None, *, optional: bool = False
) -> tuple[Weight, ...]:
    """Return the scale and the bias of a norm, which checkpoints converted from TensorFlow call gamma and beta."""
    weights: list[Weight] = []
    for part, old in (("weight", "gamma"), ("bias", "beta")):
        name, older = f"{module}.{part}", f"{module}.{old}"
        weights.append(Weight(name, (size,), optional, replaced_by=(older,), gguf=gguf and f"{gguf}.{part}"))
        weights.append(Weight(older, (size,), optional=True))
    return tuple(weights)


def heads(*modules: str, gguf: str | None = None) -> tuple[Weight, ...]:
    """Return matrices and biases with one row per label, whose number no key of the config tells."""
    return tuple(
        Weight(f"{module}.{part}", optional=True, gguf=gguf and f"{gguf}.{part}")
        for module in modules
        for part in ("weight", "bias")
    )


def vocabulary_head(prefix: str, dense: str, norm: str, size: Dimension = "hidden_size") -> tuple[Weight, ...]:
    """Return the head that predicts masked tokens; its matrix is that of the embedding."""
    return (
        *biased(f"{prefix}{dense}", size, size, optional=True),
        *layer_norm(f"{prefix}{norm}", size, optional=True),
        Weight(f"{prefix}bias", ("vocab_size",), optional=True, is_vocabulary=True),
        Weight(f"{prefix}decoder.weight", ("vocab_size", size), optional=True, is_vocabulary=True),
        Weight(f"{prefix}decoder.bias", ("vocab_size",), optional=True, is_vocabulary=True),
    )


BERT_EMBEDDINGS = (
    Weight(
        "{base}embeddings.word_embeddings.weight",
        ("vocab_size", "hidden_size"),
        is_vocabulary=True,
        gguf="token_embd.weight",
    ),
    Weight(
        "{base}embeddings.position_embeddings.weight",
        ("max_position_embeddings", "hidden_size"),
        gguf="position_embd.weight",
    ),
    Weight(
        "{base}embeddings.token_type_embeddings.weight", ("type_vocab_size", "hidden_size"), gguf="token_types.weight"
    ),
    *layer_norm("{base}embeddings.LayerNorm", gguf="token_embd_norm"),
    *buffers("{base}embeddings.position_ids"),
)
BERT_LAYER = in_layer(
    biased("attention.self.query", "hidden_size", "hidden_size", "attn_q"),
    biased("attention.self.key", "hidden_size", "hidden_size", "attn_k"),
    biased("attention.self.value", "hidden_size", "hidden_size", "attn_v"),
    biased("attention.output.dense", "hidden_size", "hidden_size", "attn_output"),
    layer_norm("attention.output.LayerNorm", gguf="attn_output_norm"),
    biased("intermediate.dense", "intermediate_size", "hidden_size", "ffn_up"),
    biased("output.dense", "hidden_size", "intermediate_size", "ffn_down"),
    layer_norm("output.LayerNorm", gguf="layer_output_norm"),
    prefix=BERT_BLOCK,
)
BERT_POOLER = biased("{base}pooler.dense", "hidden_size", "hidden_size", optional=True)
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
BERT_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.causal": "False",
}
BERT_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}

BERT = Family(
    name="bert",
    model_types=("bert",),
    class_names=("BertModel", "BertForMaskedLM", "BertForSequenceClassification", "BertForPreTraining"),
    pre=BERT_EMBEDDINGS,
    layer=BERT_LAYER,
    post=(
        *BERT_POOLER,
        *vocabulary_head("cls.predictions.", "transform.dense", "transform.LayerNorm"),
        *heads("cls.seq_relationship", "qa_outputs"),
        *heads("classifier", gguf="cls"),
    ),
    layer_prefix=BERT_BLOCK,
    namings=(Naming("bert."), Naming("")),
    tied_by_default=True,
    defaults=BERT_DEFAULTS,
    omitted_sizes=SIZES,
    gguf=Gguf("bert", is_encoder=True, keys=BERT_KEYS),
)

ROBERTA = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    class_names=("RobertaModel", "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM", "CamembertModel"),
    pre=BERT_EMBEDDINGS,
    layer=BERT_LAYER,
    post=(
        *BERT_POOLER,
        *vocabulary_head("lm_head.", "dense", "layer_norm"),
        *biased("classifier.dense", "hidden_size", "hidden_size", "cls", optional=True),
        *heads("classifier.out_proj", gguf="cls.output"),
        *heads("classifier", "qa_outputs"),
    ),
    layer_prefix=BERT_BLOCK,
    namings=(Naming("roberta."), Naming("")),
    tied_by_default=True,
    defaults={**BERT_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    omitted_sizes=SIZES,
    gguf=Gguf(
        "bert",
        is_encoder=True,
        keys={**BERT_KEYS, "context_length": "max_position_embeddings - pad_token_id - 1"},
        first_position="pad_token_id + 1",
    ),
)

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    class_names=("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    pre=(
        Weight(
            "{base}embeddings.word_embeddings.weight",
            ("vocab_size", "dim"),
            is_vocabulary=True,
            gguf="token_embd.weight",
        ),
        Weight(
            "{base}embeddings.position_embeddings.weight",
            ("max_position_embeddings", "dim"),
            gguf="position_embd.weight",
        ),
        *layer_norm("{base}embeddings.LayerNorm", "dim", "token_embd_norm"),
        *buffers("{base}embeddings.position_ids"),
    ),
    layer=in_layer(
        biased("attention.q_lin", "dim", "dim", "attn_q"),
        biased("attention.k_lin", "dim", "dim", "attn_k"),
        biased("attention.v_lin", "dim", "dim", "attn_v"),
        biased("attention.out_lin", "dim", "dim", "attn_output"),
        layer_norm("sa_layer_norm", "dim", "attn_output_norm"),
        biased("ffn.lin1", "hidden_dim", "dim", "ffn_up"),
        biased("ffn.lin2", "dim", "hidden_dim", "ffn_down"),
        layer_norm("output_layer_norm", "dim", "layer_output_norm"),
        prefix=DISTILBERT_BLOCK,
    ),
    post=(
        *biased("vocab_transform", "dim", "dim", optional=True),
        *layer_norm("vocab_layer_norm", "dim", optional=True),
        Weight("vocab_projector.weight", ("vocab_size", "dim"), optional=True, is_vocabulary=True),
        Weight("vocab_projector.bias", ("vocab_size",), optional=True, is_vocabulary=True),
        *biased("pre_classifier", "dim", "dim", optional=True),
        *heads("classifier", "qa_outputs"),
    ),
    layer_prefix=DISTILBERT_BLOCK,
    layers_key="n_layers",
    namings=(Naming("distilbert."), Naming("")),
    tied_by_default=True,
    defaults={
        "vocab_size": 30522,
        "dim": 768,
        "hidden_dim": 3072,
        "n_layers": 6,
        "n_heads": 12,
        "max_position_embeddings": 512,
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "layer_norm_eps": 1e-12,
    },
    omitted_sizes=SIZES,
    gguf=Gguf("bert", is_encoder=True, keys=BERT_KEYS),
)
