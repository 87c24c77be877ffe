"""The sources that a compiled kernel depends on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lbrx
from lbrx.devices.cpu import kernels
from lbrx.devices.cpu.build.kernel_cache import imported_modules

SOURCE = Path(str(lbrx.__file__)).parent.parent
MODULES = sorted(path for path in Path(str(kernels.__file__)).parent.rglob("[a-z]*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_kernel_depends_on_every_module_that_it_imports(path: Path) -> None:
    imported = {
        f"{node.module}.{alias.name}" if (SOURCE / node.module.replace(".", "/")).is_dir() else node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("lbrx.")
        for alias in node.names
    }
    module = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    assert {module, *imported} <= {*imported_modules(module)}


def test_a_kernel_depends_on_nothing_above_it() -> None:
    """Else a change in some far module would make all cached kernels stale."""
    allowed = (
        "lbrx.devices.cpu.simd.",
        "lbrx.devices.cpu.kernels.",
        "lbrx.engine.block_sizes",
        "lbrx.tensors.random_keys",
        "lbrx.tensors.codecs.codebook_tables",
    )
    for path in MODULES:
        module = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
        assert [name for name in imported_modules(module) if not name.startswith(allowed)] == []
