"""Searches: better recipes than a grid with as many candidates, a known optimum, and candidates per minute.

SmolLM2-135M-Instruct is a GGUF file inside a package of the registry. Two copies with noise stand for fine-tunes.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import lbrx
from benchmarks.commands import run_command
from benchmarks.decoding import downloaded
from benchmarks.harness import Figure
from lbrx.demo.models import demo_models
from lbrx.jobs.search.held_out import losses_of_candidate
from lbrx.jobs.search.settings import Measurer, SearchSettings

SEEDS = (0, 1, 2)
CANDIDATES = 25
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)
SPLIT = 9000  # characters of each text that are searched on
SPEED_CANDIDATES = 48
MOST_ANONYMOUS_BYTES = 1 << 30
RANGE = "{search: [0, 1]}"


def run() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        yield from _against_a_grid(Path(name))
        yield from _known_optimum(Path(name))
        yield from _speed(Path(name))


def _recipe(base: object, first: object, second: object, weights: tuple[object, object]) -> str:
    return (
        f"merge_method: task_arithmetic\nbase_model: {base}\nmodels:\n"
        f"  - {{model: {first}, parameters: {{weight: {weights[0]}}}}}\n"
        f"  - {{model: {second}, parameters: {{weight: {weights[1]}}}}}\ndtype: bfloat16\n"
    )


def _demo_recipe(*weights: object) -> str:
    shipped = demo_models()
    return _recipe(shipped.base, shipped.prose, shipped.code, (weights[0], weights[1]))


def _against_a_grid(folder: Path) -> Iterator[Figure]:
    """The best of 25 recipes set by hand, and searches with 25 candidates, on text that was not searched on."""
    shipped = demo_models()
    texts = {"prose.txt": shipped.prose_text, "code.txt": shipped.code_text}
    contents = {name: path.read_text(encoding="utf-8") for name, path in texts.items()}
    held_out = [(name, content[SPLIT:]) for name, content in contents.items()]
    for name, content in contents.items():
        (folder / name).write_text(content[:SPLIT], encoding="utf-8")
    searched = tuple((name, content[:SPLIT]) for name, content in contents.items())
    recipe = _demo_recipe(RANGE, RANGE)
    measurer = Measurer(SearchSettings(recipe=recipe, source="recipe", directory=Path(), texts=searched))
    hand_set = {
        weights: _mean(measurer.figures(_demo_recipe(*weights))) for weights in itertools.product(GRID, repeat=2)
    }
    best = min(hand_set, key=lambda weights: hand_set[weights])
    by_hand = _mean(losses_of_candidate(measurer, _demo_recipe(*best), held_out))
    for seed in SEEDS:
        out = folder / f"grid-{seed}"
        files = [folder / name for name in texts]
        found = lbrx.search(recipe, out, texts=files, candidates=CANDIDATES, seed=seed)
        loss = _mean(losses_of_candidate(measurer, found.recipe, held_out))
        detail = f"loss {loss:.4f} against {by_hand:.4f} on other text, {CANDIDATES} candidates each"
        yield Figure("search", f"best of a grid / search, seed {seed}", by_hand / loss, 1, detail)


def _known_optimum(folder: Path) -> Iterator[Figure]:
    """A reference that is the merge with weights 0.37 and 0.63."""
    lbrx.merge(_demo_recipe(0.37, 0.63), folder / "known")
    texts = [folder / "prose.txt", folder / "code.txt"]
    recipe, close = _demo_recipe(RANGE, RANGE), folder / "known"
    found = lbrx.search(recipe, folder / "optimum", texts=texts, measure="kl", reference=close, candidates=60)
    error = max(abs(value - known) for value, known in zip(found.values.values(), (0.37, 0.63), strict=True))
    values = ", ".join(f"{value:.3f}" for value in found.values.values())
    yield Figure("search", "0.02 / error of a known optimum", 0.02 / max(error, 1e-5), 1, f"found {values}")


def _speed(folder: Path) -> Iterator[Figure]:
    base = folder / "base"
    lbrx.convert(downloaded(folder), base, type="bf16")
    for name, seed in (("first", 1), ("second", 2)):
        _perturbed(base, folder / name, seed)
    (folder / "recipe.yml").write_text(_recipe("base", "first", "second", (RANGE, RANGE)))
    command = [
        *(sys.executable, "-m", "lbrx", "search", "recipe.yml", "found", "--text", "prose.txt"),
        *("--candidates", str(SPEED_CANDIDATES), "--max-tokens", "2048"),
    ]
    elapsed, anonymous = run_command(command, folder, folder / "found")
    journal = (folder / "found" / "search.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    rate = len({json.loads(line)["candidate"] for line in journal}) / elapsed * 60
    detail = f"{rate:.0f} a minute with 2,048 tokens, start and report included"
    yield Figure("search", "SmolLM2-135M: candidates per minute / 60", rate / 60, 1, detail)
    yield Figure(
        "search", "1 GiB / memory", MOST_ANONYMOUS_BYTES / anonymous, 1, f"{anonymous / 1e6:.0f} MB of anonymous memory"
    )


def _perturbed(base: Path, out: Path, seed: int) -> None:
    """A copy of a model with noise of 15 % of the mean magnitude of each matrix."""
    weights = lbrx.open(base)
    tensors = {
        name: (weight + lbrx.normal(weight.shape, seed, name) * (0.15 * float(abs(weight).mean()))).to("bf16")
        if weight.ndim == 2
        else weight
        for name, weight in ((name, weights[name]) for name in weights)
    }
    out.mkdir()
    lbrx.save(out / "model.safetensors", tensors, {"format": "pt"})
    for file in base.iterdir():
        if file.suffix in (".json", ".jinja") and not (out / file.name).exists():
            (out / file.name).write_bytes(file.read_bytes())


def _mean(figures: Mapping[str, float]) -> float:
    return math.fsum(figures.values()) / len(figures)
