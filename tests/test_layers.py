"""A layer imports only the layers below it. Imports inside functions count; imports for type checkers do not.

A string such as ``"lbrx.module:name"`` is an import, too. Only the tables of the registry may refer to higher layers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import lbrx
from lbrx import registry

SOURCE = Path(lbrx.__file__).parent
MOST_ROOT_MODULES, MOST_ROOT_FOLDERS, MOST_EXCEPTIONS = 7, 14, 4

# Lowest first. A module belongs to the longest name here that its own begins with.
LAYERS = (
    "errors",
    "version",
    "registry",
    "base",
    "settings",
    "memory",
    "tensors",
    "engine",
    "devices.cpu.simd",
    "devices.cpu.kernels",
    "devices.cpu.codegen",
    "devices.cpu.build",
    "devices.cpu.codecs",
    "devices.cpu.ops",
    "devices.cpu.recorded",
    "devices.cpu",
    "devices.numpy",
    "devices.metal.generations",
    "devices.metal.driver",
    "devices.metal.emulator",
    "devices.metal.context",
    "devices.metal.codegen",
    "devices.metal.ops",
    "devices.metal",
    "devices",
    "metal",
    "ops",
    "files.remote",
    "files.formats",
    "files.checkpoint",
    "files.output",
    "models.architectures",
    "models.tokenizers",
    "models.inference",
    "jobs.convert",
    "jobs.insert",
    "jobs.compare",
    "jobs.score",
    "jobs.imatrix",
    "jobs.quantize",
    "jobs.edit",
    "jobs.split",
    "jobs.hash",
    "jobs.lora",
    "jobs.merge.methods",
    "jobs.merge.recipe",
    "jobs.merge.vocabulary",
    "jobs.merge.plan",
    "jobs.merge",
    "jobs.moe",
    "jobs.transplant",
    "jobs.verify",
    "jobs.search",
    "jobs.upload",
    "jobs.bench",
    "jobs.doctor",
    "cluster",
    "plots",
    "demo",
    "cli",
    "__main__",
)

TABLES = {
    "DEVICES": "a device implements a protocol of the engine, and settings check its name",
    "RUNNERS": "the caller of a job names a cluster by its address",
    "TENSOR_FUNCTIONS": "methods of tensors compute",
}
"""Tables of the registry through which a module reaches a higher layer, with the reason."""

_REFERENCE = re.compile(r"(lbrx(?:\.\w+)+):\w+")


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name without ``lbrx.``; a package is called by its folder."""
    named = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that a module imports or refers to anywhere in its source; see `upward_tables` for the registry."""
    imported = _imported(ast.parse(modules()[module].read_text(encoding="utf-8")), with_strings=module != "registry")
    return frozenset(imported)


def _imported(tree: ast.AST, with_strings: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif with_strings and isinstance(node, ast.Constant) and (match := _REFERENCE.fullmatch(str(node.value))):
            names = [match[1]]
        for name in names:
            if name.split(".")[0] == "lbrx":
                yield _module_of(name.removeprefix("lbrx").lstrip("."))
        yield from _imported(node, with_strings)


def _module_of(name: str) -> str:
    while name not in modules():
        name = name.rpartition(".")[0]
    return name


def layer(module: str) -> int | None:
    """The number of a module's layer; None for the package itself and for folders that only hold layers."""
    fitting = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    return LAYERS.index(max(fitting, key=len)) if fitting else None


def is_upward(module: str, imported: str) -> bool:
    own, other = layer(module), layer(imported)
    return own is not None and other is not None and other > own


def upward_imports() -> set[tuple[str, str]]:
    return {(module, name) for module in modules() for name in imports(module) if is_upward(module, name)}


def upward_tables() -> set[str]:
    """The tables of the registry with entries above a module that uses them."""
    upward = set()
    for module in modules():
        if "registry" in imports(module):
            words = set(re.findall(r"[A-Z_]+", modules()[module].read_text(encoding="utf-8")))
            for table in words & set(vars(registry)):
                entries = [entry.partition(":")[0] for entry in vars(registry)[table].values()]
                if any(is_upward(module, entry.removeprefix("lbrx.")) for entry in entries):
                    upward.add(table)
    return upward


def test_a_layer_imports_only_the_layers_below_it() -> None:
    assert upward_imports() == set()


def test_tensors_reach_few_functions_above_them() -> None:
    assert len(registry.TENSOR_FUNCTIONS) <= MOST_EXCEPTIONS


def test_tables_of_the_registry_that_go_up_have_a_reason() -> None:
    assert upward_tables() == set(TABLES)


def test_modules_do_not_import_the_public_names() -> None:
    """``import lbrx`` would reach every layer."""
    assert [module for module in modules() if "" in imports(module)] == []


def test_every_module_has_a_layer() -> None:
    folders = {module for module, path in modules().items() if path.name == "__init__.py"}
    assert [module for module in modules() if layer(module) is None and module not in folders] == []
    for folder in folders:  # a folder that only holds layers imports nothing
        assert layer(folder) is not None or not imports(folder) or folder == ""


def test_the_root_shows_the_architecture() -> None:
    names = [path.name for path in SOURCE.iterdir() if path.name != "__pycache__"]
    assert len([name for name in names if name.endswith(".py")]) <= MOST_ROOT_MODULES
    assert len([name for name in names if "." not in name]) <= MOST_ROOT_FOLDERS


def test_tests_mirror_the_source() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (SOURCE / folder).is_dir()] == ["docs"]


def test_only_its_folder_the_registry_and_the_command_line_name_metal() -> None:
    """Other modules know a device through its protocol and never compare its name."""
    allowed = ("registry", "cli.", "devices.metal.")
    others = [path for module, path in modules().items() if not module.startswith(allowed)]
    assert [path for path in others if re.search("""["']metal["']""", path.read_text(encoding="utf-8"))] == []


def test_packages_do_not_import_each_other_in_circles() -> None:
    """Tensors and the codecs that describe them are one layer."""
    allowed = {"tensors", "tensors.codecs"}
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        own = module if path.name == "__init__.py" else module.rpartition(".")[0] or module
        for imported in imports(module):
            target = modules()[imported]
            other = imported if target.name == "__init__.py" else imported.rpartition(".")[0] or imported
            if own and other and own != other and not {own, other} <= allowed:
                graph.setdefault(own, set()).add(other)
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"packages import each other: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("table", [name for name in vars(registry) if name.isupper()])
def test_every_entry_of_a_registry_exists(table: str) -> None:
    for reference in vars(registry)[table].values():
        assert registry.load(reference) is not None
