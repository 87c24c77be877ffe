"""Scalars, gradients and filters, one by one and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import ParameterType, Scalar, coerce
from lbrx.jobs.merge.recipe import Branch, RecipeError, RecipeLine, Value, layer_position
from lbrx.jobs.merge.recipe.values import read_value
from lbrx.jobs.merge.recipe.yaml_lines import parse_documents

HERE = RecipeLine("recipe.yml", 1)
NUMBERS = st.floats(-1e6, 1e6)
POSITIONS = st.floats(0, 1)


def value(text: str) -> Value:
    (node,) = parse_documents(text)
    return read_value(node, "x")


@pytest.mark.parametrize(
    ("text", "t", "expected"),
    [
        ("0.5", 0.7, 0.5),
        ("[0, 0.5, 0.3, 0.7, 1]", 0.0, 0.0),
        ("[0, 0.5, 0.3, 0.7, 1]", 0.5, 0.3),
        ("[0, 0.5, 0.3, 0.7, 1]", 1.0, 1.0),
        ("[0.1, 0.9]", 0.25, 0.3),
        ("[1, 2e-1]", 0.5, 0.6),
        ("[7]", 0.9, 7.0),
        ("1e-5", 0.0, 1e-5),
        ("'0.25'", 0.0, 0.25),
    ],
)
def test_numbers(text: str, t: float, expected: float) -> None:
    found = value(text).evaluate("float", "any", t)
    assert isinstance(found, float)
    assert math.isclose(found, expected, rel_tol=1e-15, abs_tol=1e-15)


@pytest.mark.parametrize(
    ("parameter_type", "text", "t", "expected"),
    [
        ("bool", "[true, false]", 0.99, True),
        ("bool", "[true, false]", 1.0, False),
        ("bool", "[1.0, 0.0, 1]", 0.5, False),
        ("bool", "yes", 0.0, True),
        ("str", "[a, b, c, d]", 0.67, "c"),
        ("str", "1e-5", 0.0, "1e-5"),
        ("int", "10", 0.0, 10),
        ("int", "1e2", 0.0, 100),
        ("int", str(2**60 + 1), 0.0, 2**60 + 1),
    ],
)
def test_other_kinds(parameter_type: ParameterType, text: str, t: float, expected: Scalar) -> None:
    found = value(text).evaluate(parameter_type, "any", t)
    assert found == expected
    assert type(found) is type(expected)


def test_first_matching_filter_counts() -> None:
    filtered = value("[{filter: self_attn, value: 1}, {filter: attn, value: 2}, {filter: mlp, value: [3, 5]}]")
    assert filtered.evaluate("float", "layers.0.self_attn.q_proj", 0.0) == 1
    assert filtered.evaluate("float", "layers.0.cross_attn.q_proj", 0.0) == 2
    assert filtered.evaluate("float", "layers.0.mlp.up_proj", 0.5) == 4
    assert filtered.evaluate("float", "norm", 0.0) is None
    assert filtered.constant is None


@pytest.mark.parametrize("filter_text", ["", "filter: null, ", "filter: '*', "])
def test_catch_all_filters(filter_text: str) -> None:
    assert value(f"{{{filter_text}value: 2}}").evaluate("float", "anything", 0.0) == 2
    assert value(f"{{{filter_text}value: 2}}").constant == 2


@pytest.mark.parametrize("t", [-0.1, 1.1, math.nan])
def test_position_outside_the_slice(t: float) -> None:
    with pytest.raises(UsageError, match="expected 0 to 1"):
        value("[1, 2]").evaluate("float", "any", t)


def test_layer_positions() -> None:
    assert [layer_position(i, 4) for i in range(4)] == [0, 1 / 3, 2 / 3, 1]
    assert layer_position(0, 1) == 1
    with pytest.raises(UsageError, match="layer 4 is not in a slice of 4 layers"):
        layer_position(4, 4)


@pytest.mark.parametrize(
    ("parameter_type", "raw", "problem"),
    [
        ("float", "0x10", "'x' must be a number, found '0x10'"),
        ("float", "1_0", "'x' must be a number, found '1_0'"),
        ("float", "", "'x' must be a number, found ''"),
        ("float", False, "'x' must be a number, found false"),
        ("float", 10**400, f"'x' must be finite, found {10**400}"),
        ("float", "1e999", "'x' must be finite, found 1e999"),
        ("bool", "true", "'x' must be true or false, found 'true'"),
        ("bool", 2, "'x' must be true or false, found 2"),
        ("str", 1, "'x' must be text, found 1"),
        ("int", True, "'x' must be a whole number, found true"),
    ],
)
def test_wrong_kinds(parameter_type: ParameterType, raw: Scalar, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        coerce(parameter_type, raw, HERE, "x")
    assert caught.value.problem == problem


@given(st.lists(NUMBERS, min_size=1, max_size=8), POSITIONS)
def test_gradient_is_linear_interpolation(points: list[float], t: float) -> None:
    found = Value((Branch(None, tuple(points)),)).evaluate("float", "any", t)
    expected = np.interp(t * (len(points) - 1), np.arange(len(points)), points)
    assert isinstance(found, float)
    assert math.isclose(found, float(expected), rel_tol=1e-9, abs_tol=1e-6)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.data())
def test_gradient_passes_through_its_points(points: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(points) - 1))
    t = layer_position(index, len(points))
    found = Value((Branch(None, tuple(points)),)).evaluate("float", "any", t)
    expected = points[index] if len(points) > 1 else points[0]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), POSITIONS)
def test_gradient_stays_within_its_points(points: list[float], t: float) -> None:
    found = Value((Branch(None, tuple(points)),)).evaluate("float", "any", t)
    assert isinstance(found, float)
    assert min(points) - 1e-12 <= found <= max(points) + 1e-12


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_python_prints_is_read(number: float) -> None:
    assert coerce("float", repr(number), HERE) == number
    assert value(repr(number)).evaluate("float", "any", 0.0) == number
