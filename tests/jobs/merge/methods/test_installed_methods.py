"""Merge methods of installed packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.merge.methods import load_method, method
from lbrx.jobs.merge.recipe import RecipeError
from support.packages import install

SOURCE = """
from collections.abc import Sequence
from typing import Annotated
from lbrx import Tensor
from lbrx.jobs.merge.methods import Limits

Share = Annotated[float, Limits(0, 1)]
def halfway(base: Tensor, models: Annotated[Sequence[Tensor], Limits(1, 1)], *, share: Share = 0.5):
    return base + share * (models[0] - base)

def broken(models: Sequence[Tensor]):
    return models[0] * (1 / 0)

def untyped(models, share): ...
number = 3
"""
RECIPE = "merge_method: halfway\nbase_model: a.safetensors\nmodels: [{model: b.safetensors}]\nparameters: {share: %s}\n"


@pytest.fixture(autouse=True)
def no_cached_methods() -> Iterator[None]:
    yield
    method._named_method.cache_clear()


def provide(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str = "lbrx_extra", **methods: str) -> None:
    entries = {name: f"{package}.{reference}" for name, reference in methods.items()}
    install(folder / package, monkeypatch, package, {f"{package}/own.py": SOURCE}, {"lbrx.methods": entries})


def test_a_recipe_names_a_method_of_a_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(folder, monkeypatch, halfway="own:halfway")
    for name, value in (("a", 1.0), ("b", 5.0)):
        lbrx.save(f"{name}.safetensors", {"w": lbrx.full((4,), value, "f32")})
    lbrx.merge(RECIPE % 0.25, "out")
    np.testing.assert_array_equal(lbrx.open("out")["w"].numpy(), [2, 2, 2, 2])
    with pytest.raises(RecipeError, match="'share' must be between 0 and 1, found 2"):
        lbrx.merge(RECIPE % 2, "other")


def test_a_changed_method_is_another_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(folder, monkeypatch, halfway="own:halfway")
    for name in "ab":
        lbrx.save(f"{name}.safetensors", {"w": lbrx.full((4,), 1.0, "f32")})
    plan = read_and_plan(RECIPE % 0.25, "out")
    before = plan.identity({})["method file"]
    path = folder / "lbrx_extra" / "lbrx_extra" / "own.py"
    path.write_text(path.read_text() + "# changed")
    assert set(before) == {"halfway"}
    assert plan.identity({})["method file"] != before


def test_an_unknown_name_is_compared_with_those_of_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(folder, monkeypatch, halfway="own:halfway")
    with pytest.raises(UsageError, match="unknown merge method 'halfwya'; did you mean 'halfway'"):
        load_method("halfwya")
    with pytest.raises(UsageError, match=r"unknown merge method 'x'; expected one of linear, .*, halfway, or \./file"):
        load_method("x")


@pytest.mark.parametrize(
    ("name", "reference", "message"),
    [
        (
            "lost",
            "own:missing",
            r"package lbrx_extra 1\.2: lost = 'lbrx_extra\.own:missing' in lbrx\.methods cannot be load",
        ),
        ("lost", "absent:f", r"package lbrx_extra 1\.2: .* cannot be loaded: ModuleNotFoundError: No module named"),
        ("number", "own:number", r"package lbrx_extra 1\.2: 'lbrx_extra\.own:number' is a int; expected a function"),
        ("untyped", "own:untyped", r"package lbrx_extra 1\.2: untyped\(\): parameter 'share' has no type"),
        (
            "mine",
            "own:halfway",
            r"package lbrx_extra 1\.2 registers 'slerp' in lbrx\.methods, but that name is built in",
        ),
    ],
)
def test_a_broken_entry_point_is_one_error_with_its_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, reference: str, message: str
) -> None:
    provide(folder, monkeypatch, **{name: reference}, **({"slerp": "own:halfway"} if name == "mine" else {}))
    with pytest.raises(UsageError, match=message) as caught:
        load_method(name)
    assert "\n" not in str(caught.value)


def test_two_packages_with_one_name_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(folder, monkeypatch, halfway="own:halfway")
    provide(folder, monkeypatch, "lbrx_other", halfway="own:halfway")
    with pytest.raises(
        UsageError, match=r"package lbrx_other 1\.2 and package lbrx_extra 1\.2 both register 'halfway'"
    ):
        load_method("halfway")


def test_an_error_of_a_call_begins_with_file_and_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(folder, monkeypatch, broken="own:broken")
    with pytest.raises(UsageError, match=r"lbrx_extra/own\.py:12: broken\(\) fails: ZeroDivisionError: division"):
        load_method("broken").function(models=[lbrx.tensor([1.0])])


def test_packages_are_not_looked_at_for_built_in_methods() -> None:
    script = "import sys\nfrom lbrx.jobs.merge.methods import load_method\nload_method('ties')\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "importlib.metadata" not in done.stdout.split()
