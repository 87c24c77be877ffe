"""The public names: listed once, each with a docstring, and importable without a compiler."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pydoc import render_doc
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.devices.metal.driver import Driver
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


@pytest.mark.parametrize("function", [lbrx.merge, lbrx.convert, lbrx.quantize, lbrx.merge_lora])
def test_functions_that_write_a_model_show_the_options_of_a_run(function: Callable[..., object]) -> None:
    shown = inspect.signature(function).parameters
    options = {field.name: field for field in fields(RunOptions)}
    assert options.keys() == RunKeywords.__annotations__.keys()
    assert inspect.Parameter.VAR_KEYWORD not in {parameter.kind for parameter in shown.values()}
    for name, field in options.items():
        assert (shown[name].default, shown[name].annotation) == (field.default, field.type)
    assert "overwrite: 'bool' = False" in render_doc(function)


@pytest.mark.parametrize("name", ["LBRX_DEVICE", "LBRX_THREADS", "LBRX_ACTIVATION_BITS"])
def test_a_wrong_variable_of_the_environment_is_one_error(name: str) -> None:
    command = [sys.executable, "-m", "lbrx", "verify", str(demo_models().base)]
    done = subprocess.run(command, env=os.environ | {name: "foo"}, capture_output=True, text=True, check=False)
    expected = {
        "LBRX_DEVICE": f"one of {', '.join(DEVICES)}",
        "LBRX_THREADS": "a whole number of at least 1",
        "LBRX_ACTIVATION_BITS": "16 or 8",
    }
    assert (done.returncode, done.stderr) == (1, f"error: {name} is 'foo'; expected {expected[name]}\n")


COMMANDS = (
    "inspect",
    "merge",
    "convert",
    "quantize",
    "moe",
    "shuffle",
    "transplant",
    "insert",
    "verify",
    "compare",
    "diff",
    "score",
    "generate",
)


@pytest.mark.parametrize("name", [*COMMANDS, "doctor", "bench", "extract_lora", "merge_lora"])
def test_a_command_has_a_function_of_its_name(name: str) -> None:
    assert inspect.isfunction(getattr(lbrx, name))


@pytest.mark.parametrize(
    "name", ["RunResult", "RecipeError", "NonFiniteError", "MetalError", "ClusterError", "Progress"]
)
def test_records_and_errors_are_public(name: str) -> None:
    assert inspect.isclass(getattr(lbrx, name))
    assert not name.endswith("Error") or issubclass(getattr(lbrx, name), lbrx.LbrxError)


def test_metal_has_one_entry_point() -> None:
    assert import_module("lbrx.metal") is lbrx.metal
    names = {"MetalContext", "using_metal", "BufferPool", "MetalStorage", "ProfiledContext", "EmulatedDriver"}
    assert names <= set(lbrx.metal.__all__) == set(dir(lbrx.metal))
    assert [name for name in lbrx.metal.__all__ if not getattr(lbrx.metal, name).__doc__] == []


def public_members() -> dict[str, Any]:
    """Every public function, and every public method and property of tensors and checkpoints."""
    members = {name: getattr(lbrx, name) for name in lbrx.__all__ if inspect.isfunction(getattr(lbrx, name))}
    operations = {f"ops.{name}": getattr(lbrx.ops, name) for name in lbrx.ops.__all__}
    members |= {name: value for name, value in operations.items() if inspect.isfunction(value)}
    for owner in (lbrx.Tensor, lbrx.Checkpoint, lbrx.DType):
        for own in owner.__mro__:
            if own.__module__.startswith("lbrx."):
                named = {name: value for name, value in vars(own).items() if not name.startswith("_")}
                kept = {
                    name: value for name, value in named.items() if inspect.isfunction(value) or _is_property(value)
                }
                members |= {f"{owner.__name__}.{name}": value for name, value in kept.items()}
    return members


def _is_property(value: object) -> bool:
    return isinstance(value, property)


@pytest.mark.parametrize("name", public_members())
def test_public_members_have_a_docstring_an_example_and_type_hints(name: str) -> None:
    member = public_members()[name]
    text = inspect.getdoc(member) or ""
    assert text, "no docstring"
    assert ">>>" in text, "no example"
    function = member.fget if isinstance(member, property) else member
    hints = function.__annotations__
    parameters = list(inspect.signature(function, follow_wrapped=True).parameters)
    assert "return" in hints
    untyped = [each for each in parameters if each not in hints and each != "self"]
    assert [each for each in untyped if each not in RunKeywords.__annotations__] == []


@pytest.mark.parametrize("module", [lbrx, lbrx.ops, lbrx.memory, lbrx.metal], ids=lambda module: module.__name__)
def test_members_of_public_classes_have_docstrings(module: ModuleType) -> None:
    """Methods of drivers have those of their protocol."""
    of_drivers = {name for name, value in vars(Driver).items() if inspect.getdoc(value)}
    classes = [getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))]
    assert module is lbrx.ops or len(classes) > 3
    missing = []
    for each in classes:
        for own in each.__mro__:
            names = vars(own) if own.__module__.startswith("lbrx.") else ()
            public = [name for name in names if not name.startswith("_") and callable(getattr(each, name, None))]
            public += [name for name in names if not name.startswith("_") and _is_property(vars(own)[name])]
            known = of_drivers if each is lbrx.metal.EmulatedDriver else ()
            undocumented = [name for name in public if not inspect.getdoc(getattr(each, name))]
            missing += [f"{each.__name__}.{name}" for name in undocumented if name not in known]
    assert missing == []


USER_SCRIPT = """
import numpy as np

