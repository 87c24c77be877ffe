"""What the kernels stand on: threads of BLAS, and the sources that a compiled kernel is known by."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from references import normal, weight_of
from threadpoolctl import threadpool_info

from lbrx.compute import blas, kernels, linear, native
from lbrx.devices.cpu.kernels import _LIBRARY_FILES

MODULES = sorted(Path(str(kernels.__file__)).parent.glob("[a-z]*.py"))
LIBRARY = {f"lbrx.devices.cpu.{name}" for name in _LIBRARY_FILES}


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
def test_a_kernel_is_compiled_anew_when_a_module_that_it_uses_has_changed(path: Path) -> None:
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("lbrx.")
    }
    assert imported <= {*native._DEPENDS, *LIBRARY}
