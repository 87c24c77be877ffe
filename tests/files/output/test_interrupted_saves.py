"""A save that is killed, or that fails, leaves what stood at the target whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.files.output.save import _origin
from lbrx.tensors.expr import Expr

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


COPY_SLOWLY = """
import sys, time
import lbrx
def pause(progress):
    print(progress.tensor, flush=True)
    time.sleep(float(sys.argv[3]))
model = lbrx.open(sys.argv[1])
lbrx.save(sys.argv[2], {name: tensor * 2 + 1 for name, tensor in model.items()}, progress=pause)
"""


def killed(script: str, *arguments: object, finished_tensors: int = 5) -> None:
    """Kill a process when it has reported so many tensors."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(finished_tensors):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)


def doubled(model: lbrx.Checkpoint) -> dict[str, lbrx.Tensor]:
    return {name: tensor * 2 + 1 for name, tensor in model.items()}


def test_tensors_that_are_computed_from_files_are_resumed_after_kill_9(tmp_path: Path) -> None:
    source, target, whole = (tmp_path / f"{name}.safetensors" for name in ("source", "target", "whole"))
    lbrx.save(source, {f"t{n}": lbrx.normal((256, 1024), n) for n in range(20)})
    target.write_bytes(b"what stood there")
    killed(COPY_SLOWLY, source, target, 0.05)
    assert target.read_bytes() == b"what stood there"
    seen: list[lbrx.Progress] = []
    lbrx.save(target, doubled(lbrx.open(source)), progress=seen.append)
    assert 4 << 20 <= seen[0].resumed_bytes < seen[0].total_bytes
    lbrx.save(whole, doubled(lbrx.open(source)))
    assert target.read_bytes() == whole.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["source.safetensors", "target.safetensors", "whole.safetensors"]


def test_a_save_starts_anew_if_a_source_or_an_expression_is_another(tmp_path: Path) -> None:
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    seen: list[lbrx.Progress] = []
    for change in ("source", "expression"):
        lbrx.save(source, {f"t{n}": lbrx.normal((256, 1024), n) for n in range(20)})
        killed(COPY_SLOWLY, source, target, 0.05)
        if change == "source":
            lbrx.save(source, {f"t{n}": lbrx.normal((256, 1024), n + 1) for n in range(20)})
        factor = 2 if change == "source" else 3
        lbrx.save(target, {name: w * factor + 1 for name, w in lbrx.open(source).items()}, progress=seen.append)
        assert seen[-1].resumed_bytes == 0
        for name, w in lbrx.open(source).items():
            assert np.array_equal(lbrx.open(target)[name].numpy(), w.numpy() * np.float32(factor) + np.float32(1))


def test_all_that_a_node_depends_on_is_in_its_public_slots() -> None:
    """The origin of a tensor is read from them; ``_values`` is a cache."""
    nodes = [Expr]
    for node in nodes:
        nodes += node.__subclasses__()
        assert {slot for slot in node.__slots__ if slot[0] == "_"} <= {"_values", "__weakref__"}
        assert "__dict__" not in dir(node)


def test_values_in_memory_are_written_anew_after_kill_9(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    script = SAVE_SLOWLY.replace("lbrx.normal((256, 1024), n)", "lbrx.tensor([float(n)] * 100_000)")
    killed(script, target)
    assert len(os.listdir(tmp_path)) == 2  # the partial files and their journal
    seen: list[lbrx.Progress] = []
    lbrx.save(target, {f"t{n}": lbrx.tensor([n + 0.5] * 100_000) for n in range(200)}, progress=seen.append)
    assert seen[-1].resumed_bytes == 0
    assert [float(lbrx.open(target)[f"t{n}"].mean()) for n in range(200)] == [n + 0.5 for n in range(200)]
    assert os.listdir(tmp_path) == [target.name]


def test_two_saves_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    is_writing = threading.Event()

    def pause(_progress: lbrx.Progress) -> None:
        is_writing.set()
        time.sleep(0.02)

    def save(value: float) -> None:
        lbrx.save(target, {f"t{n}": lbrx.full((1000,), value, "f32") for n in range(20)}, progress=pause)

    first = threading.Thread(target=save, args=(1.0,))
    first.start()
    is_writing.wait()
    save(2.0)
    first.join()
    assert {float(tensor.mean()) for tensor in lbrx.open(target).values()} == {2.0}
    assert os.listdir(tmp_path) == [target.name]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a directory into which not even root may write")
def test_a_directory_that_is_read_only_is_an_error() -> None:
    with pytest.raises(lbrx.FileError, match=r"/sys/.*model\.safetensors.*: cannot be opened: "):
        lbrx.save("/sys/kernel/model.safetensors", {"w": lbrx.tensor([1.0])})


def test_a_name_can_be_as_long_as_the_file_system_lets_it(tmp_path: Path) -> None:
    target = tmp_path / ("m" * 243 + ".safetensors")
    lbrx.save(target, {"w": lbrx.tensor([1.0])})
    assert os.listdir(tmp_path) == [target.name]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(_progress: lbrx.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lbrx.save(tmp_path / "model.gguf", {"w": lbrx.tensor([1.0])}, progress=interrupt)
    assert os.listdir(tmp_path) == []


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


def test_rows_of_a_file_are_told_from_other_rows(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.safetensors", {"t": lbrx.normal((8, 64), 1)})

    def origin(*rows: int) -> str:
        return _origin([lbrx.open(tmp_path / "a.safetensors")["t"].rows(rows).expr])

    assert origin(3, 1, 2) == origin(3, 1, 2)  # so that a save of them resumes
    assert origin(3, 1, 2) != origin(3, 2, 1)
