"""Copies and pickles of tensors: files are reopened by path, never shared by the number of a descriptor."""

import copy
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import FileError, UsageError
from lbrx.tensors.storage import MmapStorage

VALUES = np.arange(1 << 18, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    lbrx.save(path, {"small": lbrx.tensor(VALUES[:128]), "large": lbrx.tensor(VALUES)})
    return path


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/dev/fd"))


def test_a_deep_copy_shares_the_open_file(path: Path) -> None:
    tensor = lbrx.open(path)["small"]
    before = open_descriptors()
    copied = copy.deepcopy(tensor)
    assert isinstance(tensor.storage, MmapStorage)
    assert isinstance(copied.storage, MmapStorage)
    assert copied.storage.file is tensor.storage.file
    del copied
    gc.collect()
    assert open_descriptors() == before


def test_dropping_a_deep_copy_leaves_the_original_usable(path: Path, tmp_path: Path) -> None:
    model = lbrx.open(path)
    tensor = model["small"]
    copied = copy.deepcopy({"model": model, "tensor": tensor})
    del copied
    gc.collect()
    with (tmp_path / "victim.txt").open("w") as victim:
        assert np.array_equal((tensor + 1).numpy(), VALUES[:128] + 1)
        del tensor, model
        gc.collect()
        victim.write("still open")
    assert (tmp_path / "victim.txt").read_text() == "still open"


def test_a_pickle_names_the_file_and_holds_no_data(path: Path) -> None:
    tensor = lbrx.open(path)["small"]
    data = pickle.dumps(tensor)
    assert len(data) < 2048
    assert np.array_equal(pickle.loads(data).numpy(), VALUES[:128])


def test_another_process_reads_a_pickled_tensor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    data = pickle.dumps(lbrx.open(path.name)["large"] * 2)
    code = "import pickle, sys; print(float(pickle.load(sys.stdin.buffer)[-1]))"
    run = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, cwd="/", check=True)
    assert float(run.stdout) == 2 * VALUES[-1]


def test_a_file_that_was_replaced_is_not_read(path: Path) -> None:
    data = pickle.dumps(lbrx.open(path)["small"])
    content = path.read_bytes()
    path.unlink()
    (path.parent / "other").write_bytes(content)
    path.write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(FileError, match=r"model\.safetensors: this is not the file that was pickled"):
        pickle.loads(data)


def test_a_file_without_a_path_cannot_be_pickled(path: Path) -> None:
    with path.open("rb") as file:
        storage = MmapStorage.from_file(file.fileno())
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(storage)
    assert copy.deepcopy(storage).read_at(0, 4).tolist() == list(path.read_bytes()[:4])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda tensor: pickle.loads(pickle.dumps(tensor))])
def test_a_copy_of_a_tensor_in_memory_has_its_own_address(duplicate: object) -> None:
    tensor = lbrx.tensor(np.arange(1024, dtype=np.float32))
    copied = duplicate(tensor)  # type: ignore[operator]
    storage = copied.storage
    assert storage.address == storage.read_at(0, 1).ctypes.data
    assert float(copied.sum()) == float(tensor.sum())


def test_a_remote_tensor_is_pickled_by_its_path() -> None:
    fsspec = pytest.importorskip("fsspec")
    from lbrx.files.remote.paths import RemotePath
    from lbrx.files.remote.reading import RemoteFile

    fsspec.filesystem("memory").pipe_file("/copies/a", b"0123456789")
    file = RemoteFile(RemotePath("memory://copies/a"))
    assert pickle.loads(pickle.dumps(file)).fetch(2, 3) == b"234"
    assert copy.deepcopy(file) is file
