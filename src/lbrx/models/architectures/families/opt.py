"""OPT, and BioGPT."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    ALWAYS,
    decoder_defaults,
    embedding,
    in_layer,
    language_head,
    learned_positions,
    linear,
    norm,
    plain_mlp,
)
from lbrx.models.architectures.records import Decoder, LearnedPositions, Naming, Norm, PlainMlp, Weight

LAYER_NORMS = (
    *norm("self_attn_layer_norm", "attn_norm", bias=True),
    *norm("final_layer_norm", "ffn_norm", bias=True),
)


def _attention(bias: str) -> tuple[Weight, ...]:
    names = (("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("out_proj", "attn_output"))
    matrices = (linear(f"self_attn.{name}", "hidden_size", "hidden_size", gguf, bias=bias) for name, gguf in names)
    return tuple(weight for matrix in matrices for weight in matrix)


OPT_EMBEDDING = Weight(
    "{base}embed_tokens.weight",
    ("vocab_size", "word_embed_proj_dim"),
    is_vocabulary=True,
    gguf="token_embd.weight",
)

OPT = Family(
    name="opt",
    model_types=("opt",),
    class_names=("OPTForCausalLM", "OPTModel"),
    pre=(
        OPT_EMBEDDING,
        learned_positions("{base}embed_positions.weight", "max_position_embeddings + 2"),
        *linear("{base}project_in", "hidden_size", "word_embed_proj_dim", when="word_embed_proj_dim != hidden_size"),
    ),
    layer=in_layer(_attention("enable_bias"), LAYER_NORMS, plain_mlp("fc1", "fc2", bias="enable_bias")),
    post=(
        *norm(
            "{base}final_layer_norm",
            "output_norm",
            bias=True,
            when="do_layer_norm_before and not _remove_final_layer_norm",
        ),
        *linear("{base}project_out", "word_embed_proj_dim", "hidden_size", when="word_embed_proj_dim != hidden_size"),
        language_head("{head}lm_head.weight", OPT_EMBEDDING),
    ),
    namings=(Naming("model.decoder."), Naming("decoder."), Naming("")),
    keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    tied_by_default=True,
    defaults=decoder_defaults(
        50272,
        768,
        3072,
        12,
        12,
        max_position_embeddings=2048,
        word_embed_proj_dim="hidden_size",
        do_layer_norm_before=True,
        _remove_final_layer_norm=False,
        enable_bias=True,
        layer_norm_elementwise_affine=True,
        rope_theta=None,
    ),
    decoder=Decoder(
        mlp=PlainMlp("relu", ("gelu", "gelu_tanh")),
        norm=Norm(function="layer", epsilon="0.00001"),
        positions=LearnedPositions(offset=2),
        requires=(
            "do_layer_norm_before and not _remove_final_layer_norm",
            "word_embed_proj_dim == hidden_size",
            "layer_norm_elementwise_affine",
        ),
    ),
)

BIOGPT_EMBEDDING = embedding()

BIOGPT = Family(
    name="biogpt",
    model_types=("biogpt",),
    class_names=("BioGptForCausalLM", "BioGptModel"),
    pre=(
        BIOGPT_EMBEDDING,
        learned_positions("{base}embed_positions.weight", "max_position_embeddings + 2"),
    ),
    layer=in_layer(_attention(ALWAYS), LAYER_NORMS, plain_mlp("fc1", "fc2", bias=ALWAYS)),
    post=(
        *norm("{base}layer_norm", "output_norm", bias=True),
        language_head("{head}output_projection.weight", BIOGPT_EMBEDDING),
    ),
    namings=(Naming("biogpt."), Naming("")),
    tied_by_default=True,
    defaults=decoder_defaults(
        42384,
        1024,
        4096,
        24,
        16,
        max_position_embeddings=1024,
        scale_embedding=True,
        rope_theta=None,
    ),
    decoder=Decoder(
        mlp=PlainMlp("gelu", ("gelu_tanh", "relu")),
        norm=Norm(function="layer", epsilon="0.00001"),
        positions=LearnedPositions(offset=2),
        embedding_scale="hidden_size ** 0.5 if scale_embedding else 1",
    ),
)
