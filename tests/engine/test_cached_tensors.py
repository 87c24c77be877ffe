"""`lbrx.open` with a cache: the same bytes as without, fewer bytes decoded and copied, within the budget."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx import metal
from lbrx.base import system
from lbrx.demo.models import demo_models
from lbrx.devices.metal.context.current import metal_context
from lbrx.memory import Budget, TensorCache
from lbrx.tensors.storage import MmapStorage
from support.devices import computing_on

VALUES = np.random.default_rng(8).standard_normal((64, 256)).astype(np.float32)
DECODED = VALUES.nbytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with lbrx.using(device="cpu"):
        q4 = lbrx.tensor(VALUES).quantize("q4_k")
        q8 = lbrx.tensor(VALUES[::-1].copy()).quantize("q8_0")
        lbrx.save(tmp_path / "model.gguf", {"a": q4, "b": q8, "plain": lbrx.tensor(VALUES, "bf16")})
    return tmp_path / "model.gguf"


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    """Codes, scales and zero points in separate tensors."""
    with lbrx.using(device="cpu"):
        lbrx.save(tmp_path / "model.safetensors", {"a": lbrx.tensor(VALUES).quantize("int4", symmetric=False)})
    return tmp_path / "model.safetensors"


USES: tuple[Callable[[lbrx.Tensor], bytes], ...] = (
    lambda x: (x * 2 + 1).numpy().tobytes(),
    lambda x: x.numpy().tobytes(),
    lambda x: np.float64(float(x.norm())).tobytes(),
    lambda x: x[3:9, ::2].numpy().tobytes(),
    lambda x: x.rows([5, 1]).numpy().tobytes(),
    lambda x: (x @ VALUES[:2].T).numpy().tobytes(),
    lambda x: x.raw().numpy().tobytes(),
    lambda x: x.sum(axis=0).numpy().tobytes(),
)


@pytest.mark.parametrize("limit", [DECODED + 1000, "1MiB", 10])
def test_results_have_the_same_bytes(path: Path, coded: Path, limit: int | str) -> None:
    for file in (path, coded):
        plain = lbrx.open(file)
        expected = [[use(plain[name]) for use in USES] for name in plain]
        with lbrx.open(file, cache=limit) as model:
            for _ in range(3):
                assert [[use(model[name]) for use in USES] for name in model] == expected
            assert model.cache is not None
            assert (model.cache.statistics().hits > 0) == (limit != 10)
            assert [model[name].type_name for name in model] == [plain[name].type_name for name in plain]


def test_the_least_recently_used_is_evicted(path: Path) -> None:
    model = lbrx.open(path, cache=DECODED + 1000)  # room for one tensor
    assert model.cache is not None
    for name, times, kept, evictions in (("a", 1, 0, 0), ("a", 1, 1, 0), ("b", 3, 1, 0), ("b", 1, 1, 1)):
        for _ in range(times):
            float(model[name].sum())
        found = model.cache.statistics()
        assert (found.entries, found.held_bytes, found.evictions) == (kept, kept * DECODED, evictions)
    hits = model.cache.statistics().hits
    float(model["b"].sum())
    assert model.cache.statistics().hits == hits + 1


def test_the_budget_limits_the_cache(path: Path) -> None:
    account = Budget(2 * DECODED - 1)
    model = lbrx.open(path, cache=TensorCache("1GiB", account))
    for _ in range(3):
        for name in model:
            float(model[name].sum())
    assert account.used_bytes == account.peak_bytes == DECODED
    with account.reserve(account.limit_bytes, "other work"):
        assert model.cache is not None
        assert model.cache.statistics().held_bytes == 0
    float(model["a"].sum())
    assert account.used_bytes == DECODED


def test_a_row_does_not_decode_the_tensor(path: Path) -> None:
    model = lbrx.open(path, cache="1MiB")
    for number in range(30):
        model["a"][number].numpy()
    assert model.cache is not None
    assert model.cache.statistics().entries == 0


def test_kept_tensors_are_not_copied_to_the_gpu_again(path: Path) -> None:
    with computing_on("metal"):
        counts = metal.transfers(metal_context())
        copied = {}
        for cache in (None, "1MiB"):
            model = lbrx.open(path, cache=cache)
            for name in (*model, *model):
                float((model[name] * 2).sum())
            counts.reset()
            for name in model:
                float((model[name] * 2).sum())
            copied[cache] = counts.copied_bytes
        assert copied == {None: 2 * DECODED, "1MiB": 0}


def test_a_file_that_cannot_be_mapped_is_read_twice_at_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (lbrx.open(path)["plain"] * 3).numpy().tobytes()
    monkeypatch.setattr(system, "map_readonly", lambda *_: None)
    read: list[int] = []
    pread = system.pread_into
    monkeypatch.setattr(system, "pread_into", lambda *args: (read.append(args[1].size), pread(*args)))
    model = lbrx.open(path, cache="1MiB")
    for _ in range(5):
        assert (model["plain"] * 3).numpy().tobytes() == expected
    assert sum(read) == 2 * VALUES.size * 2


def test_models_share_a_cache_that_closing_one_does_not_clear(path: Path) -> None:
    cache = TensorCache("1MiB", Budget("1MiB"))
    with lbrx.open(path, cache=cache) as model:
        for _ in range(2):
            float(model["a"].sum())
    other = lbrx.open(path, cache=cache)
    assert cache.statistics().entries == 1
    misses = cache.statistics().misses
    float(other["a"].sum())
    assert cache.statistics().misses == misses
    with lbrx.open(path, cache="1MiB") as own:
        for _ in range(2):
            float(own["a"].sum())
    assert own.cache is not None
    assert own.cache.statistics().held_bytes == 0


def test_many_threads_share_a_small_cache(path: Path) -> None:
    plain = lbrx.open(path)
    expected = {name: (plain[name] * 2).numpy().tobytes() for name in plain}
    model = lbrx.open(path, cache=DECODED + 1000)

    def use(number: int) -> bool:
        name = "ab"[number % 7 > 2]
        return (model[name] * 2).numpy().tobytes() == expected[name]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(use, range(60)))


def test_another_process_gets_the_file_without_the_cache(path: Path) -> None:
    model = lbrx.open(path, cache="1MiB")
    copied = pickle.loads(pickle.dumps(model["a"]))
    assert type(copied.storage) is MmapStorage
    assert np.array_equal(copied.numpy(), model["a"].numpy())


def test_remote_files_are_kept_in_memory() -> None:
    fsspec = pytest.importorskip("fsspec")
    data = Path(demo_models().base) / "model.safetensors"
    fsspec.filesystem("memory").pipe_file("/cached/model.safetensors", data.read_bytes())
    model, plain = lbrx.open("memory://cached/model.safetensors", cache="64MiB"), lbrx.open(data)
    name = next(iter(model))
    for _ in range(3):
        assert (model[name] * 2).numpy().tobytes() == (plain[name] * 2).numpy().tobytes()
    assert model.cache is not None
    assert model.cache.statistics().held_bytes == plain[name].nbytes
