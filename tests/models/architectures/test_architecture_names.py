"""Prefixes, tied embeddings, unknown tensors and renumbered layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import UsageError
from lbrx.models.architectures import Naming, find_family
from support.tiny_architectures import TINY, Tiny

every_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)

# As on the Hub: the nested config leaves out whatever is the default of its class.
GEMMA3_VISION = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 2,
    },
    "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 3},
}
TOWER = [
    "vision_tower.vision_model.embeddings.patch_embedding.weight",
    *(f"vision_tower.vision_model.encoder.layers.{layer}.layer_norm1.weight" for layer in range(3)),
    "vision_tower.vision_model.post_layernorm.weight",
    "multi_modal_projector.mm_input_projection_weight",
    "multi_modal_projector.mm_soft_emb_norm.weight",
]


def _gemma3_names(base: str) -> list[str]:
    names = [role.name for role in find_family(GEMMA3_VISION).tensors(GEMMA3_VISION)]
    return [name.replace("model.", base, 1) for name in names]


@pytest.mark.parametrize("base", ["language_model.model.", "model.language_model."])
def test_language_model_inside_of_a_multi_modal_one(base: str) -> None:
    architecture = find_family(GEMMA3_VISION)
    names = [*_gemma3_names(base), *TOWER]
    assert architecture.missing(GEMMA3_VISION, names) == []
    shapes = architecture.expected_shapes(GEMMA3_VISION, names)
    assert shapes[f"{base}embed_tokens.weight"] == (262208, 2560)
    assert shapes[f"{base}layers.1.self_attn.k_proj.weight"] == (4 * 256, 2560)
    assert architecture.layer_of(f"{base}layers.1.mlp.up_proj.weight") == 1


def test_towers_are_carried_along_before_the_layers_with_their_own_numbers() -> None:
    architecture = find_family(GEMMA3_VISION)
    unclaimed = architecture.unclaimed(GEMMA3_VISION, [*_gemma3_names("language_model.model."), *TOWER])
    assert [role.name for role in unclaimed] == sorted(TOWER)
    assert {(role.part, role.layer, role.is_known) for role in unclaimed} == {("pre", None, False)}
    modules = {role.name: role.module for role in unclaimed}
    assert modules["vision_tower.vision_model.post_layernorm.weight"] == "vision_tower"
    assert modules["multi_modal_projector.mm_soft_emb_norm.weight"] == "multi_modal_projector"


def test_names_with_other_prefixes_are_the_same_tensors() -> None:
    tiny = TINY["gpt2"]
    architecture = find_family(tiny.config)
    bare = [name.removeprefix("transformer.") for name in tiny.names()]
    assert architecture.naming(bare) == Naming("")
    assert architecture.missing(tiny.config, bare) == []
    assert architecture.unclaimed(tiny.config, bare) == []
    assert [architecture.source_name(name, tiny.config, bare) for name in tiny.names()] == bare
    assert [architecture.source_name(name, tiny.config, tiny.names()) for name in bare] == tiny.names()


def test_translation_knows_the_head_and_leaves_strangers_alone() -> None:
    architecture = find_family({"model_type": "gemma3"})
    vision = Naming("language_model.model.", "language_model.")
    assert architecture.translate("lm_head.weight", vision) == "language_model.lm_head.weight"
    assert architecture.translate("model.norm.weight", vision) == "language_model.model.norm.weight"
    assert architecture.translate("model.layers.7.x", vision) == "language_model.model.layers.7.x"
    assert architecture.translate("projector.weight", vision) == "projector.weight"


def test_tied_head_is_supplied_by_the_embedding_only_when_the_config_ties_them() -> None:
    tiny = TINY["llama"]
    architecture = find_family(tiny.config)
    tied = {**tiny.config, "tie_word_embeddings": True}
    names = [name for name in tiny.names() if name != "lm_head.weight"]
    assert architecture.source_name("lm_head.weight", tied, names) == "model.embed_tokens.weight"
    assert architecture.source_name("lm_head.weight", tiny.config, names) is None
    assert architecture.missing(tied, names) == []
    assert architecture.missing(tiny.config, names) == ["lm_head.weight"]
    assert "lm_head.weight" not in {role.name for role in architecture.tensors(tied, names)}


def test_tied_head_that_is_in_the_file_is_kept() -> None:
    config = {**TINY["llama"].config, "tie_word_embeddings": True}
    roles = find_family(config).tensors(config, TINY["llama"].names())
    head = next(role for role in roles if role.name == "lm_head.weight")
    assert (head.tied_to, head.optional, head.part) == ("model.embed_tokens.weight", True, "post")


def test_embedding_may_be_stored_under_the_name_of_the_tied_head() -> None:
    config = {**TINY["llama"].config, "tie_word_embeddings": True}
    names = [name for name in TINY["llama"].names() if name != "model.embed_tokens.weight"]
    architecture = find_family(config)
    assert architecture.source_name("model.embed_tokens.weight", config, names) == "lm_head.weight"
    assert architecture.missing(config, names) == []


def test_tying_is_read_from_the_whole_config_and_from_the_nested_one() -> None:
    gemma3 = find_family(GEMMA3_VISION)
    assert gemma3.is_tied(GEMMA3_VISION)
    assert not gemma3.is_tied({**GEMMA3_VISION, "tie_word_embeddings": False})
    nested = {"text_config": {"tie_word_embeddings": True}, "tie_word_embeddings": False}
    assert gemma3.is_tied(nested)
    assert gemma3.is_tied({"text_config": {"tie_word_embeddings": False}, "tie_word_embeddings": True})
    assert not find_family({"model_type": "llama"}).is_tied({})


@every_tiny
def test_unknown_tensors_are_all_placed(tiny: Tiny) -> None:
    architecture = find_family(tiny.config)
    prefix = tiny.layer[0].partition("{i}")[0]
    strangers = {
        f"{prefix}1.adapter.lora_a": ("layer", 1),
        f"{prefix}2.extra": ("layer", 2),
        f"{prefix}3.beyond": ("pre", None),
        "score.weight": ("post", None),
        "out_proj.bias": ("post", None),
        "something.else.0.weight": ("pre", None),
    }
    names = [*tiny.names(), *strangers]
    unclaimed = architecture.unclaimed(tiny.config, names)
    assert {role.name: (role.part, role.layer) for role in unclaimed} == strangers
    assert sorted(role.name for role in architecture.tensors(tiny.config, names)) == sorted(names)


def test_unknown_tensors_stand_behind_the_known_ones_of_their_layer() -> None:
    tiny = TINY["llama"]
    roles = find_family(tiny.config).tensors(tiny.config, [*tiny.names(), "model.layers.0.a"])
    names = [role.name for role in roles]
    assert names.index("model.layers.0.a") == 1 + len(tiny.layer)
    assert names[names.index("model.layers.0.a") + 1].startswith("model.layers.1.")


@every_tiny
@given(target=st.integers(min_value=0, max_value=200))
def test_renaming_a_layer_changes_its_number_and_nothing_else(tiny: Tiny, target: int) -> None:
    architecture = find_family(tiny.config)
    for template in tiny.layer:
        source_name, target_name = template.replace("{i}", "1"), template.replace("{i}", str(target))
        assert architecture.rename_layer(source_name, 1, target) == target_name
        assert architecture.layer_of(target_name) == target


def test_renaming_refuses_a_tensor_of_another_layer() -> None:
    architecture = find_family({"model_type": "llama"})
    with pytest.raises(UsageError, match=r"'model\.layers\.11\.x' is not in layer 1 .* 'model\.layers\.1\.'"):
        architecture.rename_layer("model.layers.11.x", 1, 2)
    with pytest.raises(UsageError, match=r"'model\.norm\.weight' is not in layer 0"):
        architecture.rename_layer("model.norm.weight", 0, 2)


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        ("llama", ("model.embed_tokens.weight", "lm_head.weight")),
        ("gemma2", ("model.embed_tokens.weight",)),
        ("gpt2", ("transformer.wte.weight",)),
        ("gpt_neox", ("gpt_neox.embed_in.weight", "embed_out.weight")),
        ("falcon", ("transformer.word_embeddings.weight", "lm_head.weight")),
    ],
)
def test_tensors_with_one_row_per_token(model: str, rows: tuple[str, ...]) -> None:
    tiny = TINY[model]
    assert find_family(tiny.config).vocabulary_rows(tiny.config, tiny.names()) == rows
