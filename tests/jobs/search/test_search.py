"""Searches on the demo models: scores are those of written merges, searches are resumed, known optima are found."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FormatError, LbrxError, UsageError
from lbrx.jobs.merge.plan.models import ModelOpener
from lbrx.jobs.score.choices import Question
from lbrx.jobs.search.candidate import Candidate, HiddenCache
from lbrx.jobs.search.journal import Journal
from lbrx.jobs.search.objectives import Objectives, pieces_of
from lbrx.jobs.search.search import search
from lbrx.jobs.search.space import read_space
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.text import open_tokenizer
from support.cli_running import lbrx_command
from support.family_goldens import golden

SHIPPED = demo_models()
PROSE = SHIPPED.prose_text.read_text(encoding="utf-8")[:5000]
CODE = SHIPPED.code_text.read_text(encoding="utf-8")[:5000]
QUICK: dict[str, Any] = {"context": 64, "max_tokens": 256}


def recipe(weight: str, method: str = "task_arithmetic", more: str = "") -> str:
    return (
        f"merge_method: {method}\nbase_model: {SHIPPED.base}\nmodels:\n"
        f"  - {{model: {SHIPPED.prose}, parameters: {{weight: {weight}}}}}\n"
        f"  - {{model: {SHIPPED.code}, parameters: {{weight: {{search: [0, 1]}}}}}}\ndtype: bfloat16\n{more}"
    )


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    for name, content in (("prose.txt", PROSE), ("code.txt", CODE)):
        (tmp_path / name).write_text(content, encoding="utf-8")
    return [tmp_path / "prose.txt", tmp_path / "code.txt"]


def test_methods_that_run_models_on_texts(tmp_path: Path, texts: list[Path]) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(PROSE[:900])
    second.write_text(CODE[:900])
    listed = [
        f"{{model: {model}, parameters: {{text: {text}, weight: 0.5}}}}"
        for model, text in ((SHIPPED.prose, first), (SHIPPED.code, second))
    ]
    given = (
        f"merge_method: {{choose: [regmean, iso_c, tsv_m, wudi, consensus_ta, ties]}}\nbase_model: {SHIPPED.base}\n"
        f"models: [{', '.join(listed)}]\nparameters: {{off_diagonal: {{search: [0.1, 1]}}}}\ndtype: bfloat16\n"
    )
    options: dict[str, Any] = {"texts": texts, "optimizer": "random", "candidates": 8, "rungs": 1, **QUICK}
    found = search(given, tmp_path / "out", **options)
    assert not list(tmp_path.glob(".*"))
    journal = [json.loads(line) for line in (tmp_path / "out/search.jsonl").read_text().splitlines()]
    assert len(journal) == 9
    lbrx.merge(found.recipe, tmp_path / "merged")
    for text in texts:
        (one,) = lbrx.score(tmp_path / "merged", text, context=64, stride=63, max_tokens=257)
        assert found.figures[text.name] == pytest.approx(one.loss, rel=1e-5)
    second.write_text(CODE[:800])
    with pytest.raises(UsageError, match="other settings or models"):
        search(given, tmp_path / "out", **options)


# -- candidates --------------------------------------------------------------------------------------------------------


def plain(weight: float, first_layers: str = "") -> str:
    value = f"{weight}" if not first_layers else f"[{{filter: {first_layers}, value: {weight}}}, {{value: 0.5}}]"
    return recipe(value).replace("{search: [0, 1]}", "0.25")


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3", "qwen3_moe"])
def test_joined_tensors_of_a_merge_are_taken_apart(tmp_path: Path, name: str) -> None:
    models = [golden(name).write(tmp_path / f"{copy}", copy) for copy in (0, 1)]
    text = (
        f"merge_method: linear\nmodels: [{{model: {models[0]}}}, {{model: {models[1]}}}]\nparameters: {{weight: 0.5}}\n"
    )
    lbrx.merge(text, tmp_path / "merged")
    ids = golden(name).ids
    candidate = Candidate(text, tmp_path, ModelOpener((tmp_path,), rounds=False))
    rows = np.concatenate([rows for _, rows in candidate.run([ids]).logit_blocks(0)])
    np.testing.assert_allclose(rows, open_model(tmp_path / "merged").logits(ids), rtol=0, atol=1e-4)


def test_logits_are_those_of_the_written_merge(tmp_path: Path) -> None:
    ids = [open_tokenizer(SHIPPED.base).encode(text)[:100] for text in (PROSE, CODE)]
    lbrx.merge(plain(0.7), tmp_path / "merged")
    written = open_model(tmp_path / "merged")
    run = Candidate(plain(0.7), Path(), ModelOpener((Path(),))).run(ids)
    for number, tokens in enumerate(ids):
        found = np.concatenate([rows for _, rows in run.logit_blocks(number)])
        np.testing.assert_array_equal(found, written.logits(tokens))


def test_layers_that_did_not_change_are_not_run_again() -> None:
    opener, cache = ModelOpener((Path(),)), HiddenCache(64 << 20)
    ids = [open_tokenizer(SHIPPED.base).encode(PROSE)[:60]]
    layers = len(open_model(SHIPPED.base).spec.layers)
    last = f"layers.{layers - 1}."
    Candidate(plain(0.1, last), Path(), opener).run(ids, cache)
    assert (cache.layers_run, cache.layers_reused) == (layers, 0)
    run = Candidate(plain(0.9, last), Path(), opener).run(ids, cache)
    assert (cache.layers_run, cache.layers_reused) == (layers + 1, layers - 1)
    fresh = Candidate(plain(0.9, last), Path(), opener).run(ids)
    np.testing.assert_array_equal(run.hidden[0], fresh.hidden[0])
    Candidate(plain(0.9), Path(), opener).run(ids, cache)  # other first layers
    assert cache.layers_run == 2 * layers + 1


def test_the_cache_of_hidden_states_is_bounded() -> None:
    states = [np.zeros(1000, np.float32)]
    cache = HiddenCache(10_000)
    for number in range(5):
        cache.store(bytes([number]), states)
    assert cache.deepest([b"", b"\x00", b"\x01"]) is None
    assert cache.deepest([b"", b"\x03", b"\x01"]) is not None
    cache.store(b"large", [np.zeros(10_000, np.float32)])
    assert cache.deepest([b"", b"large"]) is None


CHOSEN = """
merge_method: linear
models:
  - {{model: {{choose: [{prose}, {code}]}}, parameters: {{weight: 1}}}}
  - {{model: {base}, parameters: {{weight: 1}}}}
