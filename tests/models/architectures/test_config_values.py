"""Values of configs: the language of conditions and shapes, and typed access with bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbrx.errors import FormatError, LbrxError, UsageError
from lbrx.models.architectures import find_family
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


@pytest.mark.parametrize("expression", ["print(a)", "a.real", "few[0:1]", "[a]", "-a", "a ** b", "a ** 2", "lambda: 1"])
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


# -- typed access ------------------------------------------------------------------------------------------------------

BOUNDED = [
    ({"n": 5}, lambda config: config.count("n", at_most=4), "'n' is 5; expected a whole number from 1 to 4"),
    ({"n": 0}, lambda config: config.count("n"), "'n' is 0; expected a whole number above zero"),
    ({"n": True}, lambda config: config.count("n"), "'n' is True; expected a whole number above zero"),
    ({"n": 1 << 41}, lambda config: config.size("n"), "'n' is 2199023255552; expected a whole number"),
    ({"m": 1}, lambda config: config.count("n"), "has no 'n'; expected a whole number above zero"),
    ({"n": "1e4"}, lambda config: config.number("n"), "'n' is '1e4'; expected a number above zero"),
    ({"n": float("inf")}, lambda config: config.number("n"), "'n' is inf; expected a number above zero"),
    ({"n": -0.5}, lambda config: config.number("n"), "'n' is -0.5; expected a number above zero"),
    *(
        ({"n": value}, lambda config: config.evaluate("n ** 0.5"), "has no square root; expected whole numbers")
        for value in (-4, "x", 1 << 2000)
    ),
    ({"n": 1}, lambda config: config.flag("n", default=False), "'n' is 1; expected true or false"),
    ({"n": 1}, lambda config: config.text("n", "x"), "'n' is 1; expected text"),
    ({"n": ["a"]}, lambda config: config.per_layer("n", 2, ("a",)), "expected 'a' for each of 2 layers"),
    ({"n": ["a", "b"]}, lambda config: config.per_layer("n", 2, ("a",)), "expected 'a' for each of 2 layers"),
    ({"n": None}, lambda config: config.demand("n"), "has no 'n'; expected a whole number above zero"),
]


@pytest.mark.parametrize(("values", "read", "problem"), BOUNDED)
@pytest.mark.parametrize("error_class", [UsageError, FormatError])
def test_one_error_for_what_cannot_be_used(
    values: dict[str, Any], read: Callable[[Config], Any], problem: str, error_class: type[LbrxError]
) -> None:
    with pytest.raises(error_class) as caught:
        read(Config(values, where="here", error_class=error_class))
    assert str(caught.value).startswith("here: ")
    assert str(caught.value).endswith(problem)


def test_null_means_absent_or_none_or_another_default() -> None:
    defaults = {"rope_theta": 1e4, "sliding_window": 4096, "num_key_value_heads": 8, "num_attention_heads": 32}
    config = Config(dict.fromkeys(("rope_theta", "sliding_window", "num_key_value_heads")), defaults)
    assert config.number("rope_theta") == 1e4
    assert config.get("sliding_window") is None
    assert config.count("num_key_value_heads") == 32
    assert Config({}, defaults).count("num_key_value_heads") == 8


def test_values_of_the_whole_config_count_if_the_section_has_none() -> None:
    config = Config({"eps": 1, "theta": 2, "text_config": {"theta": 3}}, {"eps": 9, "theta": 9})
    assert (config.number("eps"), config.number("theta")) == (1.0, 3.0)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_local_experts"])
def test_absurd_numbers_of_layers_and_experts_are_refused_at_once(key: str) -> None:
    config = {"model_type": "mixtral", "num_hidden_layers": 2, key: 10**9}
    with pytest.raises(UsageError, match=f"config.json: '{key}' is 1000000000; expected a whole number"):
        find_family(config).tensors(config, ["model.norm.weight"])


def test_roots_quotients_and_items() -> None:
    config = Config({"a": 16, "b": 4, "layers": ["x", "y"], "text": "xy"})
    assert config.evaluate("a ** 0.5 / b") == 1.0
    assert config.evaluate("layers[layer]", layer=1) == "y"
    assert config.real("1 / b") == 0.25
    assert config.evaluate("text[0]") == "x"
    for expression in ("layers[2]", "layers[text]", "text[2]"):
        with pytest.raises(UsageError, match="expected a list with more than"):
            config.evaluate(expression)
    with pytest.raises(UsageError, match="cannot compute 'a / 0'"):
        config.evaluate("a / 0")
    with pytest.raises(UsageError, match="'a - a' is 0; expected a number above zero"):
        config.real("a - a")
