"""The language of conditions and shapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import UsageError
from lbrx.models.architectures.config import Config

EXPRESSIONS = [
    "a + b * 2 - 1",
    "(a + b) // 3",
    "a % 5 == b % 5",
    "a != b and a > 3 or b <= 2",
    "not (a >= b)",
    "a in few or b not in few",
    "a if a < b else b",
    "'x' if a else 'y'",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(a=st.integers(0, 9), b=st.integers(0, 9))
def test_values_are_those_of_python(expression: str, a: int, b: int) -> None:
    values = {"a": a, "b": b, "few": [1, 2, 3]}
    assert Config(values, {}).evaluate(expression) == eval(expression, {}, values)


def test_local_names_come_before_the_config_and_defaults_last() -> None:
    config = Config({"a": 1, "b": None}, {"b": "a + c", "c": 10})
    assert config.evaluate("a") == 1
    assert config.evaluate("a", a=5) == 5
    assert config.evaluate("b") == 11
    assert config.evaluate("b", a=5) == 15


def test_only_the_language_model_of_a_multi_modal_config_counts() -> None:
    config = Config({"hidden_size": 1, "text_config": {"hidden_size": 2}}, {})
    assert config.size("hidden_size") == 2


def test_unknown_key() -> None:
    with pytest.raises(UsageError, match="no 'hidden_sizes'; expected a value; did you mean 'hidden_size'"):
        Config({"hidden_size": 1}, {}).evaluate("2 * hidden_sizes")


@pytest.mark.parametrize("expression", ["print(a)", "a.real", "few[0]", "[a]", "-a", "a / b", "lambda: 1"])
def test_everything_else_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        Config({"a": 1, "b": 1, "few": [1]}, {}).evaluate(expression)


def test_division_by_zero_names_the_expression() -> None:
    with pytest.raises(UsageError, match="cannot compute 'a // b' from its values"):
        Config({"a": 1, "b": 0}, {}).evaluate("a // b")


@pytest.mark.parametrize("value", [True, -1, 1.5, "1", [1]])
def test_sizes_are_whole_numbers(value: object) -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        Config({"size": value}, {}).size("size")
