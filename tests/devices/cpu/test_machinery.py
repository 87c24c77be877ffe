"""What the kernels stand on: threads of BLAS, and the sources that a compiled kernel is known by."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

import lbrx
from lbrx.devices.cpu import kernels
from lbrx.devices.cpu.build.kernel_cache import imported_modules
from lbrx.devices.cpu.ops import blas
from lbrx.ops import linear
from support.references import normal, weight_of

SOURCE = Path(str(lbrx.__file__)).parent.parent
MODULES = sorted(path for path in Path(str(kernels.__file__)).parent.rglob("[a-z]*.py"))


def blas_threads() -> list[int]:
    return [int(library["num_threads"]) for library in threadpool_info() if library["user_api"] == "blas"]


def test_blas_has_one_thread_inside_and_its_own_number_afterwards() -> None:
    before = blas_threads()
    with blas.one_blas_thread():
        assert set(blas_threads()) <= {1}
        with blas.one_blas_thread():
            assert set(blas_threads()) <= {1}
        assert set(blas_threads()) <= {1}
        linear(normal(40, 64), weight_of("bf16", 300, 64))
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before


def test_blas_gets_its_threads_back_after_an_error() -> None:
    before = blas_threads()
    with pytest.raises(ZeroDivisionError), blas.one_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == before


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
    )
    for path in MODULES:
        module = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
        assert [name for name in imported_modules(module) if not name.startswith(allowed)] == []