import lbrx
import lbrx.metal


def scaled(weight: lbrx.Tensor, factor: float) -> lbrx.Tensor:
    return lbrx.where(abs(weight) > 1e-3, weight * factor, 0).to(dtype="bf16")


x = lbrx.tensor(np.ones((2, 3), np.float32), dtype="f32")
total: float = float((x**2 // 1 % 7).sum(axis=(0, 1)))
parts: list[lbrx.Tensor] = lbrx.concatenate([x, lbrx.zeros((1, 3), dtype="f32")]).split(3)
is_half: bool = scaled(x, 2.0).dtype == "bf16"
with lbrx.open("model") as model:
    for name, weight in model.items():
        print(name, weight.shape, f"{weight.std():.3f}", weight[0].tolist())
try:
    result: lbrx.RunResult = lbrx.merge("recipe.yml", "out", device="cpu", overwrite=True)
except (lbrx.RecipeError, lbrx.NonFiniteError, lbrx.MetalError, lbrx.ClusterError) as error:
    print(error)
change: float = lbrx.diff("a", "b").tensors[0].sums.relative_change
text: str = lbrx.generate("model", "Once", max_tokens=3)
context: lbrx.metal.MetalContext = lbrx.metal.MetalContext.open("emulated")
version: str = lbrx.__version__
"""


def test_scripts_of_users_pass_strict_type_checks(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "script.py").write_text(USER_SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path), "script.py"]
    environment = os.environ | {"MYPYPATH": str(Path(lbrx.__file__).parents[1])}
    options: Any = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--follow-imports=silent"], check=False, **options)
    assert done.stdout.startswith("Success"), done.stdout


def _is_definition(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _own_docstring(value: object) -> str | None:
    """A dataclass without a docstring is given its signature as one, which does not count."""
    text = value.__doc__
    name = getattr(value, "__name__", "")
    return None if text is None or text.startswith(f"{name}(") else text


def test_recipes_can_be_dictionaries(tmp_path: Path) -> None:
    models = demo_models()
    weights = {models.prose: 1e-05, models.code: 3}
    listed = [{"model": model, "parameters": {"weight": weight}} for model, weight in weights.items()]
    lbrx.merge({"merge_method": "linear", "models": listed}, tmp_path / "dictionary")
    lines = "".join(f"\n- {{model: {model}, parameters: {{weight: {w}}}}}" for model, w in weights.items())
    lbrx.merge(f"merge_method: linear\nmodels:{lines}", tmp_path / "text")
    written = [tmp_path / name / "model.safetensors" for name in ("dictionary", "text")]
    assert written[0].read_bytes() == written[1].read_bytes()
    experts = [{"source_model": models.prose}, {"source_model": models.code}]
    mixture = {"base_model": models.base, "gate_mode": "random", "experts": experts}
    assert lbrx.moe(mixture, tmp_path / "mixture").tensors > 0


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16])
@pytest.mark.parametrize("ending", ["safetensors", "gguf"])
def test_numpy_arrays_are_saved_as_tensors_are(tmp_path: Path, dtype: Any, ending: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    lbrx.save(tmp_path / f"array.{ending}", {"w": array})
    lbrx.save(tmp_path / f"tensor.{ending}", {"w": lbrx.tensor(array)})
    assert (tmp_path / f"array.{ending}").read_bytes() == (tmp_path / f"tensor.{ending}").read_bytes()
    assert np.array_equal(lbrx.open(tmp_path / f"array.{ending}")["w"].numpy(), array)
