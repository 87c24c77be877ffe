"""The mutator: which changes it makes, and that its tables fit the sources."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from mutants.__main__ import is_enough, known_outcomes, table
from mutants.coverage_map import CoverageMap, line_keys
from mutants.mutate import mutations
from mutants.sample import HERE, Mutant, equivalent_keys, review, sample
from mutants.trial import Outcome, selected

SOURCE = Path(__file__).parents[1] / "src/lbrx"


@pytest.mark.parametrize(
    ("line", "operator", "changed"),
    [
        ("return a < b", "comparison", "return (a <= b)"),
        ("return a is None", "comparison", "return (a is not None)"),
        ("return a + b", "arithmetic", "return (a - b)"),
        ("a //= b", "arithmetic", "a *= b"),
        ("return 7", "constant", "return 8"),
        ("return True", "True/False", "return False"),
        ("return a and b", "and/or", "return (a or b)"),
        ("return not a", "not", "return (a)"),
        ("if a: return b", "dropped guard", "if False: return b"),
        ("a.close()", "dropped call", "pass"),
        ("return a(b, c)", "swapped arguments", "return a(c, b)"),
        ("return a[:b]", "slice end", "return a[:(b) + 1]"),
        ("return a", "return None", "return None"),
        ('return "ä", a + b', "arithmetic", 'return "ä", (a - b)'),
    ],
)
def test_every_operator(line: str, operator: str, changed: str) -> None:
    source = f"def f(a, b, c):\n    {line}\n"
    made = [each.apply(source) for each in mutations(source) if each.operator == operator]
    assert made == [f"def f(a, b, c):\n    {changed}\n"]


def test_what_is_left_out() -> None:
    source = (
        'LIMIT = 5 + 1\n\ndef f(a: int | None = 3) -> int | None:\n    """Text."""\n    assert a > 1\n    import os\n'
        '    b = zip(a.reshape(-1), strict=True)\n    raise ValueError(f"{a + 1}", 2)\n'
    )
    assert mutations(source) == []


def test_every_mutant_can_be_compiled_and_describes_its_lines() -> None:
    source = (SOURCE / "files/output/staging.py").read_text()
    made = mutations(source)
    assert len(made) > 100
    for mutation in made:
        changed = mutation.apply(source)
        ast.parse(changed)
        before, after = mutation.describe(source)
        assert before != after
        assert before.splitlines()[0] in [line.strip() for line in source.splitlines()]


def test_the_mutants_of_the_review_can_be_made() -> None:
    made = review(SOURCE)
    assert len(made) >= 42
    for mutant in made:
        ast.parse(mutant.text)


def test_a_sample_is_the_same_for_a_seed_and_has_one_mutant_of_a_function() -> None:
    first = sample(SOURCE, 5, 40)
    assert [mutant.key for mutant in first] == [mutant.key for mutant in sample(SOURCE, 5, 40)]
    assert len({(mutant.file, mutant.function) for mutant in first}) == 40
    assert [mutant.key for mutant in first] != [mutant.key for mutant in sample(SOURCE, 6, 40)]
    assert not {mutant.key for mutant in first} & equivalent_keys()


def test_every_equivalent_mutant_has_a_reason() -> None:
    for entry in json.loads((HERE / "equivalent.json").read_text()):
        assert len(entry["reason"]) > 10, entry


def covered(*tests: str) -> tuple[CoverageMap, Mutant, str]:
    text = "def f(a):\n    return a + 1\n"
    keys = line_keys(text)
    found = CoverageMap()
    for test in tests:
        found.add({"seconds": {test: 0.1}, "keys": {"files/a.py": keys}, "masks": {"files/a.py": {test: "2"}}})
    return found, Mutant("files/a.py", "arithmetic", "f", "return a + 1", "return (a - 1)", 2, 2, ""), text


def test_tests_that_execute_the_line_are_selected_the_nearest_first() -> None:
    found, mutant, text = covered("tests/jobs/test_b.py::test_1", "tests/files/test_a.py::test_2")
    quick, rest, folder = selected(found, mutant, text)
    assert quick == ["tests/files/test_a.py::test_2", "tests/jobs/test_b.py::test_1"]
    assert (rest, folder) == ([], ["tests/files"])
    assert selected(found, mutant, "# a line more\n" + text)[0] == []  # the statement is elsewhere
    many, _, _ = covered(*(f"tests/files/test_a.py::test_{number}" for number in range(100)))
    quick, rest, folder = selected(many, mutant, text)
    assert (len(quick), len(rest), folder) == (60, 40, [])


def test_enough_are_killed() -> None:
    reviewed = Mutant("files/output/run.py", "review", "gap", "a", "b", 1, 1, "")
    sampled = Mutant("files/output/run.py", "not", "f", "a", "b", 1, 1, "")
    killed, survived = Outcome(sampled, "killed", 1, 1.0), Outcome(sampled, "survived", 1, 1.0)
    assert is_enough([Outcome(reviewed, "timeout", 1, 1.0), *[killed] * 19, survived])
    assert not is_enough([*[killed] * 18, survived])
    assert not is_enough([Outcome(reviewed, "survived", 1, 1.0), killed])
    assert "| sample | 20 | 19 | 1 |" in table([*[killed] * 19, survived])


def test_what_an_earlier_run_killed_is_known(tmp_path: Path) -> None:
    mutants = sample(SOURCE, 5, 4)
    entry = {"line": 1, "operator": "not", "tests": 3, "seconds": 1.5, "killer": "test_a"}
    results = ["killed", "survived", "timeout"]
    entries = [
        {**entry, "result": result, **dict(zip(("file", "function", "before", "after"), mutant.key, strict=True))}
        for mutant, result in zip(mutants, results, strict=False)
    ]
    (tmp_path / "results.json").write_text(json.dumps([*entries, {**entries[0], "after": "pass"}]))
    known = known_outcomes(tmp_path / "results.json", mutants)
    assert known == {mutants[0].key: Outcome(mutants[0], "killed", 3, 1.5, "test_a")}
    assert known_outcomes(None, mutants) == {}
