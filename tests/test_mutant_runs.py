"""Mutants in a small tree: lines are recorded, functions exchanged, and tests run in forks."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants.coverage_map import measure
from mutants.instrument import instrumented
from mutants.mutate import mutations
from mutants.replace import Functions
from mutants.sample import Mutant
from mutants.trial import Trial

ROOT = Path(__file__).parents[1]
SOURCE = """\
LIMIT = 3
TABLE = [*range(LIMIT)]


def is_small(a):
    if a in TABLE:
        return True
    return a < LIMIT


def table_length(a):
    return len(TABLE) + a


def unused(a):
    return a + 1


BUILT = table_length(1)
"""
TESTS = """\
import pytest
from lbrx.base.small import BUILT, is_small, table_length

COUNT = []


@pytest.fixture(scope="module")
def length():
    return table_length(0)


@pytest.mark.parametrize(("a", "expected"), [(-1, True), (3, False)])
def test_small(a, expected):
    assert is_small(a) is expected


def test_one():
    assert is_small(1)


def test_length(length):
    assert length == 3


def test_again(length):
    assert length


def test_broken():
    raise ValueError
"""
TEST_FILE = "tests/base/test_small.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, text in {"src/lbrx/__init__.py": "", "src/lbrx/base/__init__.py": "", TEST_FILE: TESTS}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "src/lbrx/base/small.py").write_text(SOURCE)
    (root / "mutants").symlink_to(ROOT / "mutants")
    return root


@pytest.fixture(scope="module")
def trial(tree: Path) -> Iterator[Trial]:
    covered = measure(tree, tree / "coverage", [TEST_FILE], 1, say=lambda _: None)
    trial = Trial(tree, covered, [TEST_FILE])
    yield trial
    trial.close()


def mutant(after: str, function: str = "is_small") -> Mutant:
    for mutation in mutations(SOURCE):
        before, changed = mutation.describe(SOURCE)
        if changed == after and mutation.function == function:
            file = "base/small.py"
            text = mutation.apply(SOURCE)
            return Mutant(file, mutation.operator, function, before, changed, mutation.first, mutation.last, text)
    raise LookupError(after)


def test_lines_of_tests_are_recorded_with_those_of_their_fixtures(tree: Path) -> None:
    said: list[str] = []
    covered = measure(tree, tree / "other", [TEST_FILE], 1, say=said.append)
    assert said[0].startswith(f"measured {TEST_FILE}: 5 tests, ")
    assert said[0].endswith(" s, 1 failed")
    assert sorted(covered.seconds) == [
        f"{TEST_FILE}::{name}"
        for name in ("test_again", "test_length", "test_one", "test_small[-1-True]", "test_small[3-False]")
    ]
    by_tests = {
        frozenset(test.partition("::")[2] for test in tests) for tests in covered.tests["base/small.py"].values()
    }
    assert by_tests == {
        frozenset({"test_one", "test_small[-1-True]", "test_small[3-False]"}),
        frozenset({"test_one"}),
        frozenset({"test_small[-1-True]", "test_small[3-False]"}),
        frozenset(test.partition("::")[2] for test in covered.seconds),  # of a fixture for the whole file
    }
    measure(tree, tree / "other", [TEST_FILE], 1, say=said.append)
    assert len(said) == 1  # it has not changed


@pytest.mark.parametrize(
    ("after", "function", "killer"),
    [
        ("return (a <= LIMIT)", "is_small", f"FAILED {TEST_FILE}::test_small[3-False]"),
        ("return False", "is_small", f"FAILED {TEST_FILE}::test_one"),
        ("return (len(TABLE) - a)", "table_length", ""),  # no test looks at the constant that is made by it
        ("if False:", "is_small", ""),
    ],
)
def test_mutants(trial: Trial, tree: Path, after: str, function: str, killer: str) -> None:
    outcome = trial.attempt(mutant(after, function))
    assert (outcome.result, outcome.killer) == ("killed" if killer else "survived", killer)
    assert (tree / "src/lbrx/base/small.py").read_text() == SOURCE


def test_a_test_that_fails_anyway_kills_nothing(trial: Trial) -> None:
    outcome = trial.attempt(mutant("return (a - 1)", "unused"))  # the folder of tests is run
    assert (outcome.result, outcome.killer) == ("survived", "")


def test_statements_of_functions_set_flags() -> None:
    source = (
        'def f(a):\n    """Text."""\n    for b in a:\n        try:\n            if b:\n                continue\n'
        "            raise ValueError\n        except ValueError:\n            pass\n"
        "        else:\n            return 1\n    match a:\n        case []:\n            return 2\n        case _:\n"
        "            return 3\n"
    )
    names: dict[str, object] = {"__line_flags__": bytearray(20)}
    exec(compile(instrumented(ast.parse(source)), "f.py", "exec"), names)
    function, flags = names["f"], names["__line_flags__"]
    assert callable(function)
    assert isinstance(flags, bytearray)
    assert function([0]) == 3
    assert [line for line, flag in enumerate(flags) if flag] == [3, 4, 5, 7, 9, 12, 16]
    assert function.__doc__ == "Text."


def test_functions_get_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "class A:\n    def m(self):\n        return 1\n\n\ndef outer(a):\n    def inner():\n        return a\n"
        "    return inner\n\n\ndef twice():\n    return 1\n\n\nfirst = twice\n\n\n"
        "def twice():\n    return 2\n\n\nmade = outer(5)\n"
    )
    path = tmp_path / "replaced_here.py"
    path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import replaced_here as module  # type: ignore[import-not-found]

    functions = Functions()
    assert functions.replace(str(path), text, text.replace("    return 2", "    return 8"))
    assert (module.first(), module.twice()) == (1, 8)
    assert not functions.replace(str(path), text, text.replace("return a\n", "return 4\n"))  # it has no variable a
    assert not functions.replace(str(path), text, text)
    assert functions.replace(str(path), text, text.replace("        return 1", "\n\n        return 7"))
    assert (module.A().m(), module.made(), module.first(), module.twice()) == (7, 5, 1, 2)
    del sys.modules["replaced_here"]
