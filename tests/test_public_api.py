"""The public names: listed once, each with a docstring, and importable without a compiler."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import lbrx

PUBLIC_MODULES = ("lbrx", "lbrx.models.architectures", "lbrx.memory", "lbrx.jobs.merge.recipe")


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_public_names_are_listed_once_and_exist(module_name: str) -> None:
    module = import_module(module_name)
    names = list(module.__all__)
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_public_functions_and_classes_have_docstrings(module_name: str) -> None:
    module = import_module(module_name)
    documented = {name: getattr(module, name) for name in module.__all__ if _is_definition(getattr(module, name))}
    assert [name for name, value in documented.items() if not _own_docstring(value)] == []


def test_no_public_name_of_the_package_is_missing_from_its_list() -> None:
    visible = {name for name in dir(lbrx) if not name.startswith("_")}
    modules = {name for name in visible if isinstance(getattr(lbrx, name), ModuleType)}
    assert visible - modules == set(lbrx.__all__) - modules


def test_importing_lbrx_imports_neither_numba_nor_llvm() -> None:
    code = "import sys, lbrx; print(sorted({'numba', 'llvmlite'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def _is_definition(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _own_docstring(value: object) -> str | None:
    """A dataclass without a docstring is given its signature as one, which does not count."""
    text = value.__doc__
    name = getattr(value, "__name__", "")
    return None if text is None or text.startswith(f"{name}(") else text
