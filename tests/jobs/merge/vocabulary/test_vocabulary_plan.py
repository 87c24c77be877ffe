"""Which tokens the output has, their ids, and where each model has its rows."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from lbrx.errors import UsageError
from lbrx.jobs.merge.recipe import FrozenMap, ModelRef, ModelToken, RecipeError, TokenizerSpec, TokenSpec, ZeroToken
from lbrx.jobs.merge.vocabulary import TokenOverride, VocabularyPlan, plan_vocabulary
from support.small_vocabularies import gapped_tokenizer, pair_tokenizer, special, vocabulary, word_tokenizer

A = vocabulary("a", word_tokenizer(["<unk>", "red", "green"], [special("<s>")]), rows=4)
B = vocabulary("b", word_tokenizer(["<unk>", "green", "blue"], [special("<end>"), special("<s>")]), rows=5)


def row_lists(plan: VocabularyPlan) -> list[list[int]]:
    return [numbers.tolist() for numbers in plan.row_numbers]


def test_a_union_keeps_the_ids_of_the_first_model_and_appends_the_others() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), [A, B])
    assert plan.tokenizer.ids == {"<unk>": 0, "red": 1, "green": 2, "<s>": 3, "blue": 4, "<end>": 5}
    assert row_lists(plan) == [[0, 1, 2, 3, -1, -1], [0, -1, 1, 4, 2, 3]]
    assert plan.size == 6
    assert plan.base is None


def test_a_union_keeps_the_ids_of_the_base_wherever_it_stands() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), [A, B], base=ModelRef("b"))
    assert plan.tokenizer.ids == {"<unk>": 0, "green": 1, "blue": 2, "<end>": 3, "<s>": 4, "red": 5}
    assert row_lists(plan) == [[0, 2, -1, -1, 3, 1], [0, 1, 2, 3, 4, -1]]
    assert plan.base == 1


def test_added_tokens_keep_their_settings_and_plain_ones_become_plain_added_tokens() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), [A, B])
    added = plan.tokenizer.added
    assert list(added) == ["<s>", "blue", "<end>"]
    assert (added["<end>"].special, added["<end>"].normalized) == (True, False)
    assert (added["blue"].special, added["blue"].normalized) == (False, True)


def test_a_word_of_one_model_that_another_has_as_an_added_token_becomes_one_at_its_own_id() -> None:
    with_tag = vocabulary("c", word_tokenizer(["<unk>"], [AddedToken("red", single_word=True)]), rows=2)
    plan = plan_vocabulary(TokenizerSpec("union"), [A, with_tag])
    assert plan.tokenizer.ids["red"] == 1
    assert plan.tokenizer.added["red"].single_word
    assert row_lists(plan) == [[0, 1, 2, 3], [0, 1, -1, -1]]


@pytest.mark.parametrize("source", ["base", ModelRef("b")])
def test_the_vocabulary_of_one_model(source: Any) -> None:
    plan = plan_vocabulary(TokenizerSpec(source), [A, B], base=ModelRef("b"))
    assert plan.tokenizer is B.tokenizer
    assert row_lists(plan) == [[0, 2, -1, -1, 3], [0, 1, 2, 3, 4]]


def test_the_vocabulary_of_a_model_that_is_not_merged() -> None:
    other = vocabulary("c", word_tokenizer(["<unk>", "black"]), rows=2)
    plan = plan_vocabulary(TokenizerSpec(ModelRef("c")), [A, B], tokenizer_model=other)
    assert row_lists(plan) == [[0, -1], [0, -1]]
    assert plan.warnings == ("1 tokens are in no model and get rows of zeros, such as 'black'",)


def test_padding_rows_are_kept_and_new_tokens_take_them_first() -> None:
    padded = vocabulary("p", word_tokenizer(["<unk>", "red"]), rows=6)
    plan = plan_vocabulary(TokenizerSpec("union"), [padded, B])
    assert plan.tokenizer.ids == {"<unk>": 0, "red": 1, "green": 2, "blue": 3, "<end>": 4, "<s>": 5}
    assert plan.size == 6
    plan = plan_vocabulary(TokenizerSpec("base"), [padded, B], base=ModelRef("p"))
    assert plan.size == 6
    assert plan.is_token.tolist() == [True, True, False, False, False, False]
    # The other model's rows 2 to 4 are named tokens, not padding.
    assert row_lists(plan) == [[0, 1, 2, 3, 4, 5], [0, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize(("multiple", "size"), [(None, 6), (1, 6), (4, 8), (6, 6), (64, 64)])
def test_padding_to_a_multiple(multiple: int | None, size: int) -> None:
    plan = plan_vocabulary(TokenizerSpec("union", pad_to_multiple_of=multiple), [A, B])
    assert plan.size == size
    assert plan.is_token.tolist() == [True] * 6 + [False] * (size - 6)


def test_padding_to_a_multiple_never_drops_rows() -> None:
    padded = vocabulary("p", word_tokenizer(["<unk>", "red"]), rows=7)
    plan = plan_vocabulary(TokenizerSpec("union", pad_to_multiple_of=4), [padded])
    assert plan.size == 8
    assert row_lists(plan) == [[0, 1, 2, 3, 4, 5, 6, -1]]


def test_tokens_without_a_row_are_left_out_and_come_from_models_that_have_one() -> None:
    short = vocabulary("s", word_tokenizer(["<unk>", "red", "green"], [special("<s>")]), rows=2)
    plan = plan_vocabulary(TokenizerSpec("union"), [short, B])
    assert plan.tokenizer.ids == {"<unk>": 0, "red": 1, "green": 2, "blue": 3, "<end>": 4, "<s>": 5}
    assert row_lists(plan)[0] == [0, 1, -1, -1, -1, -1]
    assert plan.warnings == ("2 tokens of s are left out: its embedding has 2 rows, none for them",)


def test_merges_of_tokens_without_a_row_are_left_out() -> None:
    tokenizer = pair_tokenizer({"a": 0, "b": 1, "ab": 2, "abb": 3}, [("a", "b"), ("ab", "b")])
    plan = plan_vocabulary(TokenizerSpec("union"), [vocabulary("m", tokenizer, rows=3)])
    assert plan.tokenizer.ids == {"a": 0, "b": 1, "ab": 2}
    assert plan.tokenizer.loaded().encode("abb").tokens == ["ab", "b"]


def test_a_model_without_a_tokenizer_has_that_of_the_base_if_it_has_as_many_rows() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), [A, vocabulary("n", None, rows=4)])
    assert row_lists(plan) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert plan.warnings == ("n has no tokenizer; taken to have the tokens of a",)
    with pytest.raises(RecipeError, match=r"model n has no tokenizer\.json, so that its 5 tokens are not known"):
        plan_vocabulary(TokenizerSpec("union"), [A, vocabulary("n", None, rows=5)])
    with pytest.raises(RecipeError, match=r"model n has no tokenizer\.json"):
        plan_vocabulary(TokenizerSpec("union"), [vocabulary("n", None, rows=5)])


def test_tokens_of_the_recipe() -> None:
    tokens = FrozenMap(
        {
            "<end>": TokenSpec(ModelRef("b")),
            "red": TokenSpec(ModelToken(ModelRef("b"), token="blue"), force=True),
            "green": TokenSpec(ModelToken(ModelRef("a"), token_id=3)),
            "<new>": TokenSpec(ZeroToken()),
            "<plain>": TokenSpec(),
        }
    )
    plan = plan_vocabulary(TokenizerSpec("union", tokens), [A, B])
    ids = plan.tokenizer.ids
    assert (ids["<new>"], ids["<plain>"]) == (6, 7)
    assert plan.overrides == (
        TokenOverride(ids["<end>"], 1, 3, is_forced=False),
        TokenOverride(ids["red"], 1, 2, is_forced=True),
        TokenOverride(ids["green"], 0, 3, is_forced=False),
        TokenOverride(6, None, 0, is_forced=False),
    )
    assert plan.warnings == ("1 tokens are in no model and get rows of zeros, such as '<plain>'",)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (ModelRef("a"), "model a has no row for the token 'blue', which is to come from it"),
        (ModelRef("x"), "token 'blue' takes its embedding from 'x', which is not merged; expected one of a, b"),
        (ModelToken(ModelRef("a"), token="violet"), "model a has no token 'violet'"),
        (ModelToken(ModelRef("a"), token_id=4), "model a has no row 4: its embedding has 4 rows"),
    ],
)
def test_tokens_that_cannot_be_found(source: Any, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        plan_vocabulary(TokenizerSpec("union", FrozenMap({"blue": TokenSpec(source)})), [A, B])
    assert caught.value.problem == problem


def test_gaps_in_the_ids_of_the_base_of_a_union() -> None:
    gapped = vocabulary("g", gapped_tokenizer({"<unk>": 0, "red": 1, "violet": 4}), rows=5)
    with pytest.raises(UsageError, match="the new token 'blue' would get the id 4 of 'violet'"):
        plan_vocabulary(TokenizerSpec("union"), [gapped, B])
    assert row_lists(plan_vocabulary(TokenizerSpec("union"), [gapped])) == [[0, 1, 2, 3, 4]]


def test_a_tokenizer_that_is_missing() -> None:
    with pytest.raises(RecipeError, match=r"model c has no tokenizer\.json to be the tokenizer of the output"):
        plan_vocabulary(TokenizerSpec(ModelRef("c")), [A, B])
