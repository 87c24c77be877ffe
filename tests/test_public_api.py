"""The public names: listed once, each with a docstring, and importable without a compiler."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pydoc import render_doc
from types import ModuleType

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.files.output.options import RunKeywords, RunOptions
from lbrx.registry import DEVICES

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
    visible = {name for name in vars(lbrx) if not name.startswith("_") and not name.endswith("__")}
    modules = {name for name in visible if isinstance(getattr(lbrx, name), ModuleType)}
    assert visible - modules <= set(lbrx.__all__)
    assert dir(lbrx) == lbrx.__all__


def test_importing_lbrx_imports_neither_numba_nor_llvm() -> None:
    code = "import sys, lbrx; print(sorted({'numba', 'llvmlite'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("function", [lbrx.merge, lbrx.convert, lbrx.quantize])
def test_functions_that_write_a_model_show_the_options_of_a_run(function: Callable[..., object]) -> None:
    shown = inspect.signature(function).parameters
    options = {field.name: field for field in fields(RunOptions)}
    assert options.keys() == RunKeywords.__annotations__.keys()
    assert inspect.Parameter.VAR_KEYWORD not in {parameter.kind for parameter in shown.values()}
    for name, field in options.items():
        assert (shown[name].default, shown[name].annotation) == (field.default, field.type)
    assert "overwrite: 'bool' = False" in render_doc(function)


@pytest.mark.parametrize("name", ["LBRX_DEVICE", "LBRX_THREADS"])
def test_a_wrong_variable_of_the_environment_is_one_error(name: str) -> None:
    command = [sys.executable, "-m", "lbrx", "verify", str(demo_models().base)]
    done = subprocess.run(command, env=os.environ | {name: "foo"}, capture_output=True, text=True, check=False)
    expected = {"LBRX_DEVICE": f"one of {', '.join(DEVICES)}", "LBRX_THREADS": "a whole number of at least 1"}
    assert (done.returncode, done.stderr) == (1, f"error: {name} is 'foo'; expected {expected[name]}\n")


def _is_definition(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _own_docstring(value: object) -> str | None:
    """A dataclass without a docstring is given its signature as one, which does not count."""
    text = value.__doc__
    name = getattr(value, "__name__", "")
    return None if text is None or text.startswith(f"{name}(") else text
