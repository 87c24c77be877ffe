"""The towers and projectors of vision-language models that llama.cpp reads from a file of its own (``mmproj``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import pairwise
from math import isqrt
from typing import Any, Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.config import Config, Values

Change = Literal["", "adds_one", "paired", "thirds", "frames"]


@dataclass(frozen=True, slots=True)
class ProjectorWeight:
    """A tensor of a tower: its names in Hugging Face files and in GGUF files, without ``.weight`` and ``.bias``.

    ``change``: the file has 1 + weight, other rows (``paired``: the halves of each head interleaved), three tensors
    (``thirds``: query, key and value), or one for each of two frames.
    ``type_name`` is the type of the matrix if it does not follow that of the file.

    >>> ProjectorWeight("patch_embed.proj", "v.patch_embd", "frames").gguf
    'v.patch_embd'
    """

    name: str
    gguf: str
    change: Change = ""
    type_name: str | None = None
    optional: bool = False


Keys = Callable[[Config, Values], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Projector:
    """One kind of tower with its projector.

    ``prefixes`` are the beginnings of the names of its tensors, the longest first, and what stands for them in
    ``weights``. ``keys`` returns key-values from the config (with the prefix ``vision_`` for those of the tower) and
    preprocessor_config.json. ``left_out`` are beginnings of names that llama.cpp does not need.
    """

    name: str  # the value of clip.projector_type
    model_types: tuple[str, ...]
    prefixes: tuple[tuple[str, str], ...]
    weights: tuple[ProjectorWeight, ...]
    keys: Keys
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tower_type: str | None = None  # the model_type of the tower, if others have projectors of other kinds
    left_out: tuple[str, ...] = ()


def _vit_block(prefix: str) -> tuple[ProjectorWeight, ...]:
    names = {
        "layer_norm1": "ln1",
        "layer_norm2": "ln2",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_out",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
    }
    block = [ProjectorWeight(f"{prefix}.{{layer}}.{name}", f"v.blk.{{layer}}.{gguf}") for name, gguf in names.items()]
    return tuple(block)


SIGLIP_TOWER = (
    ProjectorWeight("tower.embeddings.patch_embedding", "v.patch_embd", type_name="f32"),
    ProjectorWeight("tower.embeddings.position_embedding", "v.position_embd", type_name="f32"),
    *_vit_block("tower.encoder.layers"),
    ProjectorWeight("tower.post_layernorm", "v.post_ln"),
)


def _gemma3_keys(config: Config, processor: Values) -> dict[str, Any]:
    side = isqrt(Config(processor, {"image_seq_length": 256}, "preprocessor_config.json").count("image_seq_length"))
    factor = config.count("vision_image_size") // config.count("vision_patch_size") // side
    keys: dict[str, Any] = {
        "clip.vision.attention.layer_norm_epsilon": config.number("vision_layer_norm_eps"),
        "clip.use_gelu": True,
    }
    return keys | ({"clip.vision.projector.scale_factor": factor} if factor not in (0, 4) else {})


GEMMA3 = Projector(
    "gemma3",
    ("gemma3",),
    prefixes=(
        ("model.vision_tower.vision_model.", "tower."),
        ("vision_tower.vision_model.", "tower."),
        ("model.vision_tower.", "tower."),
        ("vision_tower.", "tower."),
        ("model.multi_modal_projector.", "projector."),
        ("multi_modal_projector.", "projector."),
    ),
    weights=(
        *SIGLIP_TOWER,
        ProjectorWeight("projector.mm_input_projection", "mm.input_projection", type_name="f16"),
        ProjectorWeight("projector.mm_soft_emb_norm", "mm.soft_emb_norm", "adds_one"),
    ),
    keys=_gemma3_keys,
    defaults={"vision_layer_norm_eps": 1e-6},
    left_out=("tower.head.",),
)


def _idefics3_keys(config: Config, processor: Values) -> dict[str, Any]:
    size = processor.get("size")
    edge = size.get("longest_edge") if isinstance(size, Mapping) else None
    return {
        "clip.vision.attention.layer_norm_epsilon": config.number("vision_layer_norm_eps"),
        "clip.vision.projector.scale_factor": config.count("scale_factor"),
        "clip.use_gelu": True,
        "clip.vision.preproc_image_size": edge or config.count("vision_image_size"),
    }


IDEFICS3 = Projector(
    "idefics3",
    ("idefics3", "smolvlm"),
    prefixes=(("model.vision_model.", "tower."), ("model.connector.", "connector.")),
    weights=(*SIGLIP_TOWER, ProjectorWeight("connector.modality_projection.proj", "mm.model.fc")),
    keys=_idefics3_keys,
    defaults={
        "vision_hidden_size": 1152,
        "vision_num_attention_heads": 16,
        "vision_intermediate_size": 3072,
        "vision_num_hidden_layers": 12,
        "vision_layer_norm_eps": 1e-5,
        "scale_factor": 2,
    },
)


def _pixtral_keys(config: Config, _processor: Values) -> dict[str, Any]:
    activation = config.value("vision_hidden_act")
    if activation not in ("silu", "gelu"):
        raise config.wrong(f"'hidden_act' of 'vision_config' is {activation!r}; expected 'silu' or 'gelu'")
    keys: dict[str, Any] = {
        "clip.vision.attention.layer_norm_epsilon": config.number("vision_layer_norm_eps"),
        f"clip.use_{activation}": True,
    }
    merge = config.get("spatial_merge_size")
    return keys | ({} if merge is None else {"clip.vision.spatial_merge_size": config.count("spatial_merge_size")})


PIXTRAL = Projector(
    "pixtral",
    ("mistral3", "llava"),
    prefixes=(
        ("model.vision_tower.", "tower."),
        ("vision_tower.", "tower."),
        ("model.multi_modal_projector.", "projector."),
        ("multi_modal_projector.", "projector."),
    ),
    weights=(
        ProjectorWeight("tower.patch_conv", "v.patch_embd", type_name="f32"),
        ProjectorWeight("tower.ln_pre", "v.pre_ln"),
        ProjectorWeight("tower.transformer.layers.{layer}.attention_norm", "v.blk.{layer}.ln1"),
        ProjectorWeight("tower.transformer.layers.{layer}.attention.q_proj", "v.blk.{layer}.attn_q", "paired"),
        ProjectorWeight("tower.transformer.layers.{layer}.attention.k_proj", "v.blk.{layer}.attn_k", "paired"),
        ProjectorWeight("tower.transformer.layers.{layer}.attention.v_proj", "v.blk.{layer}.attn_v"),
        ProjectorWeight("tower.transformer.layers.{layer}.attention.o_proj", "v.blk.{layer}.attn_out"),
        ProjectorWeight("tower.transformer.layers.{layer}.ffn_norm", "v.blk.{layer}.ln2"),
        ProjectorWeight("tower.transformer.layers.{layer}.feed_forward.gate_proj", "v.blk.{layer}.ffn_gate"),
        ProjectorWeight("tower.transformer.layers.{layer}.feed_forward.up_proj", "v.blk.{layer}.ffn_up"),
        ProjectorWeight("tower.transformer.layers.{layer}.feed_forward.down_proj", "v.blk.{layer}.ffn_down"),
        ProjectorWeight("projector.norm", "mm.input_norm", optional=True),
        ProjectorWeight("projector.patch_merger.merging_layer", "mm.patch_merger", type_name="f32", optional=True),
        ProjectorWeight("projector.linear_1", "mm.1"),
        ProjectorWeight("projector.linear_2", "mm.2"),
    ),
    keys=_pixtral_keys,
    defaults={"vision_layer_norm_eps": 1e-5, "vision_hidden_act": "'silu'"},
    tower_type="pixtral",
)

QWEN_BLOCK = (
    ProjectorWeight("visual.blocks.{layer}.norm1", "v.blk.{layer}.ln1"),
    ProjectorWeight("visual.blocks.{layer}.norm2", "v.blk.{layer}.ln2"),
    ProjectorWeight("visual.blocks.{layer}.attn.proj", "v.blk.{layer}.attn_out"),
)
QWEN2_BLOCK = (
    *QWEN_BLOCK,
    ProjectorWeight("visual.blocks.{layer}.attn.qkv", "v.blk.{layer}.attn_{third}", "thirds"),
    ProjectorWeight("visual.patch_embed.proj", "v.patch_embd", "frames", type_name="f32"),
    ProjectorWeight("visual.merger.ln_q", "v.post_ln"),
    ProjectorWeight("visual.merger.mlp.0", "mm.0"),
    ProjectorWeight("visual.merger.mlp.2", "mm.2"),
)
QWEN_PREFIXES = (("model.visual.", "visual."), ("visual.", "visual."))
QWEN_DEFAULTS = {
    "vision_image_size": 560,
    "vision_num_attention_heads": "vision_num_heads",
    "vision_num_hidden_layers": "vision_depth",
}


def _qwen2_keys(_config: Config, _processor: Values) -> dict[str, Any]:
    return {"clip.vision.attention.layer_norm_epsilon": 1e-6}


QWEN2_VL = Projector(
    "qwen2vl_merger",
    ("qwen2_vl",),
    QWEN_PREFIXES,
    weights=(
        *QWEN2_BLOCK,
        ProjectorWeight("visual.blocks.{layer}.mlp.fc1", "v.blk.{layer}.ffn_up"),
        ProjectorWeight("visual.blocks.{layer}.mlp.fc2", "v.blk.{layer}.ffn_down"),
    ),
    keys=_qwen2_keys,
    defaults=QWEN_DEFAULTS,
)


def _qwen25_keys(config: Config, processor: Values) -> dict[str, Any]:
    full = config.get("vision_fullatt_block_indexes")
    if not isinstance(full, list) or not full or any(type(each) is not int for each in full):
        raise config.wrong(f"'fullatt_block_indexes' is {full!r:.60}; expected a list of the numbers of blocks")
    period = full[0] + 1
    if any(later - earlier != period for earlier, later in pairwise(full)):
        raise config.wrong(f"'fullatt_block_indexes' is {full!r:.60}; llama.cpp has full attention in every n-th block")
    return {"clip.use_silu": True, "clip.vision.n_wa_pattern": period, **_qwen2_keys(config, processor)}


QWEN2_5_VL = Projector(
    "qwen2.5vl_merger",
    ("qwen2_5_vl",),
    QWEN_PREFIXES,
    weights=(
        *QWEN2_BLOCK,
        ProjectorWeight("visual.blocks.{layer}.mlp.gate_proj", "v.blk.{layer}.ffn_gate"),
        ProjectorWeight("visual.blocks.{layer}.mlp.up_proj", "v.blk.{layer}.ffn_up"),
        ProjectorWeight("visual.blocks.{layer}.mlp.down_proj", "v.blk.{layer}.ffn_down"),
    ),
    keys=_qwen25_keys,
    defaults=QWEN_DEFAULTS,
)


def deepstack_blocks(config: Config) -> list[int]:
    """Return the numbers of the blocks of a Qwen tower whose results go to layers of the language model."""
    blocks, count = config.get("vision_deepstack_visual_indexes") or [], config.count("vision_num_hidden_layers")
    if not isinstance(blocks, list) or any(type(each) is not int or not 0 <= each < count for each in blocks):
        raise config.wrong(f"'deepstack_visual_indexes' is {blocks!r:.60}; expected numbers of the {count} blocks")
    return blocks


def _qwen3_keys(config: Config, _processor: Values) -> dict[str, Any]:
    blocks = deepstack_blocks(config)
    return {
        "clip.use_gelu": True,
        "clip.vision.spatial_merge_size": config.count("vision_spatial_merge_size"),
        "clip.vision.attention.layer_norm_epsilon": config.number("rms_norm_eps"),
        "clip.vision.is_deepstack_layers": [each in blocks for each in range(config.count("vision_num_hidden_layers"))],
    }


QWEN3_VL = Projector(
    "qwen3vl_merger",
    ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    QWEN_PREFIXES,
    weights=(
        *QWEN_BLOCK,
        ProjectorWeight("visual.blocks.{layer}.attn.qkv", "v.blk.{layer}.attn_qkv"),
        ProjectorWeight("visual.blocks.{layer}.mlp.linear_fc1", "v.blk.{layer}.ffn_up"),
        ProjectorWeight("visual.blocks.{layer}.mlp.linear_fc2", "v.blk.{layer}.ffn_down"),
        ProjectorWeight("visual.patch_embed.proj", "v.patch_embd", "frames", type_name="f32"),
        ProjectorWeight("visual.pos_embed", "v.position_embd", type_name="f32"),
        ProjectorWeight("visual.merger.norm", "v.post_ln"),
        ProjectorWeight("visual.merger.linear_fc1", "mm.0"),
        ProjectorWeight("visual.merger.linear_fc2", "mm.2"),
        *(
            ProjectorWeight(
                f"visual.deepstack_merger_list.{{deepstack}}.{name}", f"v.deepstack.{{layer}}.{gguf}", optional=True
            )
            for name, gguf in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2"))
        ),
    ),
    keys=_qwen3_keys,
    defaults={**QWEN_DEFAULTS, "rms_norm_eps": 1e-6, "vision_spatial_merge_size": 2},
)

PROJECTORS = (GEMMA3, IDEFICS3, PIXTRAL, QWEN2_VL, QWEN2_5_VL, QWEN3_VL)


def find_projector(config: Values) -> Projector | None:
    """Return the projector of a vision-language model, or None if llama.cpp's form of it is not known.

    >>> find_projector({"model_type": "qwen3_vl"}).name
    'qwen3vl_merger'
    >>> find_projector({"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}}) is None
    True
    """
    tower = config.get("vision_config")
    tower_type = tower.get("model_type") if isinstance(tower, Mapping) else None
    for projector in PROJECTORS:
        is_tower = projector.tower_type is None or projector.tower_type == tower_type
        if config.get("model_type") in projector.model_types and is_tower:
            return projector
    return None


def sizes(projector: Projector, config: Config) -> dict[str, Any]:
    """Return the key-values that every tower has."""
    values = {
        "clip.vision.projection_dim": "hidden_size",
        "clip.vision.image_size": "vision_image_size",
        "clip.vision.patch_size": "vision_patch_size",
        "clip.vision.embedding_length": "vision_hidden_size",
        "clip.vision.feed_forward_length": "vision_intermediate_size",
        "clip.vision.block_count": "vision_num_hidden_layers",
        "clip.vision.attention.head_count": "vision_num_attention_heads",
    }
    if projector is QWEN2_VL:  # whose config calls the width of the tower embed_dim, and that of its result hidden_size
        values |= {
            "clip.vision.embedding_length": "vision_embed_dim",
            "clip.vision.feed_forward_length": "vision_hidden_size",
        }
    keys = {name: config.count(key) for name, key in values.items()}
    if projector is QWEN3_VL and config.get("vision_num_position_embeddings") is not None:
        side = isqrt(config.count("vision_num_position_embeddings"))
        keys["clip.vision.image_size"] = side * config.count("vision_patch_size")
    return keys
