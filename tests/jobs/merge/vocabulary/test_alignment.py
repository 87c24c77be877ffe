"""Embeddings brought to one vocabulary: every row checked in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.errors import ShapeError
from lbrx.jobs.merge.recipe import FrozenMap, ModelRef, ModelToken, TokenizerSpec, TokenSpec, ZeroToken
from lbrx.jobs.merge.vocabulary import VocabularyPlan, plan_vocabulary
from support.small_vocabularies import WIDTH, embedding, special, vocabulary, word_tokenizer

# The tokens of a: 0 <unk>, 1 red, 2 green, 3 <s>. Of b: 0 <unk>, 1 green, 2 blue, 3 <end>. Of c: 0 <unk>, 1 blue.
VOCABULARIES = [
    vocabulary("a", word_tokenizer(["<unk>", "red", "green"], [special("<s>")]), rows=4),
    vocabulary("b", word_tokenizer(["<unk>", "green", "blue"], [special("<end>")]), rows=4),
    vocabulary("c", word_tokenizer(["<unk>", "blue"]), rows=2),
]
A, B, C = embedding(4, 100), embedding(4, 200), embedding(2, 300)
ARRAYS = {0: A, 1: B, 2: C}


def aligned(plan: VocabularyPlan, models: tuple[int, ...] = (0, 1, 2)) -> list[np.ndarray]:
    tensors = {index: lbrx.tensor(array) for index, array in ARRAYS.items()}
    return [np.asarray(tensor.numpy(), np.float32) for tensor in plan.aligned(models, tensors)]


def check(found: np.ndarray, expected: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(found, np.stack([np.asarray(row, np.float32) for row in expected]))


def test_a_row_that_a_model_lacks_is_its_only_owners_else_the_mean_of_its_owners() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES)
    # <unk>, red, green, <s>, blue, <end>
    a, b, c = aligned(plan)
    check(a, [A[0], A[1], A[2], A[3], (B[2] + C[1]) / 2, B[3]])
    check(b, [B[0], A[1], B[1], A[3], B[2], B[3]])
    check(c, [C[0], A[1], (A[2] + B[1]) / 2, A[3], C[1], B[3]])


def test_a_row_that_a_model_lacks_is_the_bases_if_it_has_it() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES, base=ModelRef("b"))
    # <unk>, green, blue, <end>, red, <s>
    a, b, c = aligned(plan)
    check(a, [A[0], A[2], B[2], B[3], A[1], A[3]])
    check(b, [B[0], B[1], B[2], B[3], A[1], A[3]])
    check(c, [C[0], B[1], C[1], B[3], A[1], A[3]])


def test_only_merged_models_and_the_base_count_unless_they_all_lack_the_token() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES)
    a, c = aligned(plan, (0, 2))
    check(a, [A[0], A[1], A[2], A[3], C[1], B[3]])  # blue is c's alone here; <end> is only in b
    check(c, [C[0], A[1], A[2], A[3], C[1], B[3]])
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES, base=ModelRef("b"))
    (a,) = aligned(plan, (0,))
    check(a, [A[0], A[2], B[2], B[3], A[1], A[3]])


def test_a_model_with_all_tokens_in_order_is_not_touched() -> None:
    plan = plan_vocabulary(TokenizerSpec("base"), VOCABULARIES, base=ModelRef("a"))
    tensors = {index: lbrx.tensor(array) for index, array in ARRAYS.items()}
    assert plan.aligned([0], tensors)[0] is tensors[0]


def test_tokens_with_a_source_of_their_own_and_force() -> None:
    tokens = FrozenMap(
        {
            "red": TokenSpec(ZeroToken()),
            "green": TokenSpec(ModelToken(ModelRef("c"), token="<unk>")),
            "<s>": TokenSpec(ModelToken(ModelRef("b"), token_id=3), force=True),
            "blue": TokenSpec(ModelRef("c")),
            "<end>": TokenSpec(ZeroToken(), force=True),
        }
    )
    a, b, c = aligned(plan_vocabulary(TokenizerSpec("union", tokens), VOCABULARIES))
    zeros = np.zeros(WIDTH)
    check(a, [A[0], A[1], A[2], B[3], C[1], zeros])
    check(b, [B[0], zeros, B[1], B[3], B[2], zeros])
    check(c, [C[0], zeros, C[0], B[3], C[1], zeros])


def test_padding_is_the_mean_of_the_rows_that_tokens_have() -> None:
    plan = plan_vocabulary(TokenizerSpec("union", pad_to_multiple_of=8), VOCABULARIES)
    for found in aligned(plan):
        assert found.shape == (8, WIDTH)
        np.testing.assert_allclose(found[6], found[:6].mean(axis=0), rtol=1e-6)
        np.testing.assert_array_equal(found[6], found[7])


def test_padding_rows_of_a_models_own_are_kept() -> None:
    padded = vocabulary("p", word_tokenizer(["<unk>", "red"]), rows=4)
    plan = plan_vocabulary(TokenizerSpec("union", pad_to_multiple_of=3), [padded, VOCABULARIES[2]])
    p, c = plan.aligned([0, 1], {0: lbrx.tensor(A), 1: lbrx.tensor(C)})
    # <unk>, red, blue; rows 3 of p is padding, 4 and 5 are new
    mean = (A[0] + A[1] + C[1]) / 3
    check(p.numpy(), [A[0], A[1], C[1], A[3], mean, mean])
    mean = (C[0] + A[1] + C[1]) / 3
    check(c.numpy(), [C[0], A[1], C[1], mean, mean, mean])


def test_tokens_that_nobody_has_are_zero() -> None:
    other = vocabulary("x", word_tokenizer(["<unk>", "violet", "red"]), rows=3)
    plan = plan_vocabulary(TokenizerSpec(ModelRef("x")), VOCABULARIES, tokenizer_model=other)
    a, b, _ = aligned(plan)
    check(a, [A[0], np.zeros(WIDTH), A[1]])
    check(b, [B[0], np.zeros(WIDTH), A[1]])


def test_halves_and_vectors() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES)
    halves = {index: lbrx.tensor(array).to("bf16") for index, array in ARRAYS.items()}
    found = plan.aligned([2], halves)[0].to("f32").numpy()
    rounded = {index: lbrx.tensor(array).to("bf16").to("f32").numpy() for index, array in ARRAYS.items()}
    np.testing.assert_array_equal(found[2], (rounded[0][2] + rounded[1][1]) / 2)
    biases = {index: lbrx.tensor(array[:, 0].copy()) for index, array in ARRAYS.items()}
    np.testing.assert_array_equal(
        plan.aligned([2], biases)[0].numpy(), [C[0, 0], A[1, 0], (A[2, 0] + B[1, 0]) / 2, A[3, 0], C[1, 0], B[3, 0]]
    )


def test_values_that_are_not_finite_stay_in_their_rows() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES)
    spoiled = B.copy()
    spoiled[0] = np.nan
    tensors = {0: lbrx.tensor(A), 1: lbrx.tensor(spoiled), 2: lbrx.tensor(C)}
    a, b, c = (tensor.numpy() for tensor in plan.aligned([0, 1, 2], tensors))
    assert np.isfinite(a).all()
    assert np.isfinite(c).all()
    assert np.isnan(b[0]).all()
    assert np.isfinite(b[1:]).all()


def test_a_tensor_with_fewer_rows_than_tokens() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES)
    tensors = {0: lbrx.tensor(A[:3].copy()), 1: lbrx.tensor(B), 2: lbrx.tensor(C)}
    with pytest.raises(ShapeError, match="model 0 has 3 rows, but its tokens need 4"):
        plan.aligned([0], tensors)


def test_a_row_that_the_base_lacks_is_the_mean_of_its_owners() -> None:
    plan = plan_vocabulary(TokenizerSpec("union"), VOCABULARIES, base=ModelRef("a"))
    # <unk>, red, green, <s>, blue, <end>
    a, b, c = aligned(plan)
    check(a, [A[0], A[1], A[2], A[3], (B[2] + C[1]) / 2, B[3]])
    check(b, [B[0], A[1], B[1], A[3], B[2], B[3]])
    check(c, [C[0], A[1], A[2], A[3], C[1], B[3]])
