"""Regular expressions of files: what they match, and that none takes for ever."""

import pytest

from lbrx.errors import FormatError
from lbrx.files.formats.name_patterns import MOST_EXPRESSIONS, NamePatterns, ways


def test_the_first_that_matches() -> None:
    patterns = NamePatterns([r".*mlp\.gate$", "lm_head", "model"], "config.json")
    names = ("model.mlp.gate", "lm_head.x", "model.mlp", "x.model")
    assert [patterns.first_match(name) for name in names] == [r".*mlp\.gate$", "lm_head", "model", None]


@pytest.mark.parametrize("expression", ["(a+)+$", "((.*)*)*x", ".*.*.*.*x", "(a{9}){9}"])
def test_repeats(expression: str) -> None:
    with pytest.raises(FormatError, match=r"config.json has .* which can take for ever"):
        NamePatterns([expression], "config.json")


@pytest.mark.parametrize(
    "expression", ["(a|a)" * 40 + "$", "a?" * 40 + "a" * 40 + "$", "(?:a|(a|a))" * 20 + "$", ".*.*.*x"]
)
def test_combinations(expression: str) -> None:
    patterns = NamePatterns([expression], "config.json")
    with pytest.raises(FormatError, match=r"config.json has regular expressions that take too long"):
        patterns.first_match("a" * 1300 + "!")


def test_names_and_expressions_together() -> None:
    patterns = NamePatterns((f"layers.{number}.*.*.*y" for number in range(300)), "config.json")
    names = [f"model.layers.{number + 7777}.self_attn.q_proj" for number in range(1_000)]
    with pytest.raises(FormatError, match="take too long to match with all names"):
        list(map(patterns.first_match, names))


def test_many_expressions_and_broken_ones() -> None:
    with pytest.raises(FormatError, match="more than 10000 regular expressions"):
        NamePatterns(map(str, range(MOST_EXPRESSIONS + 1)), "config.json")
    for expression in ("(", "(?i)x", "a" + "(" * 5000):
        with pytest.raises(FormatError, match="not a valid regular expression"):
            NamePatterns([expression], "config.json", "(.*)?({})")


def test_lists_of_projections_are_cheap() -> None:
    assert ways(r"(.*\.)?(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)$") == 14
    patterns = NamePatterns([r".*(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)$"], "config.json")
    assert not any(patterns.first_match(f"model.layers.{number}.experts.1.norm") for number in range(20_000))
