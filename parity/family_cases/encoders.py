"""Encoders, encoder-decoders, and models of images and sound. lbrx merges and converts them; it does not run them."""

from __future__ import annotations

from typing import Any

from family_cases import SMALL, Case

_TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
_ROBERTA = {**_TEXT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
_IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
_T5 = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
}
_GATED_T5 = {
    **_T5,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
_TWO_STACKS = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 56,
}
_WHISPER = {**_TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 20, "pad_token_id": 0}
_MODERN = {
    **_TEXT,
    "num_hidden_layers": 4,
    "global_attn_every_n_layers": 3,
    "local_attention": 8,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _case(model_type: str, config: dict[str, Any], auto: str = "AutoModel", **more: Any) -> Case:
    return Case(model_type, config, auto, without=tuple(SMALL), **more)


CASES: dict[str, Case] = {
    "bert": _case("bert", _TEXT),
    "bert-masked-lm": _case("bert", _TEXT, "AutoModelForMaskedLM"),
    "bert-classifier": _case("bert", _TEXT, "AutoModelForSequenceClassification"),
    "bert-reranker": _case("bert", {**_TEXT, "num_labels": 1}, "AutoModelForSequenceClassification"),
    "modernbert": _case("modernbert", _MODERN),
    "modernbert-masked-lm": _case("modernbert", {**_MODERN, "decoder_bias": False}, "AutoModelForMaskedLM"),
    "modernbert-classifier": _case("modernbert", {**_MODERN, "num_labels": 3}, "AutoModelForSequenceClassification"),
    "nomic_bert": _case("nomic_bert", _TEXT),
    "roberta": _case("roberta", _ROBERTA),
    "roberta-masked-lm": _case("roberta", _ROBERTA, "AutoModelForMaskedLM"),
    "xlm-roberta-classifier": _case("xlm-roberta", _ROBERTA, "AutoModelForSequenceClassification"),
    "distilbert": _case(
        "distilbert",
        {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 40},
    ),
    "distilbert-masked-lm": _case(
        "distilbert",
        {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 40},
        "AutoModelForMaskedLM",
    ),
    "t5": _case("t5", _T5, "AutoModelForSeq2SeqLM"),
    "t5-gated": _case("t5", _GATED_T5, "AutoModelForSeq2SeqLM"),
    "t5-encoder": _case("t5", _T5, "T5EncoderModel"),
    "whisper": _case("whisper", _WHISPER, "AutoModelForSpeechSeq2Seq"),
    "bart": _case("bart", {**_TWO_STACKS, "max_position_embeddings": 40}, "AutoModelForSeq2SeqLM"),
    "vit": _case("vit", _IMAGE),
    "vit-classifier": _case("vit", _IMAGE, "AutoModelForImageClassification"),
    "siglip": _case(
        "siglip",
        {
            "text_config": {**_TEXT, "projection_size": 32},
            "vision_config": _IMAGE,
        },
    ),
    "clip": _case(
        "clip",
        {
            "projection_dim": 24,
            "text_config": {**_TEXT, "bos_token_id": 0, "eos_token_id": 1},
            "vision_config": _IMAGE,
        },
    ),
}
