"""Wrong recipes and the exact errors they give.

Each file of ``broken`` holds entries of the form ``=== name``, the recipe, ``>>> error``.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lbrx.errors import FileError, UsageError
from lbrx.jobs.merge.recipe import RecipeError, load_recipes, parse_recipes
from lbrx.jobs.merge.recipe.yaml_lines import MAX_RECIPE_BYTES

BROKEN = Path(__file__).parent / "broken"


def broken_recipes() -> list[tuple[str, str, str]]:
    found = []
    for path in sorted(BROKEN.glob("*.txt")):
        for entry in path.read_text(encoding="utf-8").split("=== ")[1:]:
            name, rest = entry.split("\n", 1)
            text, error = rest.rsplit("\n>>> ", 1)
            found.append((f"{path.stem}: {name}", text + "\n", error.strip()))
    return found


CASES = broken_recipes()


def test_there_are_broken_recipes_of_every_sort() -> None:
    assert len(CASES) >= 80
    assert len({name for name, _, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(("text", "error"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_error(text: str, error: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipes(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("merge_method: linear\nmodels:\n\t- model: a\n", 3),
        ("merge_method: linear\nmodels: \x07\n", 2),
        ("a: 1\nb: '\x00'\n", 2),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1\n", 1),
        ("merge_method: " + "9" * 5000, 1),
        ("merge_method: " + ":".join(["1"] * 500) + ".5", 1),
    ],
    ids=["tab", "bell", "null byte", "endless version", "endless number", "endless base 60"],
)
def test_odd_characters(text: str, line: int) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipes(text)
    assert caught.value.location.line == line


def test_error_survives_pickling_and_is_a_usage_error() -> None:
    with pytest.raises(UsageError) as caught:
        parse_recipes("merge_methd: linear", source="my.yml")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is RecipeError
    assert str(copy) == "my.yml:1: unknown key 'merge_methd'; did you mean 'merge_method'?"


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    missing = tmp_path / "none.yml"
    with pytest.raises(FileError, match="the recipe cannot be read: No such file") as caught:
        load_recipes(missing)
    assert str(missing) in str(caught.value)

    latin = tmp_path / "latin.yml"
    latin.write_bytes(b"merge_method: linear\n# caf\xe9\n")
    with pytest.raises(RecipeError, match=r"latin.yml:2: the recipe is not UTF-8 text"):
        load_recipes(latin)

    huge = tmp_path / "huge.yml"
    huge.write_bytes("é".encode() * MAX_RECIPE_BYTES)
    with pytest.raises(RecipeError, match=r"huge.yml:1: the recipe is too large; expected at most 262144 bytes"):
        load_recipes(huge)


def test_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "bom.yml"
    path.write_bytes(b"\xef\xbb\xbfmerge_method: passthrough\nmodels: [{model: a}]\n")
    assert load_recipes(path)[0].method == "passthrough"
