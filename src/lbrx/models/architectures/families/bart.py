"""BART and Whisper: an encoder and a decoder with learned positions."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.families.bert import biased, layer_norm
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import in_layer
from lbrx.models.architectures.records import Dimension, Naming, Weight

DECODER_BLOCK = "{base}decoder.layers.{layer}."


def _attention(module: str, *, has_key_bias: bool) -> tuple[Weight, ...]:
    weights = [part for each in "kvq" for part in biased(f"{module}.{each}_proj", "d_model", "d_model")]
    weights += biased(f"{module}.out_proj", "d_model", "d_model")
    return tuple(weight for weight in weights if has_key_bias or not weight.name.endswith("k_proj.bias"))


def _layer(size: Dimension, *, has_key_bias: bool, is_decoder: bool) -> tuple[Weight, ...]:
    cross = (
        *_attention("encoder_attn", has_key_bias=has_key_bias),
        *layer_norm("encoder_attn_layer_norm", "d_model"),
    )
    return (
        *_attention("self_attn", has_key_bias=has_key_bias),
        *layer_norm("self_attn_layer_norm", "d_model"),
        *(cross if is_decoder else ()),
        *biased("fc1", size, "d_model"),
        *biased("fc2", "d_model", size),
        *layer_norm("final_layer_norm", "d_model"),
    )


def _encoder(*, has_key_bias: bool) -> tuple[Weight, ...]:
    weights = in_layer(
        _layer("encoder_ffn_dim", has_key_bias=has_key_bias, is_decoder=False),
        prefix="{base}encoder.layers.{item}.",
    )
    return tuple(replace(weight, items="encoder_layers") for weight in weights)


def _vocabulary(name: str, *, optional: bool = False) -> Weight:
    return Weight(name, ("vocab_size", "d_model"), optional, is_vocabulary=True)


BART = Family(
    name="bart",
    model_types=("bart",),
    class_names=("BartForConditionalGeneration", "BartModel", "BartForSequenceClassification"),
    pre=(
        _vocabulary("{base}shared.weight"),
        _vocabulary("{base}encoder.embed_tokens.weight", optional=True),
        _vocabulary("{base}decoder.embed_tokens.weight", optional=True),
        Weight("{base}encoder.embed_positions.weight", ("max_position_embeddings + 2", "d_model")),
        *layer_norm("{base}encoder.layernorm_embedding", "d_model"),
        *_encoder(has_key_bias=True),
        Weight("{base}decoder.embed_positions.weight", ("max_position_embeddings + 2", "d_model")),
        *layer_norm("{base}decoder.layernorm_embedding", "d_model"),
    ),
    layer=in_layer(_layer("decoder_ffn_dim", has_key_bias=True, is_decoder=True), prefix=DECODER_BLOCK),
    post=(
        Weight("final_logits_bias", (1, "vocab_size"), optional=True),
        _vocabulary("lm_head.weight", optional=True),
        *(
            Weight(f"classification_head.{module}.{part}", optional=True)
            for module in ("dense", "out_proj")
            for part in ("weight", "bias")
        ),
    ),
    layer_prefix=DECODER_BLOCK,
    layers_key="decoder_layers",
    namings=(Naming("model."), Naming("")),
    tied_by_default=True,
    defaults={
        "vocab_size": 50265,
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "max_position_embeddings": 1024,
    },
)

WHISPER = Family(
    name="whisper",
    model_types=("whisper",),
    class_names=("WhisperForConditionalGeneration", "WhisperModel"),
    pre=(
        Weight("{base}encoder.conv1.weight", ("d_model", "num_mel_bins", 3)),
        Weight("{base}encoder.conv1.bias", ("d_model",)),
        Weight("{base}encoder.conv2.weight", ("d_model", "d_model", 3)),
        Weight("{base}encoder.conv2.bias", ("d_model",)),
        Weight("{base}encoder.embed_positions.weight", ("max_source_positions", "d_model")),
        *_encoder(has_key_bias=False),
        *layer_norm("{base}encoder.layer_norm", "d_model"),
        _vocabulary("{base}decoder.embed_tokens.weight"),
        Weight("{base}decoder.embed_positions.weight", ("max_target_positions", "d_model")),
    ),
    layer=in_layer(_layer("decoder_ffn_dim", has_key_bias=False, is_decoder=True), prefix=DECODER_BLOCK),
    post=(*layer_norm("{base}decoder.layer_norm", "d_model"), _vocabulary("proj_out.weight", optional=True)),
    layer_prefix=DECODER_BLOCK,
    layers_key="decoder_layers",
    namings=(Naming("model."), Naming("")),
    tied_by_default=True,
    defaults={
        "vocab_size": 51865,
        "d_model": 384,
        "num_mel_bins": 80,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_ffn_dim": 1536,
        "decoder_ffn_dim": 1536,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    },
)