"""
STAGES = """
name: first
merge_method: linear
models:
  - {{model: {prose}, parameters: {{weight: {{search: [0, 1]}}}}}}
  - {{model: {code}, parameters: {{weight: 0.5}}}}
---
merge_method: linear
models:
  - {{model: first, parameters: {{weight: 1}}}}
  - {{model: {base}, parameters: {{weight: 1}}}}
"""


@pytest.mark.parametrize("template", [CHOSEN, STAGES], ids=["model", "earlier stage"])
def test_layers_of_other_models_and_stages_are_run_again(template: str) -> None:
    space = read_space(template.format(prose=SHIPPED.prose, code=SHIPPED.code, base=SHIPPED.base))
    opener, cache = ModelOpener((Path(),)), HiddenCache(64 << 20)
    ids = [open_tokenizer(SHIPPED.base).encode(PROSE)[:40]]
    Candidate(space.recipe([0]), Path(), opener).run(ids, cache)
    other = space.recipe([1])
    run = Candidate(other, Path(), opener).run(ids, cache)
    assert cache.layers_reused == 0
    np.testing.assert_array_equal(run.hidden[0], Candidate(other, Path(), opener).run(ids).hidden[0])


def test_answers_of_a_broken_merge_are_wrong() -> None:
    questions = [Question("And the king", (" said", " import"), 0)]
    objectives = Objectives([], [], questions=questions, tokenizer=open_tokenizer(SHIPPED.base))
    broken = Candidate(plain(1e38).replace("0.25", "1.0e+38"), Path(), ModelOpener((Path(),)))
    assert not np.isfinite(broken.model.logits([1, 2])).any()
    assert objectives.measured(broken) == {"choices": 1.0}


def test_figures_are_losses_of_the_pieces() -> None:
    ids = open_tokenizer(SHIPPED.base).encode(PROSE)[:201]
    objectives = Objectives(["prose"], pieces_of([ids], 51, 200))
    candidate = Candidate(plain(0.7), Path(), ModelOpener((Path(),)))
    expected = []
    for start in range(0, 200, 50):
        logits = candidate.model.logits(ids[start : start + 50]).astype(np.float64)
        shares = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        expected.append(-shares[np.arange(50), ids[start + 1 : start + 51]])
    assert objectives.measured(candidate)["prose"] == pytest.approx(np.concatenate(expected).mean(), rel=1e-5)
    assert objectives.measured(candidate, 0.25)["prose"] == pytest.approx(expected[0].mean(), rel=1e-5)


def test_no_more_tokens_than_asked_for_are_measured_and_short_pieces_come_last() -> None:
    (pieces,) = pieces_of([range(1000)], 51, 420)
    assert [len(piece.ids) for piece in pieces] == [51] * 8 + [21]
    assert sorted(number for piece in pieces for number in piece.ids[1:]) == list(range(1, 421))


def test_what_was_measured_on_a_small_share_is_not_computed_again() -> None:
    ids = open_tokenizer(SHIPPED.base).encode(PROSE)[:201]
    pieces = pieces_of([ids], 51, 200)
    objectives = Objectives(["prose"], pieces, cache=HiddenCache(64 << 20))
    alone = Objectives(["prose"], pieces)
    opener = ModelOpener((Path(),))
    for weight, share in ((0.7, 0.25), (0.4, 0.25), (0.7, 1.0)):
        found = objectives.measured(Candidate(plain(weight), Path(), opener), share)
        assert found == alone.measured(Candidate(plain(weight), Path(), opener), share)
    run: list[int] = []

    class Counted(Candidate):
        def run(self, texts: Any, cache: HiddenCache | None = None) -> Any:
            run.append(len(texts))
            return super().run(texts, cache)

    for weight, share in ((0.7, 1.0), (0.4, 1.0), (0.2, 0.5)):
        objectives.measured(Counted(plain(weight), Path(), opener), share)
    assert run == [3, 2]


# -- searches ----------------------------------------------------------------------------------------------------------


def test_a_known_optimum_is_found(tmp_path: Path, texts: list[Path]) -> None:
    known = recipe("0.63").replace("{search: [0, 1]}", "0.37").replace("bfloat16", "float32")
    lbrx.merge(known, tmp_path / "known")
    searched = recipe("{search: [0, 1]}").replace("bfloat16", "float32")
    found = search(
        searched,
        tmp_path / "out",
        texts=texts,
        measure="kl",
        reference=tmp_path / "known",
        candidates=32,
        rungs=1,
        context=64,
        max_tokens=63,
    )
    assert found.values["prose.weight"] == pytest.approx(0.63, abs=0.02)
    assert found.values["code.weight"] == pytest.approx(0.37, abs=0.02)
    assert found.score < 2e-4
    lbrx.merge(tmp_path / "out" / "best.yml", tmp_path / "merged")  # an ordinary recipe


def test_searches_are_repeatable_and_resumed(tmp_path: Path, texts: list[Path]) -> None:
    settings: dict[str, Any] = {"texts": texts, "candidates": 12, **QUICK}
    whole = search(recipe("{search: [0, 1]}"), tmp_path / "whole", **settings)
    again = search(recipe("{search: [0, 1]}"), tmp_path / "again", threads=1, **settings)
    journal = (tmp_path / "whole" / "search.jsonl").read_bytes()
    assert (tmp_path / "again" / "search.jsonl").read_bytes() == journal
    assert again.recipe == whole.recipe
    for cut in (10, len(journal) // 3, len(journal) // 2 + 7, len(journal) - 1):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir()
        (folder / "search.jsonl").write_bytes(journal[:cut])
        assert search(recipe("{search: [0, 1]}"), folder, **settings).recipe == whole.recipe
        assert (folder / "search.jsonl").read_bytes() == journal


@pytest.mark.usefixtures("texts")
def test_a_search_killed_at_five_moments_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "recipe.yml").write_text(recipe("{search: [0, 1]}"))
    command = [sys.executable, "-m", "lbrx", "search", "recipe.yml", "out", "--candidates", "24", "--max-tokens", "256"]
    command += ["--context", "64", "--text", "prose.txt", "--text", "code.txt", "--json"]
    journal = tmp_path / "out" / "search.jsonl"
    for lines in (1, 4, 12, 20, 28):  # of about 40, in all rungs of successive halving
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < lines):
            time.sleep(0.01)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["search.jsonl"]
        rows = [json.loads(line) for line in journal.read_bytes().splitlines(keepends=True)[1:] if line.endswith(b"\n")]
        assert len(rows) >= lines - 1
    resumed = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    command[5] = "whole"
    whole = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert journal.read_bytes() == (tmp_path / "whole" / "search.jsonl").read_bytes()
    assert {row["rung"] for row in rows} == {0, 1, 2}
    assert resumed | {"out": "whole"} == whole
    assert (resumed["candidates"], resumed["complete"]) == (24, True)


def test_limits_reject_candidates(tmp_path: Path, texts: list[Path]) -> None:
    settings: dict[str, Any] = {"texts": texts, "candidates": 21, "rungs": 1, "context": 64, "max_tokens": 126}
    free = search(recipe("{search: [0, 1]}"), tmp_path / "free", **settings)
    limit = free.figures["prose.txt"] - 0.03
    bound = search(recipe("{search: [0, 1]}"), tmp_path / "bound", limits={"prose.txt": limit}, **settings)
    assert bound.figures["prose.txt"] <= limit
    assert bound.figures["code.txt"] > free.figures["code.txt"]
    assert bound.score == pytest.approx(bound.figures["code.txt"])  # a limit is not also a goal


def test_limits_that_no_candidate_keeps_are_reported(
    tmp_path: Path, texts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yml").write_text(recipe("{choose: [0.25, 0.75]}"))
    options = (
        "--at-most",
        "prose.txt=0.5",
        "--candidates",
        "1",
        "--rungs",
        "1",
        "--max-tokens",
        "64",
        "--context",
        "64",
    )
    done = lbrx_command(capsys, "search", tmp_path / "recipe.yml", tmp_path / "out", "--text", texts[0], *options)
    assert "no candidate keeps all limits; the best one exceeds prose.txt=0.5" in done.err
    assert "exceeds that of prose.txt, 0.5." in (tmp_path / "out" / "report.md").read_text()
    assert "prose.weight    0.75" in done.out  # the value, not the number of the choice


def test_scores_that_are_no_numbers_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yml").write_text(recipe("{search: [0, 1]}"))
    (tmp_path / "own.py").write_text("def nan(model, tokenizer):\n    return float('nan')\n")
    options = ("--function", f"{tmp_path}/own.py:nan", "--allow-code", "--candidates", "1", "--rungs", "1")
    done = lbrx_command(capsys, "search", tmp_path / "recipe.yml", tmp_path / "out", *options)
    assert "no candidate has a finite score" in done.err


def test_a_pareto_front_has_no_dominated_candidates(tmp_path: Path, texts: list[Path]) -> None:
    found = search(
        recipe("{search: [0, 1]}"),
        tmp_path / "out",
        texts=texts,
        goal="pareto",
        candidates=21,
        rungs=1,
        context=64,
        max_tokens=126,
    )
    figures = [(each["prose.txt"], each["code.txt"]) for _, each in found.front]
    assert len(figures) >= 3
    assert figures == sorted(figures)
    assert [second for _, second in figures] == sorted((second for _, second in figures), reverse=True)
    assert (tmp_path / "out" / "front-1.yml").exists()


def test_questions_and_functions_are_figures(tmp_path: Path) -> None:
    rows = [{"ctx": "And the king said", "endings": ["unto him, Go", "import numpy as"], "label": 0}] * 2
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text("def size(model, tokenizer):\n    return len(tokenizer.encode('And the king'))\n")
    settings: dict[str, Any] = {"choices": tmp_path / "q.jsonl", "function": f"{tmp_path / 'own.py'}:size"}
    found = search(
        recipe("{search: [0, 1]}"),
        tmp_path / "out",
        candidates=3,
        optimizer="random",
        allow_code=True,
        **settings,
        **QUICK,
    )
    assert found.figures == {
        "choices": 0.0,
        "function": float(len(open_tokenizer(SHIPPED.base).encode("And the king"))),
    }
    with pytest.raises(UsageError, match=r"would run the Python file .*own\.py; pass --allow-code"):
        search(recipe("{search: [0, 1]}"), tmp_path / "other", **settings)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_wrong_searches_are_reported(tmp_path: Path, texts: list[Path]) -> None:
    searched = recipe("{search: [0, 1]}")
    shutil.copytree(SHIPPED.base, tmp_path / "lower")
    document = json.loads((SHIPPED.base / "tokenizer.json").read_text())
    (tmp_path / "lower" / "tokenizer.json").write_text(json.dumps({**document, "normalizer": {"type": "Lowercase"}}))
    short, own = tmp_path / "short.txt", tmp_path / "own.py"
    short.write_text("a")
    own.write_text(
        "import numpy\ndef word(*_):\n    return 'nan'\ndef nothing(*_): pass\n"
        "def wrong(model, tokenizer):\n    raise ValueError('too\\nbad')\ndef several(*_): return numpy.ones(3)\n"
    )
    broken = tmp_path / "broken.py"
    broken.write_text("from os import nothing\n")
    for arguments, message in [
        ({"texts": []}, "nothing to measure; expected a text, questions or a function"),
        ({"measure": "kl"}, "compares with a reference; expected one"),
        ({"limits": {"poetry.txt": 1.0}}, "unknown figure 'poetry.txt' to limit; expected one of code.txt, prose.txt"),
        ({"limits": {"choices": 0.5}}, "unknown figure 'choices' to limit"),
        ({"optimizer": "magic"}, "unknown optimizer 'magic'"),
        ({"goal": "pareto", "optimizer": "soup"}, "a Pareto front needs the optimizer"),
        ({"rungs": 0}, "0 rungs and eta 4"),
        ({"candidates": 0}, "candidates is 0; expected at least 1"),
        ({"reference": SHIPPED.base}, "a reference is only compared with if the measure is 'kl'"),
        ({"held_out": texts * 2}, "two texts have the same name"),
        ({"measure": "kl", "reference": tmp_path / "lower"}, "has another tokenizer or vocabulary than the merge"),
        ({"held_out": [short]}, "short.txt: has 1 tokens"),
        (
            {"texts": [], "function": f"{own}:word", "allow_code": True},
            r"candidate 1 \(.*\): the function 'word' returned 'nan'; expected a number",
        ),
        (
            {"texts": [], "function": f"{own}:nothing", "allow_code": True},
            "the function 'nothing' returned None; expected a number",
        ),
        (
            {"texts": [], "function": f"{own}:several", "allow_code": True},
            r"the function 'several' raised TypeError: .* \(.*objectives\.py, line",
        ),
        (
            {"texts": [], "function": f"{own}:wrong", "allow_code": True},
            r"the function 'wrong' raised ValueError: too bad \(.*own\.py, line 6\)",
        ),
        ({"texts": [], "function": f"{broken}:one", "allow_code": True}, r"broken\.py: cannot be run: ImportError"),
    ]:
        with pytest.raises(UsageError, match=message):
            search(searched, tmp_path / "out", restart=True, **{"texts": texts, **QUICK, **arguments})
    with pytest.raises(UsageError, match="<recipe>: the file is empty; expected a recipe"):
        search("\n", tmp_path / "out", texts=texts)
    with pytest.raises(UsageError, match="nothing to search"):
        search(plain(0.5), tmp_path / "out", texts=texts)
    with pytest.raises(UsageError, match=r"with the middle of all ranges: candidate\.yml:2: model .* has no 'weight'"):
        search(recipe("{search: [0, 1]}", "{choose: [linear]}"), tmp_path / "bad", texts=texts, **QUICK)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    with pytest.raises(UsageError, match="not the directory of a search"):
        search(searched.replace(str(SHIPPED.base), "missing"), tmp_path / "taken", texts=texts)  # before models are run


def test_a_journal_of_another_search_or_a_damaged_one_is_refused(tmp_path: Path, texts: list[Path]) -> None:
    settings: dict[str, Any] = {"texts": texts, "candidates": 2, "optimizer": "random", **QUICK}
    search(recipe("{search: [0, 1]}"), tmp_path / "out", **settings)
    with pytest.raises(UsageError, match="journal of a search with other settings or models"):
        search(recipe("{search: [0, 1]}"), tmp_path / "out", seed=5, **settings)
    journal = tmp_path / "out" / "search.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b'{"candidate": []}\n' + lines[2])
    with pytest.raises(FormatError, match="line 2 is damaged; use --restart"):
        search(recipe("{search: [0, 1]}"), tmp_path / "out", **settings)
    assert search(recipe("{search: [0, 1]}"), tmp_path / "out", restart=True, **settings).candidates == 2


def test_a_journal_of_another_precision_of_activations_is_refused(tmp_path: Path, texts: list[Path]) -> None:
    settings: dict[str, Any] = {"texts": texts, "candidates": 2, "optimizer": "random", **QUICK}
    search(recipe("{search: [0, 1]}"), tmp_path / "out", **settings)
    with (
        lbrx.using(activation_bits=8),
        pytest.raises(UsageError, match="journal of a search with other settings or models"),
    ):
        search(recipe("{search: [0, 1]}"), tmp_path / "out", **settings)


def test_a_journal_of_other_questions_or_values_is_refused(tmp_path: Path, texts: list[Path]) -> None:
    row = {"ctx": "And the king said", "endings": ["unto him, Go", "import numpy as"], "label": 0}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    settings: dict[str, Any] = {"choices": tmp_path / "q.jsonl", "candidates": 2, "optimizer": "random", **QUICK}
    search(recipe("{search: [0, 1]}"), tmp_path / "out", **settings)
    (tmp_path / "q.jsonl").write_text(json.dumps(row | {"label": 1}) + "\n")
    with pytest.raises(UsageError, match="journal of a search with other settings or models"):
        search(recipe("{search: [0, 1]}"), tmp_path / "out", **settings)
    settings = {"texts": texts, "candidates": 2, "optimizer": "random", **QUICK}
    search(recipe("{search: [0, 1]}"), tmp_path / "texts", **settings)
    journal = tmp_path / "texts" / "search.jsonl"
    journal.write_text(journal.read_text().replace('"values": [0.5, 0.5]', '"values": [0.5, 0.25]'))
    with pytest.raises(UsageError, match="candidate 1 has other values than the optimizer proposes now"):
        search(recipe("{search: [0, 1]}"), tmp_path / "texts", **settings)


def test_a_changed_model_of_any_choice_is_noticed(tmp_path: Path, texts: list[Path]) -> None:
    for name in ("first", "second", "third"):
        shutil.copytree(SHIPPED.code, tmp_path / name)
    nested = f"{{choose: [{tmp_path / 'third'}, {tmp_path / 'first'}]}}"
    chosen = recipe("{search: [0, 1]}").replace(
        str(SHIPPED.code), f"{{choose: [{tmp_path / 'first'}, {tmp_path / 'second'}, {nested}, {SHIPPED.code}]}}"
    )
    settings: dict[str, Any] = {"texts": texts, "candidates": 2, "optimizer": "random", **QUICK}
    whole = search(chosen, tmp_path / "out", **settings)
    assert search(chosen, tmp_path / "out", **settings).recipe == whole.recipe
    for name in ("first", "second", "third"):
        model = tmp_path / name / "model.safetensors"
        state = model.stat()
        os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        with pytest.raises(UsageError, match="journal of a search with other settings or models"):
            search(chosen, tmp_path / "out", **settings)
        os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert search(chosen, tmp_path / "out", **settings).recipe == whole.recipe


def test_two_searches_do_not_write_one_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "search.jsonl", {"seed": 0})
    half = tmp_path / ".search.png.0123456789abcdef.partial"
    half.touch()
    with pytest.raises(UsageError, match="another search is writing into this directory"):
        Journal(tmp_path / "search.jsonl", {"seed": 0})
    with pytest.raises(UsageError, match="another search is writing into this directory"):
        Journal(tmp_path / "search.jsonl", {"seed": 1}, restart=True)
    first.close()
    assert half.exists()
    Journal(tmp_path / "search.jsonl", {"seed": 0}).close()
    assert not half.exists()  # it was left by a search that was killed
    assert len((tmp_path / "search.jsonl").read_bytes().splitlines()) == 1
    Journal(tmp_path / "search.jsonl", {"seed": 1}, restart=True).close()
    assert b'"seed": 1' in (tmp_path / "search.jsonl").read_bytes()


@pytest.mark.usefixtures("texts")
def test_the_command_writes_recipe_report_and_model(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yml").write_text(recipe("{search: [0, 1]}"))
    arguments = ["search", "recipe.yml", "out", "--text", "prose.txt", "--held-out", "code.txt", "--candidates", 4]
    arguments += ["--optimizer", "random", "--context", 64, "--max-tokens", 128, "--merge", "--json"]
    done = lbrx_command(capsys, *arguments)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["candidates"] == 4
    assert set(found["values"]) == {"prose.weight", "code.weight"}
    assert Path("out/best.yml").read_text() == found["recipe"]
    assert Path("out/search.png").read_bytes().startswith(b"\x89PNG")
    report = Path("out/report.md").read_text()
    assert "## Texts that were not searched on" in report
    assert str(SHIPPED.code) in report
    best, middle, code = (
        found["held_out"][name]["code.txt"] for name in ("best", "middle of the ranges", str(SHIPPED.code))
    )
    relation = "better" if middle > best else "worse"
    assert (
        f"On code.txt, the best candidate is {abs(middle - best):.4f} {relation} than the middle of the ranges"
        in report
    )
    assert f"{best - code:.4f} worse than {SHIPPED.code}." in report
    (merged,) = lbrx.score(Path("out/merged"), Path("code.txt"), context=64, stride=63, max_tokens=8193)
    assert found["held_out"]["best"]["code.txt"] == pytest.approx(merged.loss, rel=1e-4)
    for wrong, message in (("--budget=10", "is not a time"), ("--at-most=prose.txt", "is not a limit")):
        failed = lbrx_command(capsys, *arguments[:-1], wrong)
        assert failed.code == 1
        assert message in failed.err


def test_errors_are_errors_of_lbrx(tmp_path: Path) -> None:
    with pytest.raises(LbrxError, match=r"none\.txt"):
        search(recipe("{search: [0, 1]}"), tmp_path / "out", texts=[tmp_path / "none.txt"])
    with pytest.raises(LbrxError, match=r"none\.txt"):
        search(
            recipe("{search: [0, 1]}"), tmp_path / "out", texts=[SHIPPED.prose_text], held_out=[tmp_path / "none.txt"]
        )
    assert not (tmp_path / "out").exists()


def test_candidates_are_freed_without_a_garbage_collection() -> None:
    candidate = Candidate(plain(0.7), Path(), ModelOpener((Path(),)))
    candidate.run([[1, 2, 3]])
    model = weakref.ref(candidate.model)
    gc.disable()
    try:
        del candidate
        assert model() is None
    finally:
        gc.enable()
