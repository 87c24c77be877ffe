"""One process that merges many times: ``python -m soak.long_lived INPUTS FOLDER MERGES`` prints what it holds as JSON.

Memory, descriptors, threads and mappings are sampled after each merge. Their growth is the median of the last tenth
less the median of the tenth that follows the warm-up.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import psutil

import lbrx
from soak.checks import content

WARM_UP = 0.2  # of the merges
MOST_GROWTH = {"resident KiB": 8 << 10, "descriptors": 0, "threads": 0, "mappings": 8}
_RECIPES = ("ties.yml", "dare_ties.yml", "breadcrumbs.yml", "task_arithmetic.yml")
Samples = Mapping[str, Sequence[int]]


def sample() -> dict[str, int]:
    """What this process holds."""
    process = psutil.Process()
    maps = Path("/proc/self/maps")
    return {
        "resident KiB": process.memory_info().rss >> 10,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "mappings": maps.read_text().count("\n") if maps.exists() else 0,
    }


def growth(samples: Samples) -> dict[str, int]:
    """How much each number grew after the warm-up.

    >>> growth({"threads": [1, 2, 2, 2, 2, 2, 2, 3, 3, 3]})
    {'threads': 1}
    """
    grown = {}
    for name, values in samples.items():
        warm = values[int(len(values) * WARM_UP) :]
        tenth = max(len(warm) // 10, 1)
        grown[name] = int(median(warm[-tenth:]) - median(warm[:tenth]))
    return grown


def too_much(grown: Mapping[str, int]) -> dict[str, int]:
    """What grew more than it may."""
    return {name: more for name, more in grown.items() if more > MOST_GROWTH[name]}


def merge_many(inputs: Path, folder: Path, merges: int) -> tuple[Samples, int]:
    """Merge so many times in turns of the recipes, each followed by a quantization: samples, and wrong results."""
    os.chdir(inputs)
    samples: dict[str, list[int]] = {name: [] for name in MOST_GROWTH}
    expected: dict[str, object] = {}
    wrong = 0
    for number in range(merges):
        recipe = _RECIPES[number % len(_RECIPES)]
        out = folder / "out"
        lbrx.merge(Path(recipe), out, overwrite=True, sync=False)
        lbrx.quantize(out, folder / "out.gguf", "q4_k_m", overwrite=True, sync=False)
        now = content(folder)
        wrong += now != expected.setdefault(recipe, now)
        gc.collect()
        for name, value in sample().items():
            samples[name].append(value)
    return samples, wrong


if __name__ == "__main__":
    taken, wrong_results = merge_many(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"growth": growth(taken), "wrong": wrong_results, "last": sample()}))
