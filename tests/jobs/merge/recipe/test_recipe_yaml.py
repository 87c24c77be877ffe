"""YAML with lines: bounds, merge keys, aliases, and that no text at all breaks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support
from lbrx.jobs.merge.recipe import RecipeError, parse_recipes
from lbrx.jobs.merge.recipe.yaml_lines import MAX_DEPTH, MAX_NODES, YamlList, YamlMap, YamlScalar, parse_documents

GOLDEN = support.GOLDEN / "mergekit" / "recipes"


def one(text: str) -> YamlMap:
    (document,) = parse_documents(text)
    assert isinstance(document, YamlMap)
    return document


def test_every_node_knows_its_line() -> None:
    document = one("# comment\na:\n  - 1\n  -\n    b: two\n")
    items = document.entries["a"]
    assert isinstance(items, YamlList)
    inner = items.items[1]
    assert isinstance(inner, YamlMap)
    assert document.key_locations["a"].line == 2
    assert [item.location.line for item in items.items] == [3, 5]
    assert inner.entries["b"] == YamlScalar("two", "two", inner.key_locations["b"])


def test_merge_keys_give_way_to_own_and_earlier_keys() -> None:
    document = one("x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\nz:\n  <<: [*x, *y]\n  a: 3\n")
    merged = document.entries["z"]
    assert isinstance(merged, YamlMap)
    assert {key: node.value for key, node in merged.entries.items() if isinstance(node, YamlScalar)} == {
        "a": 3,
        "b": 1,
        "c": 2,
    }
    assert [merged.key_locations[key].line for key in ("a", "b", "c")] == [5, 1, 2]


def test_alias_of_parameters_can_be_shared_between_models() -> None:
    (recipe,) = parse_recipes(
        """\
merge_method: linear
models:
  - model: a
    parameters: &half {weight: 0.5}
  - model: b
    parameters: {<<: *half}
"""
    )
    first, second = recipe.modules["*"].slices[0].sources
    assert first.parameters == second.parameters


def test_dates_are_text() -> None:
    assert one("revision: 2024-01-01").entries["revision"] == YamlScalar(
        "2024-01-01", "2024-01-01", one("revision: 2024-01-01").entries["revision"].location
    )


def test_aliases_cannot_multiply_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 4)]
    assert len(parse_documents("\n".join(lines))) == 1
    lines.append("a4: [*a3, *a3]")
    with pytest.raises(RecipeError, match=f"too many values after aliases are expanded; expected at most {MAX_NODES}"):
        parse_documents("\n".join(lines))


@pytest.mark.parametrize("opening", ["[", "- ", "? ", "{a: "])
def test_nesting_is_bounded(opening: str) -> None:
    with pytest.raises(RecipeError, match=f"nested too deeply; expected at most {MAX_DEPTH} levels"):
        parse_documents(opening * 5000)


def test_deepest_nesting_is_read() -> None:
    depth = MAX_DEPTH - 1
    (document,) = parse_documents("[" * depth + "1" + "]" * depth)
    assert isinstance(document, YamlList)


def line_of_error(text: str) -> int:
    """The line that parsing complains about, 0 if it does not; any error but RecipeError comes through."""
    try:
        parse_recipes(text)
    except RecipeError as error:
        return error.location.line
    return 0


@given(st.text(alphabet=st.sampled_from("abc:-[]{}<&*!?|>'\"%@#,.~ \n\t0189eE+\\xU"), max_size=60))
def test_any_punctuation_is_no_recipe(text: str) -> None:
    assert 1 <= line_of_error(text) <= text.count("\n") + 2


@given(st.text(max_size=40))
def test_any_unicode_is_no_recipe(text: str) -> None:
    assert line_of_error(text) >= 1


@given(st.integers(0, 400), st.integers(0, 20), st.text(alphabet="[]{}:,-&*!|?'\"\n #0.e\\ab", max_size=6))
def test_damaged_recipe_is_read_or_refused_with_a_line(start: int, removed: int, inserted: str) -> None:
    text = (GOLDEN / "slerp_slices_gradient.yml").read_text()
    damaged = text[:start] + inserted + text[start + removed :]
    assert 0 <= line_of_error(damaged) <= damaged.count("\n") + 2


def test_whole_numbers_are_bounded() -> None:
    largest = (1 << 4096) - 1
    assert one(f"a: {largest:#x}").entries["a"].value == largest
    with pytest.raises(RecipeError, match="is not a value of the type"):
        one(f"a: {largest + 1:#x}")
