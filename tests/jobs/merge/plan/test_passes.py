"""The passes of a merge are those of the expressions that its tensors are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbrx.engine import evaluate
from lbrx.files.output.contents import Contents, SideFile
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.merge.plan.estimate import _copy_rate, estimate
from lbrx.jobs.merge.plan.foreign_inputs import kept_side_files
from support.tiny import BF16, make_llama

ONE = "base_model: base\nmodels: [{model: a}]"
TWO = "base_model: base\nmodels: [{model: a}, {model: b}]"
NO_BASE = "models: [{model: a}, {model: b}]"
STAGES = "name: x\nmerge_method: slerp\nbase_model: base\nparameters: {t: 0.5}\nmodels: [{model: a}]\n---\n"

CASES = [
    ("linear", NO_BASE, "weight: 1", 1),
    ("passthrough", "models: [{model: a}]", "scale: 2", 1),
    ("nearswap", ONE, "t: 0.1", 1),
    ("ram", TWO, "", 1),
    ("task_arithmetic", TWO, "weight: 1", 1),
    ("slerp", ONE, "t: 0.5", 2),
    ("nuslerp", NO_BASE, "weight: 1", 2),
    ("nuslerp", NO_BASE, "weight: 1, nuslerp_flatten: false", 1),
    ("multislerp", NO_BASE, "weight: 1", 2),
    ("karcher", NO_BASE, "", 2),
    ("model_stock", TWO, "", 2),
    ("model_stock", TWO, "filter_wise: true", 1),
    ("ramplus_tl", TWO, "", 2),
    ("dare_linear", TWO, "weight: 1, density: 0.5", 2),
    ("dare_linear", TWO, "weight: 1, density: 0.5, rescale: false", 1),
    ("dare_ties", TWO, "weight: 1", 1),
    ("della", TWO, "weight: 1, density: 0.5", 2),
    ("della_linear", TWO, "weight: 1, density: 0.5", 2),
    ("ties", TWO, "weight: 1, density: 0.5", 4),
    ("ties", TWO, "weight: 1, density: [{filter: mlp, value: 0.5}, {value: 1}]", 4),
    ("ties", TWO, "weight: 1", 1),
    ("breadcrumbs", TWO, "weight: 1, density: 0.5", 4),
    ("breadcrumbs_ties", TWO, "weight: 1, density: 0.5", 4),
    ("arcee_fusion", ONE, "", 5),
    ("sce", TWO, "select_topk: 0.5", 6),
    ("sce", TWO, "", 2),
]


@pytest.fixture(autouse=True)
def models(folder: Path) -> None:
    for seed, name in enumerate(("base", "a", "b")):
        make_llama(folder / name, seed, layers=2, dtype=BF16)


def recipe_of(method: str, inputs: str, parameters: str) -> str:
    return f"merge_method: {method}\ndtype: bfloat16\n{inputs}\nparameters: {{{parameters}}}\n"


@pytest.mark.parametrize(("method", "inputs", "parameters", "passes"), CASES)
def test_passes_are_counted(method: str, inputs: str, parameters: str, passes: int) -> None:
    assert estimate(read_and_plan(recipe_of(method, inputs, parameters), "out")).passes == passes


def test_earlier_stages_add_what_they_find_out_first() -> None:
    recipe = STAGES + recipe_of("slerp", "base_model: base\nmodels: [{model: x}]", "t: 0.5")
    assert estimate(read_and_plan(recipe, "out")).passes == 3


def test_a_method_of_the_user_is_counted_with_the_values_that_it_reads(folder: Path) -> None:
    recipe = "merge_method: ./mine.py:scaled\nmodels: [{model: a}]\n"
    (folder / "mine.py").write_text("def scaled(models): return models[0] * float(models[0].max()) / models[0].sum()")
    assert estimate(read_and_plan(recipe, "out", allow_code=True)).passes == 3


@pytest.mark.parametrize(("method", "inputs", "parameters", "passes"), [case for case in CASES if case[3] < 4])
def test_as_many_passes_run(
    method: str, inputs: str, parameters: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_and_plan(recipe_of(method, inputs, parameters), "out")
    run: list[Any] = []
    run_pass = evaluate.run_pass
    monkeypatch.setattr(evaluate, "small_store", lambda *_: False)
    monkeypatch.setattr(evaluate, "run_pass", lambda *arguments: run.append(arguments) or run_pass(*arguments))
    plan.tensor("model.layers.1.mlp.up_proj.weight").numpy()
    assert len(run) == passes


def test_the_seconds_of_an_estimate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate("ab"):
        make_llama(folder / name, number)
    monkeypatch.setattr("lbrx.jobs.merge.plan.estimate._copy_rate", lambda: 100.0)
    monkeypatch.setattr("lbrx.jobs.merge.plan.estimate._read_rate", lambda _plan: 50.0)
    monkeypatch.setattr("lbrx.jobs.merge.plan.estimate._PASS_SECONDS", 2.0)
    cost = estimate(
        read_and_plan("merge_method: slerp\nbase_model: a\nparameters: {t: 0.5}\nmodels: [{model: b}]", "out")
    )
    read = cost.read_bytes / 50 + (cost.passes - 1) * cost.read_bytes / 100
    assert cost.passes > 1
    assert cost.seconds == pytest.approx(read + cost.write_bytes / 100 + cost.tensors * cost.passes * 2)


def test_the_rate_of_copies_is_that_of_a_machine() -> None:
    assert 1e6 < _copy_rate() < 1e12


def test_small_files_of_a_model_without_a_directory_need_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    contents = Contents("gguf", (), side_files=(SideFile("tokenizer.json", content=b"{}"),))
    for cache in (tmp_path / "cache", tmp_path / "file" / "cache"):  # the second one cannot be written
        monkeypatch.setenv("LBRX_CACHE_DIR", str(cache))
        directory = kept_side_files(contents)
        assert directory is not None
        assert (directory / "tokenizer.json").read_bytes() == b"{}"
        assert directory.is_relative_to(tmp_path) is (cache.parent == tmp_path)
