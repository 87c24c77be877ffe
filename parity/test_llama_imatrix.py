"""``lbrx imatrix`` against llama-imatrix: sums of squares and counts, of a trained model and of a mixture of experts.

Both compute in f32 with sums in another order. A token whose experts have nearly equal weights can therefore go to
another one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks.llama_tools import tool
from benchmarks.real_models import real_model

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.imatrix.imatrix import imatrix

RECIPE = """
base_model: base
gate_mode: hidden
experts:
  - {source_model: base, positive_prompts: ["the"]}
  - {source_model: code, positive_prompts: ["import numpy as np"]}
  - {source_model: prose, positive_prompts: ["And the king said"]}
  - {source_model: code, positive_prompts: ["def test(self):"]}
"""


def mixture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shipped = demo_models()
    for model in (shipped.base, shipped.code, shipped.prose):
        shutil.copytree(model, folder / model.name)
    (folder / "moe.yml").write_text(RECIPE)
    monkeypatch.chdir(folder)
    lbrx.moe("moe.yml", "mixture")
    return folder / "mixture"


@pytest.mark.parametrize(("name", "context", "tolerance"), [("smollm2", 512, 2e-3), ("mixture", 128, 5e-3)])
def test_sums_are_those_of_llama_imatrix(
    name: str, context: int, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    source = mixture(tmp_path, monkeypatch) if name == "mixture" else real_model(name)
    lbrx.convert(source, model, type="f32")
    text.write_text(demo_models().prose_text.read_text(encoding="utf-8")[:9_000], encoding="utf-8")
    theirs, ours = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    options = ["-c", str(context), "-b", str(context), "-ub", str(context), "-t", "1", "--chunks", "4", "--no-ppl"]
    subprocess.run([tool("llama-imatrix"), "-m", model, "-f", text, *options, "-o", theirs], check=True)
    imatrix(model, ours, text, context=context, max_chunks=4)
    expected, found = lbrx.open(theirs), lbrx.open(ours)
    assert set(found) == set(expected)
    for key in expected:
        one, other = (each[key].numpy().astype(np.float64).reshape(-1) for each in (expected, found))
        if key.endswith(".counts"):
            assert np.abs(one - other).max() <= 2, key
        else:
            assert np.abs(one - other).max() <= tolerance * np.abs(one).max(), key
    assert found.metadata["imatrix.chunk_count"] == expected.metadata["imatrix.chunk_count"] == 4
