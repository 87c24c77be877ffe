"""Memory of workers: how much they take, and what happens when there is none left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import psutil
import pytest
from test_cluster_merge import CUSTOM_RECIPE, METHODS, local, on_cluster, weights

import lbrx
from lbrx.cluster import ClusterError, ClusterOptions
from lbrx.cluster.options import ClusterProgress, WorkerMemoryError
from lbrx.cluster.worker_memory import PeakMemory, explaining_memory_errors
from lbrx.errors import MemoryBudgetError
from support.tiny import CONFIG, HIDDEN, llama_shapes, make_llama, random_tensors, write_model

MEMORY_LIMIT_BYTES = 400_000_000
limits_hold = pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not hold processes to a limit of memory")

# A method that does something to its worker before it gives the sum of the models. The limit is on what a worker may
# take beyond what it has: a small part of what the machine has, so that only this worker runs out.
METHOD = """
import resource
from pathlib import Path
from lbrx.memory.scratch import scratch_arena

def limit(more_bytes):
    scratch_arena().trim()
    lines = Path('/proc/self/status').read_text().splitlines()
    data_bytes = next(1024 * int(line.split()[1]) for line in lines if line.startswith('VmData'))
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + more_bytes, resource.RLIM_INFINITY))

held = []

def fill():  # what the heap has kept of earlier tasks would be room for buffers
    limit(0)
    try:
        while True:
            held.append(b'x' * (1 << 20))
    except MemoryError:
        del held[-2:]  # for Python and Ray; too little for a merge

def lift():
    held.clear()
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def take_all():
    limit(200 << 20)
    held = []
    try:
        while True:
            held.append(b'x' * (8 << 20))
    finally:
        lift()

def merged(models, base=None):
    name = models[0].name
    {action}
    return models[0] + models[1]
"""


@pytest.fixture
def fresh_workers(ray_cluster: Any) -> Iterator[None]:
    """Workers whose heap no earlier test has used. They end with the test, and their limits with them."""
    assert ray_cluster
    end_workers()
    yield
    end_workers()


def end_workers() -> None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            title = (process.cmdline() or [""])[0]
            if title.startswith("ray::") and not title.endswith("Agent"):
                process.kill()
                process.wait(30)
    time.sleep(1)  # until the nodes know


def prepare_limited(folder: Path, action: str, vocabulary: int = 16) -> None:
    """Models, what a local merge makes of them, and then a method that does something to its worker.

    A merge on the cluster comes first: Ray ends a worker that is refused memory in its first task.
    """
    for seed, name in enumerate(("a", "b")):
        make_llama(folder / name, seed, vocabulary=vocabulary)
    (folder / "recipe.yml").write_text(CUSTOM_RECIPE)
    (folder / "custom.py").write_text(METHOD.format(action="pass"))
    local("local")
    on_cluster("warm")
    (folder / "custom.py").write_text(METHOD.format(action=action))


@limits_hold
@pytest.mark.usefixtures("fresh_workers")
def test_a_worker_that_runs_out_of_memory_does_not_end_the_run(folder: Path) -> None:
    """The worker takes memory until the system refuses more."""
    prepare_limited(folder, "if not Path('full').exists(): Path('full').touch(); take_all()")
    states: list[ClusterProgress] = []
    on_cluster("clustered", progress=states.append)
    assert (folder / "full").exists()
    assert states[-1].failures == 1
    assert weights(folder / "clustered") == weights(folder / "local")


@limits_hold
@pytest.mark.usefixtures("fresh_workers")
def test_a_merge_without_room_for_its_buffers_is_done_again(folder: Path) -> None:
    """The merge itself is refused what it needs: the limit holds for one tensor, and is lifted afterwards."""
    large = "name in ('model.embed_tokens.weight', 'lm_head.weight')"
    action = f"lift()\n    if {large} and not Path('full').exists(): Path('full').touch(); fill()"
    prepare_limited(folder, action, vocabulary=1 << 19)
    states: list[ClusterProgress] = []
    on_cluster("clustered", progress=states.append)
    assert (folder / "full").exists()
    assert states[-1].failures == 1
    assert "ran out of memory; expected room for its buffers" in str(states[-1].last_failure)
    assert weights(folder / "clustered") == weights(folder / "local")


@limits_hold
@pytest.mark.usefixtures("fresh_workers")
def test_running_out_of_memory_three_times_stops_the_run_and_keeps_what_is_done(folder: Path) -> None:
    action = (
        "if name == 'model.norm.weight' and not Path('fixed').exists():\n"
        "        Path('calls').open('a').write('x'); take_all()"
    )
    prepare_limited(folder, action)
    failure = r"custom\.py:\d+: merged\(\) fails for tensor 'model\.norm\.weight': MemoryError"
    expected = rf"'model\.norm\.weight'.*: failed 3 times on the cluster, at last: {failure}"
    with pytest.raises(ClusterError, match=expected):
        on_cluster("clustered")
    assert (folder / "calls").read_text() == "xxx"
    assert not (folder / "clustered").exists()
    (folder / "fixed").touch()
    assert on_cluster("clustered").resumed_tensors > 5
    assert weights(folder / "clustered") == weights(folder / "local")


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("method", ["linear", "ties"])
def test_workers_take_less_than_400_mb(method: str, folder: Path) -> None:
    """Of models larger than that: the figure is the most that a worker had while it worked."""
    vocabulary = 6 << 20
    config = CONFIG | {"num_hidden_layers": 2, "vocab_size": vocabulary}
    for seed, name in enumerate(("base", "a", "b")):
        tensors = random_tensors(llama_shapes(2, 16), seed, ml_dtypes.bfloat16)
        for number, large in enumerate(("model.embed_tokens.weight", "lm_head.weight")):
            tensors[large] = _bf16(vocabulary, HIDDEN, seed + 3 * number)
        write_model(folder / name, tensors, config)
    assert sum((folder / name / "model.safetensors").stat().st_size for name in ("base", "a", "b")) > 600_000_000
    (folder / "recipe.yml").write_text(METHODS[method])
    states: list[ClusterProgress] = []
    lbrx.merge("recipe.yml", "clustered", cluster=ClusterOptions("auto", progress=states.append), sync=False)
    most_bytes = max(node.memory_bytes for node in states[-1].nodes)
    assert 20_000_000 < most_bytes < MEMORY_LIMIT_BYTES


def _bf16(rows: int, columns: int, seed: int) -> npt.NDArray[Any]:
    """Values between 1 and 2, some of them negative: random bits under an exponent of zero."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, (rows, columns), np.uint16)
    found: npt.NDArray[Any] = ((bits & 0x807F) | 0x3F80).view(ml_dtypes.bfloat16)
    return found


def test_the_peak_is_seen_after_it_is_gone() -> None:
    with PeakMemory() as before:
        pass
    with PeakMemory() as peak:
        values = np.ones(64 << 20, np.uint8)
        while peak.nbytes < before.nbytes + values.size // 2:
            time.sleep(0.01)
        del values
    assert peak.nbytes >= before.nbytes + (32 << 20)


def test_only_the_systems_refusal_is_told_as_the_workers() -> None:
    with pytest.raises(WorkerMemoryError, match="ran out of memory"), explaining_memory_errors():
        raise MemoryError
    with pytest.raises(MemoryBudgetError, match="as it was"), explaining_memory_errors():
        raise MemoryBudgetError("as it was")
