"""How far quantized models are from the original: llama.cpp with an importance matrix, against lbrx with feedback.

Both get the same calibration text: one that the model wrote itself, with that of the package. The files have the same
size. KL divergence and top tokens are measured by llama-perplexity itself, on other texts: prose of the demo, Python's
reference, and, for the model of stories, other stories that it wrote. For that model, lbrx without calibration is shown
as well.

``LBRX_BENCH_MODELS="stories15m"`` and ``LBRX_BENCH_TYPES="q4_k_m"`` limit the run. Figures are stored one by one. With
``LBRX_BENCH_DIR``, texts and predictions of the originals are kept in that folder and used again. llama.cpp's programs
are built the first time; see `benchmarks.llama_tools`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import lbrx
from benchmarks.harness import Figure
from benchmarks.llama_tools import tool
from benchmarks.real_models import real_model
from lbrx.demo.models import demo_models

SUITE = "quality"
# model -> (type of the original, tokens of a chunk, chunks for each text)
MODELS = {"stories15m": ("f32", 256, 24), "smollm2": ("f16", 512, 8), "gemma3": ("f16", 512, 4)}
FOUR_BITS, OTHERS = 1 / (1 - 0.30), 1 / (1 - 0.20)
TYPES = {"q4_k_m": FOUR_BITS, "iq4_xs": FOUR_BITS, "q3_k_m": OTHERS, "iq3_m": OTHERS, "q2_k": OTHERS, "iq2_m": OTHERS}
NEED_IMPORTANCES = ("iq2_m",)
_PROSE_CHARACTERS = 120_000
_STORIES, _FIRST_SEED = 30, 1000


@dataclass(frozen=True)
class Distance:
    """What llama-perplexity reports of a file: mean KL divergence, its error, and the share of equal top tokens."""

    divergence: float
    error: float
    same_top: float


def run() -> Iterator[Figure]:
    types = os.environ.get("LBRX_BENCH_TYPES", "").split() or list(TYPES)
    for name in os.environ.get("LBRX_BENCH_MODELS", "").split() or MODELS:
        kept = os.environ.get("LBRX_BENCH_DIR")
        if kept:
            folder = Path(kept) / name
            folder.mkdir(parents=True, exist_ok=True)
            yield from _of_model(name, types, folder)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                yield from _of_model(name, types, Path(scratch))


def _of_model(name: str, types: list[str], folder: Path) -> Iterator[Figure]:
    base_type, context, chunks = MODELS[name]
    original = folder / "original.gguf"
    if not original.exists():
        lbrx.convert(real_model(name), original, type=base_type)
    texts = {label: folder / f"{label}.txt" for label in _texts(name, original, folder)}
    for path in texts.values():
        predictions = path.with_suffix(".kld")
        if not predictions.exists():
            partial = path.with_suffix(".partial")
            _perplexity("-m", original, "-f", path, "-c", context, "--chunks", chunks, base=partial)
            partial.rename(predictions)
    ours, theirs, plain = (folder / f"{label}.gguf" for label in ("ours", "theirs", "plain"))
    importance = folder / "imatrix.gguf"  # of llama.cpp
    for type_name in types:
        lbrx.quantize(original, ours, to=type_name, calibrate="generated", feedback=True, overwrite=True)
        if not importance.exists():
            text = folder / "ours.generated.txt"
            _run("llama-imatrix", "-m", original, "-f", text, "-c", context, "-o", importance, "--no-ppl")
        _run("llama-quantize", "--imatrix", importance, original, theirs, type_name.upper())
        if abs(ours.stat().st_size - theirs.stat().st_size) > 0.001 * theirs.stat().st_size:
            raise RuntimeError(f"{type_name}: {ours.stat().st_size} bytes against {theirs.stat().st_size}")
        distances = [_distances(path, texts) for path in (ours, theirs)]
        if name == "stories15m" and type_name not in NEED_IMPORTANCES:
            lbrx.quantize(original, plain, to=type_name, overwrite=True)
            distances.append(_distances(plain, texts))
        yield _figure(f"{name} {type_name}", TYPES[type_name], distances, ours.stat().st_size)


def _texts(name: str, original: Path, folder: Path) -> Iterator[str]:
    """Write the texts, and return their names."""
    if name == "stories15m":
        options = {"max_tokens": 240, "temperature": 1.0}
        seeds = range(_FIRST_SEED, _FIRST_SEED + _STORIES)
        stories = [lbrx.generate(original, "Once upon a time", seed=seed, **options) for seed in seeds]
        (folder / "stories.txt").write_text("\n".join(stories), encoding="utf-8")
        yield "stories"
    else:
        reference = "\n".join(topics[topic] for topic in sorted(topics))
        (folder / "reference.txt").write_text(reference[:_PROSE_CHARACTERS], encoding="utf-8")
        yield "reference"
    (folder / "prose.txt").write_text(demo_models().prose_text.read_text(encoding="utf-8"), encoding="utf-8")
    yield "prose"


def _distances(model: Path, texts: Mapping[str, Path]) -> dict[str, Distance]:
    found = {}
    for label, path in texts.items():
        output = _perplexity("-m", model, "--kl-divergence", base=path.with_suffix(".kld"))
        divergence, error = _numbers(output, r"Mean\s+KLD:\s*([-\d.]+)\s*±\s*([\d.]+)")
        (same_top, _) = _numbers(output, r"Same top p:\s*([\d.]+)\s*±\s*([\d.]+)")
        found[label] = Distance(divergence, error, same_top)
    return found


def _figure(name: str, target: float, distances: list[dict[str, Distance]], nbytes: int) -> Figure:
    """``distances`` are those of lbrx with feedback, of llama.cpp, and of lbrx without calibration."""
    ours, theirs = ([each.divergence for each in by_text.values()] for by_text in distances[:2])
    parts = []
    for text, own in distances[0].items():
        others = [by_text[text] for by_text in distances[1:]]
        values = "; ".join(f"{each.divergence:.4f}, {each.same_top:.1f} %" for each in others)
        parts.append(f"{text}: {own.divergence:.4f} ± {own.error:.4f}, {own.same_top:.1f} % against {values}")
    return Figure(SUITE, name, sum(theirs) / sum(ours), target, f"{'. '.join(parts)}. {nbytes / 1e6:.1f} MB")


def _perplexity(*arguments: object, base: Path) -> str:
    return _run("llama-perplexity", *arguments, "--kl-divergence-base", base)


def _run(program: str, *arguments: object) -> str:
    command = [str(tool(program)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def _numbers(output: str, pattern: str) -> tuple[float, ...]:
    found = re.search(pattern, output)
    if found is None:
        raise RuntimeError(f"llama-perplexity printed nothing like {pattern}:\n{output[-2000:]}")
    return tuple(map(float, found.groups()))
