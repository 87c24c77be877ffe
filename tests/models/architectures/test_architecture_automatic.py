"""The automatic mode: the same answers as the table, from names alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.models.architectures import Family, Naming, automatic, find_family
from lbrx.models.architectures.stacks import find_stacks, layer_number, main_stack
from support.tiny_architectures import TINY, Tiny

every_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)


def _places(architecture: Family, config: dict[str, object], names: list[str]) -> set[tuple[object, ...]]:
    roles = architecture.tensors(config, names)
    return {(role.name, role.part, role.layer, role.is_vocabulary, role.is_known) for role in roles}


@every_tiny
def test_automatic_mode_agrees_with_the_table(tiny: Tiny) -> None:
    names = tiny.names()
    table = find_family(tiny.config)
    inferred = automatic(reversed(names))
    assert _places(inferred, {}, names) == _places(table, tiny.config, names)
    assert inferred.layer_count({}) == table.layer_count(tiny.config)
    assert inferred.missing({}, names) == []
    assert inferred.vocabulary_rows({}, names) == table.vocabulary_rows(tiny.config, names)
    for name in names:
        assert inferred.layer_of(name) == table.layer_of(name)


@every_tiny
def test_automatic_mode_agrees_on_a_single_layer(tiny: Tiny) -> None:
    """One layer with several experts or heads: the larger range of numbers is not that of the layers."""
    names = [*tiny.pre, *(name.replace("{i}", "0") for name in tiny.layer), *tiny.post]
    config = {**tiny.config, "num_hidden_layers": 1, "n_layer": 1}
    assert _places(automatic(names), {}, names) == _places(find_family(config), config, names)


def test_longer_vision_tower_does_not_become_the_layers() -> None:
    text = [f"language_model.model.layers.{layer}.mlp.up_proj.weight" for layer in range(2)]
    tower = [f"vision_tower.vision_model.encoder.layers.{layer}.fc1.weight" for layer in range(5)]
    rest = [
        "language_model.model.embed_tokens.weight",
        "language_model.model.norm.weight",
        "language_model.lm_head.weight",
    ]
    names = [*text, *tower, *rest, "vision_tower.vision_model.post_layernorm.bias", "multi_modal_projector.norm.weight"]
    architecture = automatic(names)
    roles = {role.name: role for role in architecture.tensors({}, names)}
    assert architecture.layer_count({}) == 2
    assert [roles[name].layer for name in text] == [0, 1]
    assert {(roles[name].part, roles[name].layer, roles[name].module) for name in tower} == {
        ("pre", None, "vision_tower")
    }
    assert roles["vision_tower.vision_model.post_layernorm.bias"].module == "vision_tower"
    assert [roles[name].part for name in rest] == ["pre", "post", "post"]
    assert roles["multi_modal_projector.norm.weight"].part == "pre"
    assert [name for name in rest if roles[name].is_vocabulary] == [rest[0], rest[2]]


def test_gguf_names() -> None:
    names = ["token_embd.weight", *(f"blk.{i}.attn_q.weight" for i in range(3)), "output_norm.weight", "output.weight"]
    architecture = automatic(names)
    assert architecture.layer_count({}) == 3
    assert [(role.name, role.part) for role in architecture.tensors({}, names)][-2:] == [
        ("output.weight", "post"),
        ("output_norm.weight", "post"),
    ]
    assert architecture.vocabulary_rows({}, names) == ("token_embd.weight", "output.weight")
    assert architecture.rename_layer("blk.2.attn_q.weight", 2, 5) == "blk.5.attn_q.weight"


def test_tensors_that_not_every_layer_has_are_optional() -> None:
    names = ["layers.0.dense.weight", "layers.1.moe.weight", "layers.0.norm.weight", "layers.1.norm.weight"]
    roles = {role.name: role for role in automatic(names).tensors({}, names)}
    assert sorted(roles) == sorted(names)
    assert roles["layers.0.dense.weight"].optional
    assert not roles["layers.0.norm.weight"].optional
    assert automatic(names).missing({}, names[1:3]) == ["layers.1.norm.weight"]


def test_a_tensor_unknown_to_the_automatic_mode_is_carried_along() -> None:
    architecture = automatic(["h.0.w", "h.1.w", "wte.weight"])
    unclaimed = architecture.unclaimed({}, ["h.0.w", "h.1.w", "h.1.new", "other", "wte.weight"])
    assert [(role.name, role.part, role.layer) for role in unclaimed] == [
        ("other", "pre", None),
        ("h.1.new", "layer", 1),
    ]


@pytest.mark.parametrize(
    "names",
    [[], ["weight"], ["model.layers.1.w", "model.layers.2.w"], ["model.layers.00.w", "model.layers.01.w"], ["0.w"]],
    ids=["nothing", "no number", "gap", "padded numbers", "number first"],
)
def test_names_without_layers(names: list[str]) -> None:
    architecture = automatic(names)
    assert architecture.layer_count({}) == 0
    assert [role.name for role in architecture.tensors({}, names)] == names
    assert all(role.part == "pre" for role in architecture.tensors({}, names))
    assert all(architecture.layer_of(name) is None for name in names)


def test_pipeline_numbers_before_the_layers_are_part_of_the_prefix() -> None:
    stack = main_stack(find_stacks(["stage.0.layers.0.w", "stage.0.layers.1.w", "stage.0.layers.2.w"]))
    assert stack is not None
    assert (stack.prefix, stack.container, stack.layer_count) == ("stage.0.layers.", "stage.0", 3)


def test_numbers_inside_of_a_gap_are_no_layers() -> None:
    names = [f"layers.{layer}.experts.{expert}.w" for layer in (0, 2) for expert in range(4)]
    assert find_stacks(names) == ()


@given(
    container=st.sampled_from(["", "model.", "transformer.", "a.b.c."]),
    word=st.sampled_from(["layers", "h", "blocks", "stages"]),
    layer_count=st.integers(1, 12),
    expert_count=st.integers(1, 20),
    order=st.randoms(use_true_random=False),
)
def test_any_stack_of_layers_is_found_in_any_order(
    container: str, word: str, layer_count: int, expert_count: int, order: Random
) -> None:
    prefix = f"{container}{word}."
    names = [f"{prefix}{i}.experts.{e}.w" for i in range(layer_count) for e in range(expert_count)]
    names += [f"{container}embed.weight", f"{container}norm.weight"]
    order.shuffle(names)
    architecture = automatic(names)
    roles = architecture.tensors({}, names)
    assert sorted(role.name for role in roles) == sorted(names)
    assert architecture.layer_count({}) == layer_count
    for role in roles:
        assert role.layer == layer_number(role.name, prefix)
    assert [roles[0].name, roles[-1].name] == [f"{container}embed.weight", f"{container}norm.weight"]


def test_thousands_of_names_outside_the_layers_are_translated_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"part{number}.weight" for number in range(2000)]
    inferred = automatic(names)
    expanded = []
    expand = Naming.expand

    def counted(self: Naming, template: str, *numbers: int | None) -> str:
        expanded.append(template)
        return expand(self, template, *numbers)

    monkeypatch.setattr(Naming, "expand", counted)
    assert [inferred.translate(name, inferred.namings[0]) for name in names] == names
    assert len(expanded) < 10 * len(names)
