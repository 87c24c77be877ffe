"""Language models with towers for images. Logits are those of text without images."""

from __future__ import annotations

from typing import Any

from family_cases import SMALL, Case

_TEXT: dict[str, Any] = {**SMALL}
_IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
_QWEN_IDS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
_QWEN3_MROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
_QWEN2_VISION = {"depth": 3, "embed_dim": 32, "num_heads": 4, "mlp_ratio": 2, "hidden_size": 64, "patch_size": 4}
_QWEN25_VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "out_hidden_size": 64,
    "patch_size": 4,
    "fullatt_block_indexes": [1, 3],
    "window_size": 16,
}
_QWEN3_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "out_hidden_size": 64,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
_PIXTRAL = {"model_type": "pixtral", **_IMAGE, "head_dim": 8, "num_hidden_layers": 3}
_LLAMA = {"model_type": "llama", "architectures": ["VLlama3ForCausalLM"]}
_PROCESSOR = {"image_mean": [0.5, 0.4, 0.25], "image_std": [0.5, 0.25, 0.125], "size": {"longest_edge": 64}}
_HUB = {"vision_tower.": "vision_tower.vision_model."}
_CLIP = {"model_type": "clip_vision_model", **_IMAGE, "projection_dim": 32}


def _case(
    model_type: str,
    text: dict[str, Any],
    vision: dict[str, Any],
    *,
    renamed: dict[str, str] | None = None,
    processor: dict[str, Any] | None = None,
    peers: tuple[str, ...] = ("llama.cpp", "mlx"),
    **more: Any,
) -> Case:
    config = {"text_config": {**_TEXT, **text}, "vision_config": vision, **more}
    auto = "AutoModelForImageTextToText"
    return Case(model_type, config, auto, without=tuple(SMALL), renamed=renamed or {}, processor=processor, peers=peers)


CASES: dict[str, Case] = {
    "gemma3": _case(
        "gemma3",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7},
        _IMAGE,
        mm_tokens_per_image=4,
        image_token_index=60,
        boi_token_index=61,
        eoi_token_index=62,
        renamed=_HUB,
        processor=_PROCESSOR,
    ),
    "qwen2_vl": _case("qwen2_vl", {"rope_parameters": _MROPE}, _QWEN2_VISION, processor=_PROCESSOR, **_QWEN_IDS),
    "qwen2_5_vl": _case("qwen2_5_vl", {"rope_parameters": _MROPE}, _QWEN25_VISION, processor=_PROCESSOR, **_QWEN_IDS),
    "qwen3_vl": _case(
        "qwen3_vl", {"head_dim": 16, "rope_parameters": _QWEN3_MROPE}, _QWEN3_VISION, processor=_PROCESSOR, **_QWEN_IDS
    ),
    "qwen3_vl-tied": _case(
        "qwen3_vl",
        {"head_dim": 16, "rope_parameters": _QWEN3_MROPE, "tie_word_embeddings": True},
        _QWEN3_VISION,
        tie_word_embeddings=True,
        **_QWEN_IDS,
    ),
    "mistral3": _case(
        "mistral3",
        {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        _PIXTRAL,
        image_token_index=60,
        processor=_PROCESSOR,
    ),
    "llava": _case("llava", {"model_type": "llama"}, _CLIP, image_token_index=60, renamed=_HUB),
    "llava-pixtral": _case(
        "llava",
        {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        _PIXTRAL,
        image_token_index=60,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        processor=_PROCESSOR,
    ),
    "internvl": _case(
        "internvl",
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        {**_IMAGE, "image_size": [32, 32], "patch_size": [8, 8]},
        image_token_id=60,
    ),
    "smolvlm": _case("smolvlm", _LLAMA, _IMAGE, image_token_id=60, scale_factor=2, processor=_PROCESSOR),
    "idefics3": _case("idefics3", _LLAMA, _IMAGE, image_token_id=60, scale_factor=2, processor=_PROCESSOR),
    "paligemma": _case(
        "paligemma",
        {"model_type": "gemma", "head_dim": 16},
        _IMAGE,
        image_token_index=60,
        projection_dim=64,
        renamed=_HUB,
    ),
    "llama4": _case(
        "llama4",
        {
            "head_dim": 16,
            "intermediate_size_mlp": 96,
            "intermediate_size": 48,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192,
            "num_hidden_layers": 4,
            "no_rope_layer_interval": 4,
        },
        {
            **_IMAGE,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "pixel_shuffle_ratio": 0.5,
        },
        peers=("llama.cpp",),
        image_token_index=60,
    ),
}
