"""Merge methods with matrix products: nothing of the size of a tensor is in memory."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.files.formats.header import TensorSpec
from support.little_memory import put, run_limited, sparse_model

METHODS = """
import lbrx

def project(base, models):
    projection = lbrx.uniform((base.shape[1], base.shape[1]), 1, "projection").realize()
    return base + (models[0] - base) @ projection

def outer(base, models, scale: float = 0.5):
    b, a = lbrx.uniform((base.shape[0], 8), 1, "b"), lbrx.uniform((8, base.shape[1]), 1, "a")
    return base + scale * (b @ a)
"""
MERGE = "import sys, lbrx; lbrx.merge(sys.argv[1], sys.argv[2], threads=2, memory=256 << 20, allow_code=True)"
ROWS, COLUMNS = 1 << 20, 256  # the product has 1 GiB in f32


def written_recipe(folder: Path, method: str, rows: int) -> Path:
    (folder / "methods.py").write_text(METHODS)
    for name in ("base", "model"):
        (folder / name).mkdir()
        path = folder / name / "model.safetensors"
        start = sparse_model(path, [TensorSpec("w", "bf16", (rows, COLUMNS))])["w"]
        values = lbrx.full((COLUMNS,), 0.5 if name == "base" else 2.0, "bf16").numpy()
        for row in (0, rows // 2 + 1, rows - 1):
            put(path, start + 2 * row * COLUMNS, values)
        (folder / name / "config.json").write_text("{}")
    recipe = folder / "recipe.yml"
    base, model = folder / "base", folder / "model"
    recipe.write_text(f"{{merge_method: './methods.py:{method}', base_model: {base}, models: [{{model: {model}}}]}}")
    return recipe


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="the system has no limit on private memory")
@pytest.mark.parametrize("method", ["project", "outer"])
def test_a_method_with_a_product_larger_than_memory(method: str, tmp_path: Path) -> None:
    recipe = written_recipe(tmp_path, method, ROWS)
    run_limited(MERGE, recipe, tmp_path / "out")
    merged, base = (lbrx.open(tmp_path / name)["w"] for name in ("out", "base"))
    assert merged.shape == (ROWS, COLUMNS)
    for row in (0, 1, ROWS // 2 + 1, ROWS - 2, ROWS - 1):
        start = base[row].to("f32").numpy().astype(np.float64)
        if method == "project":
            other = lbrx.open(tmp_path / "model")["w"][row].to("f32").numpy()
            added = (other - start) @ lbrx.uniform((COLUMNS, COLUMNS), 1, "projection").numpy()
        else:
            b = lbrx.uniform((ROWS, 8), 1, "b")[row].numpy()
            added = 0.5 * b @ lbrx.uniform((8, COLUMNS), 1, "a").numpy()
        np.testing.assert_allclose(merged[row].to("f32").numpy(), start + added, rtol=2.0**-8)


@pytest.mark.parametrize("method", ["project", "outer"])
def test_bytes_do_not_depend_on_threads_or_memory(method: str, tmp_path: Path) -> None:
    recipe = written_recipe(tmp_path, method, 40_001)  # 39 MiB in f32
    merged = []
    for number, (threads, memory) in enumerate(((1, 1 << 30), (3, 1 << 30), (2, 16 << 20))):
        lbrx.merge(recipe, tmp_path / str(number), threads=threads, memory=memory, allow_code=True)
        merged.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert merged[0] == merged[1] == merged[2]
