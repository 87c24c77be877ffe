"""Merges under duress: killed at any moment, with little memory, of models that do not fit into it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.files.formats.header import TensorSpec
from lbrx.files.formats.safetensors import lay_out
from lbrx.files.output import file_writer
from lbrx.jobs.merge.merge import merge
from support.tiny import LINEAR, directory_bytes, random_tensors, write_model

KILLS = 20
TIES = """
merge_method: ties
base_model: base
models:
  - {model: a, parameters: {weight: 0.5, density: 0.5}}
  - {model: b, parameters: {weight: 0.5, density: 0.3}}
"""


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# After a number of tensors the process kills itself, at whatever its threads are doing a moment later.
KILLED_MERGE = """
import os, signal, sys, threading, time
from lbrx.files.output import file_writer
from lbrx.jobs.merge.merge import merge

recipe, out, tensors, delay_seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
file_writer.LEAST_FILE_BYTES, file_writer.LEAST_PIECE_BYTES = 0, 1 << 16

def kill():
    time.sleep(delay_seconds)
    os.kill(os.getpid(), signal.SIGKILL)

def progress(state):
    if state.done_tensors == tensors:
        threading.Thread(target=kill, daemon=True).start()

merge(recipe, out, max_shard_bytes="8MB", sync=sys.argv[5] == "to disk", progress=progress)
"""


@pytest.mark.slow
@pytest.mark.parametrize("to_disk", [False, True], ids=["through the file cache", "past it"])
def test_kill_at_twenty_random_moments_and_resume(folder: Path, monkeypatch: pytest.MonkeyPatch, to_disk: bool) -> None:
    monkeypatch.setattr(file_writer, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(file_writer, "LEAST_PIECE_BYTES", 1 << 16)
    shapes: dict[str, tuple[int, ...]] = {f"model.layers.{layer}.w": (128, 1024) for layer in range(40)}
    shapes |= {f"model.layers.{layer}.norm": (64,) for layer in range(40)}
    for number, name in enumerate(("a", "b", "base")):
        write_model(folder / name, random_tensors(shapes, number), None)
    (folder / "recipe.yml").write_text(TIES)
    merge("recipe.yml", "undisturbed", max_shard_bytes="8MB")
    expected = directory_bytes(folder / "undisturbed")
    moments = random.Random(20)
    resumed = []
    for number in range(KILLS):
        out = folder / f"out{number}"
        tensors, delay_seconds = moments.randint(1, 70), moments.uniform(0, 0.004)
        killed = run_python(
            KILLED_MERGE, "recipe.yml", out, tensors, delay_seconds, "to disk" if to_disk else "to the cache"
        )
        assert killed.returncode == -9, killed.stderr
        assert not out.exists()
        result = merge("recipe.yml", out, max_shard_bytes="8MB", sync=to_disk)
        assert result.resumed_tensors >= tensors
        assert directory_bytes(out) == expected
        resumed.append(result.resumed_tensors)
    assert len(set(resumed)) > KILLS // 2  # the moments were different ones
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def make_sparse_model(path: Path, tensors: int, elements: int, value: float) -> None:
    """A model of zeros that takes no room on the disk; the last element of every tensor is ``value``."""
    path.mkdir()
    specs = [TensorSpec(f"model.layers.{number}.w", "f32", (elements // 1024, 1024)) for number in range(tensors)]
    layout = lay_out("model.safetensors", specs, {"format": "pt"})
    with (path / layout.name).open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.file_bytes)
        for slot in layout.slots:
            file.seek(slot.offset + slot.nbytes - 4)
            file.write(np.float32(value).tobytes())


LIMITED_MERGE = """
import json, resource, sys, threading
from lbrx.base import system
from lbrx.jobs.merge.merge import merge

recipe, out, limit_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
if limit_bytes:
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
peak_bytes = 0
over = threading.Event()

def watch():
    global peak_bytes
    while not over.wait(0.005):
        peak_bytes = max(peak_bytes, system.anonymous_bytes())

