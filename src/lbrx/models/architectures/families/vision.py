"""ViT, CLIP and SigLIP: encoders of images, and of images and text.

Keys of the section ``vision_config`` have the prefix ``vision_``.
"""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.families.bert import biased, heads, layer_norm
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import buffers, in_layer
from lbrx.models.architectures.records import Naming, Weight

VIT_BLOCK = "{base}encoder.layer.{layer}."
TEXT_BLOCK = "{base}encoder.layers.{layer}."
PATCHES = "(image_size // patch_size) * (image_size // patch_size)"
VISION_PATCHES = "(vision_image_size // vision_patch_size) * (vision_image_size // vision_patch_size)"

VIT = Family(
    name="vit",
    model_types=("vit",),
    class_names=("ViTModel", "ViTForImageClassification"),
    pre=(
        Weight("{base}embeddings.cls_token", (1, 1, "hidden_size")),
        Weight("{base}embeddings.mask_token", (1, 1, "hidden_size"), optional=True),
        Weight("{base}embeddings.position_embeddings", (1, f"{PATCHES} + 1", "hidden_size")),
        Weight(
            "{base}embeddings.patch_embeddings.projection.weight",
            ("hidden_size", "num_channels", "patch_size", "patch_size"),
        ),
        Weight("{base}embeddings.patch_embeddings.projection.bias", ("hidden_size",)),
    ),
    layer=in_layer(
        *(
            (
                Weight(f"attention.attention.{each}.weight", ("hidden_size", "hidden_size")),
                Weight(f"attention.attention.{each}.bias", ("hidden_size",), needed_when="qkv_bias"),
            )
            for each in ("query", "key", "value")
        ),
        biased("attention.output.dense", "hidden_size", "hidden_size"),
        biased("intermediate.dense", "intermediate_size", "hidden_size"),
        biased("output.dense", "hidden_size", "intermediate_size"),
        layer_norm("layernorm_before"),
        layer_norm("layernorm_after"),
        prefix=VIT_BLOCK,
    ),
    post=(
        *layer_norm("{base}layernorm"),
        *biased("{base}pooler.dense", "hidden_size", "hidden_size", optional=True),
        *heads("classifier"),
    ),
    layer_prefix=VIT_BLOCK,
    namings=(Naming("vit."), Naming("")),
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
    },
)


def _block(prefix: str, size: str, inner: str) -> tuple[Weight, ...]:
    return in_layer(
        *(biased(f"self_attn.{each}_proj", size, size) for each in ("k", "v", "q", "out")),
        layer_norm("layer_norm1", size),
        biased("mlp.fc1", inner, size),
        biased("mlp.fc2", size, inner),
        layer_norm("layer_norm2", size),
        prefix=prefix,
    )


def _vision_layers() -> tuple[Weight, ...]:
    block = _block("vision_model.encoder.layers.{item}.", "vision_hidden_size", "vision_intermediate_size")
    return tuple(replace(weight, items="vision_num_hidden_layers") for weight in block)


TEXT_EMBEDDINGS = (
    Weight("{base}embeddings.token_embedding.weight", ("vocab_size", "hidden_size"), is_vocabulary=True),
    Weight("{base}embeddings.position_embedding.weight", ("max_position_embeddings", "hidden_size")),
    *buffers("{base}embeddings.position_ids", "vision_model.embeddings.position_ids"),
)
PATCH_EMBEDDING = Weight(
    "vision_model.embeddings.patch_embedding.weight",
    ("vision_hidden_size", "vision_num_channels", "vision_patch_size", "vision_patch_size"),
)
TEXT_LAYER = _block(TEXT_BLOCK, "hidden_size", "intermediate_size")
VISION_DEFAULTS = {
    "vision_hidden_size": 768,
    "vision_intermediate_size": 3072,
    "vision_num_hidden_layers": 12,
    "vision_num_channels": 3,
    "vision_image_size": 224,
}

CLIP = Family(
    name="clip",
    model_types=("clip",),
    class_names=("CLIPModel",),
    pre=(
        *TEXT_EMBEDDINGS,
        Weight("vision_model.embeddings.class_embedding", ("vision_hidden_size",)),
        PATCH_EMBEDDING,
        Weight("vision_model.embeddings.position_embedding.weight", (f"{VISION_PATCHES} + 1", "vision_hidden_size")),
        *layer_norm("vision_model.pre_layrnorm", "vision_hidden_size"),
        *_vision_layers(),
        *layer_norm("vision_model.post_layernorm", "vision_hidden_size"),
    ),
    layer=TEXT_LAYER,
    post=(
        *layer_norm("{base}final_layer_norm"),
        Weight("text_projection.weight"),  # both towers have a size of their own for it, which transformers ignores
        Weight("visual_projection.weight"),
        Weight("logit_scale", ()),
    ),
    layer_prefix=TEXT_BLOCK,
    namings=(Naming("text_model."),),
    defaults={
        **VISION_DEFAULTS,
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "max_position_embeddings": 77,
        "projection_dim": 512,
        "vision_patch_size": 32,
    },
)

SIGLIP = Family(
    name="siglip",
    model_types=("siglip",),
    class_names=("SiglipModel",),
    pre=(
        *TEXT_EMBEDDINGS,
        PATCH_EMBEDDING,
        Weight("vision_model.embeddings.patch_embedding.bias", ("vision_hidden_size",)),
        Weight("vision_model.embeddings.position_embedding.weight", (VISION_PATCHES, "vision_hidden_size")),
        *_vision_layers(),
        *layer_norm("vision_model.post_layernorm", "vision_hidden_size"),
        Weight("vision_model.head.probe", (1, 1, "vision_hidden_size")),
        Weight("vision_model.head.attention.in_proj_weight", ("3 * vision_hidden_size", "vision_hidden_size")),
        Weight("vision_model.head.attention.in_proj_bias", ("3 * vision_hidden_size",)),
        *biased("vision_model.head.attention.out_proj", "vision_hidden_size", "vision_hidden_size"),
        *layer_norm("vision_model.head.layernorm", "vision_hidden_size"),
        *biased("vision_model.head.mlp.fc1", "vision_intermediate_size", "vision_hidden_size"),
        *biased("vision_model.head.mlp.fc2", "vision_hidden_size", "vision_intermediate_size"),
    ),
    layer=TEXT_LAYER,
    post=(
        *layer_norm("{base}final_layer_norm"),
        *biased("{base}head", "projection_size", "hidden_size"),
        Weight("logit_scale", (1,)),
        Weight("logit_bias", (1,)),
    ),
    layer_prefix=TEXT_BLOCK,
    namings=(Naming("text_model."),),
    defaults={
        **VISION_DEFAULTS,
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "max_position_embeddings": 64,
        "projection_size": "hidden_size",
        "vision_patch_size": 16,
    },
)
