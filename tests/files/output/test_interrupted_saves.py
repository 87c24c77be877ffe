"""A save that is killed, or that fails, leaves what stood at the target whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lbrx

SAVE_SLOWLY = """
import sys, time
import lbrx
def pause(progress):
    print(progress.tensor, flush=True)
    time.sleep(0.05)
noise = {f"t{n}": lbrx.normal((256, 1024), n) for n in range(200)}
lbrx.save(sys.argv[1], noise, progress=pause)
"""


@pytest.mark.parametrize("finished_tensors", [1, 3, 9])
def test_kill_9_in_the_middle_of_a_save_leaves_the_old_target(tmp_path: Path, finished_tensors: int) -> None:
    target = tmp_path / "model.safetensors"
    lbrx.save(target, {"old": lbrx.tensor(np.arange(10, dtype=np.float32))})
    before = target.read_bytes()
    process = subprocess.Popen([sys.executable, "-c", SAVE_SLOWLY, str(target)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(finished_tensors):
        assert process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert target.read_bytes() == before


def test_a_full_disk_leaves_the_old_target_and_no_partial_file(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
import lbrx
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    lbrx.save(sys.argv[1], {"w": lbrx.normal((1024, 1024), 1)})
except lbrx.FileError as error:
    print("refused:", error)
"""
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"what stood there")
    done = subprocess.run([sys.executable, "-c", script, str(target)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused:")
    assert str(tmp_path) in done.stdout
    assert target.read_bytes() == b"what stood there"
    assert os.listdir(tmp_path) == [target.name]


def test_an_error_while_computing_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "in.safetensors"
    lbrx.save(source, {"w": lbrx.normal((1 << 20,), 1)})
    w = lbrx.open(source)["w"]
    shape = w.shape
    assert shape == (1 << 20,)
    with source.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(lbrx.TruncatedError, match=r"in\.safetensors: the file had \d+ bytes when it was opened"):
        lbrx.save(tmp_path / "out.safetensors", {"w": w * 2})
    assert os.listdir(tmp_path) == ["in.safetensors"]


def test_a_file_can_be_saved_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    values = np.arange(1 << 16, dtype=np.float32)
    lbrx.save(path, {"w": lbrx.tensor(values)})
    w = lbrx.open(path)["w"]
    lbrx.save(path, {"w": w + 1, "same": w})
    again = lbrx.open(path)
    assert np.array_equal(again["w"].numpy(), values + 1)
    assert np.array_equal(again["same"].numpy(), values)
    assert float(w.sum()) == float(values.astype(np.float64).sum())


def test_a_shard_directory_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "model"
    script = SAVE_SLOWLY.replace("progress=pause", "progress=pause, max_shard_bytes='8MB'")
    process = subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert not target.exists()
    process.kill()
    process.wait()
    time.sleep(0.01)
    assert not target.exists()