threading.Thread(target=watch, daemon=True).start()
result = merge(recipe, out)
over.set()
print(json.dumps({"peak_bytes": peak_bytes, "tensors": result.tensors}))
"""

FOUR_MODELS = """
merge_method: linear
dtype: float8_e5m2
models:
"""


def limited_merge(folder: Path, name: str, tensors: int, elements: int, limit_bytes: int) -> dict[str, int]:
    """Merge four models of f32, in another process, into a quarter of the bytes; what it measured."""
    lines = []
    for number in range(4):
        make_sparse_model(folder / f"{name}{number}", tensors, elements, 1.0 + number)
        lines.append(f"  - {{model: {name}{number}, parameters: {{weight: 1}}}}\n")
    (folder / f"{name}.yml").write_text(FOUR_MODELS + "".join(lines))
    done = run_python(LIMITED_MERGE, f"{name}.yml", f"{name}-out", limit_bytes)
    assert done.returncode == 0, done.stderr
    measured: dict[str, int] = json.loads(done.stdout)
    assert measured["tensors"] == tensors
    for tensor in lbrx.open(folder / f"{name}-out").values():
        values = tensor.numpy()
        assert float(values[-1, -1]) == 2.5
        assert not values.view(np.uint8)[:-1].any()
    return measured


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_DATA")
def test_models_of_ten_times_the_data_limit(folder: Path) -> None:
    limit_bytes = 512 << 20
    measured = limited_merge(folder, "m", tensors=40, elements=8 << 20, limit_bytes=limit_bytes)
    model_bytes = sum((folder / f"m{number}/model.safetensors").stat().st_size for number in range(4))
    assert model_bytes >= 10 * limit_bytes
    assert measured["peak_bytes"] < 400 << 20


@pytest.mark.slow
def test_peak_memory_is_the_same_at_four_times_the_size(folder: Path) -> None:
    tensors = 2 * file_writer.LEAST_FILE_BYTES // (8 << 20)  # of a byte for each element: both are written alike
    small = limited_merge(folder, "s", tensors=tensors, elements=8 << 20, limit_bytes=0)["peak_bytes"]
    large = limited_merge(folder, "l", tensors=4 * tensors, elements=8 << 20, limit_bytes=0)["peak_bytes"]
    assert large < 400 << 20
    assert abs(large - small) < 32 << 20


MERGE_WITH_FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
from lbrx.jobs.merge.merge import merge

merge(sys.argv[1], sys.argv[2], max_shard_bytes="4KB", threads=2)
"""


def test_more_shards_than_open_files(folder: Path) -> None:
    """Two models of 300 shards are merged into 300 shards by a process that may open 256 files, or 64."""
    for number, model in enumerate("ab"):
        (folder / model).mkdir()
        names = {f"t{shard}": f"model-{shard + 1:05}-of-00300.safetensors" for shard in range(300)}
        for name, file in names.items():
            save_file(random_tensors({name: (32, 32)}, number), folder / model / file, {"format": "pt"})
        (folder / model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "recipe.yml").write_text(LINEAR)
    merge(LINEAR, "expected", max_shard_bytes="4KB")
    for limit in (256, 64):
        result = run_python(MERGE_WITH_FEW_FILES, "recipe.yml", f"out{limit}", limit)
        assert result.returncode == 0, result.stderr
        assert directory_bytes(folder / f"out{limit}") == directory_bytes(folder / "expected")
    assert len(list((folder / "out64").glob("*.safetensors"))) == 300


def test_a_small_memory_budget_is_enough(folder: Path) -> None:
    for number, name in enumerate("ab"):
        write_model(folder / name, random_tensors({"w": (1024, 1024)}, number), None)
    merge(LINEAR, "plenty")
    merge(LINEAR, "little", memory="2MB")
    assert directory_bytes(folder / "plenty") == directory_bytes(folder / "little")
