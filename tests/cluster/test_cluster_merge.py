"""A merge on a cluster writes the bytes of a local one, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.cluster import ClusterError, ClusterOptions
from lbrx.cluster.options import ClusterProgress
from lbrx.cluster.run import cluster_runner
from lbrx.files.output.run import RunResult, execute
from lbrx.jobs.merge.merge import plan_output_of_merge
from support.bucket import Bucket
from support.tiny import directory_bytes, make_llama

TASK_BYTES = 800
METHODS = {
    "linear": """
merge_method: linear
models: [{model: a, parameters: {weight: 3}}, {model: b, parameters: {weight: 1}}]
""",
    "ties": """
merge_method: ties
base_model: base
models: [{model: a, parameters: {weight: 0.7, density: 0.5}}, {model: b, parameters: {weight: 0.4, density: 0.3}}]
""",
    "dare_ties": """
merge_method: dare_ties
base_model: base
models: [{model: a, parameters: {weight: 0.7, density: 0.5}}, {model: b, parameters: {weight: 0.4, density: 0.3}}]
""",
}
# A method whose function does something to its worker before it gives the sum of the models.
CUSTOM = """
import os, signal, time
from pathlib import Path

def merged(models, base=None):
    {action}
    return models[0] + models[1]
"""
CUSTOM_RECIPE = "merge_method: custom.py:merged\nmodels: [{model: a}, {model: b}]\n"


def prepare(folder: Path, recipe: str) -> None:
    for seed, name in enumerate(("base", "a", "b")):
        make_llama(folder / name, seed)
    (folder / "recipe.yml").write_text(recipe)


def on_cluster(out: str, *, seed: int = 0, progress: Any = None, address: str = "auto", **options: Any) -> RunResult:
    cluster = ClusterOptions(address, task_bytes=TASK_BYTES, progress=progress)
    return lbrx.merge("recipe.yml", out, seed=seed, max_shard_bytes=4000, cluster=cluster, allow_code=True, **options)


def local(out: str, seed: int = 0) -> RunResult:
    return lbrx.merge("recipe.yml", out, seed=seed, max_shard_bytes=4000, allow_code=True)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("method", METHODS)
def test_the_bytes_are_those_of_a_local_merge(method: str, folder: Path) -> None:
    prepare(folder, METHODS[method])
    local("local", seed=5)
    states: list[ClusterProgress] = []
    result = on_cluster("clustered", seed=5, progress=states.append)
    assert directory_bytes(folder / "clustered") == directory_bytes(folder / "local")
    assert result.tensors == 21
    last = states[-1]
    assert sum(node.done_bytes for node in last.nodes) == result.written_bytes
    assert sum(node.tasks for node in last.nodes) > 3
    assert all(0 < node.memory_bytes < 400_000_000 for node in last.nodes)


def custom(folder: Path, action: str) -> None:
    prepare(folder, CUSTOM_RECIPE)
    (folder / "custom.py").write_text(CUSTOM.format(action="pass"))
    local("local")
    (folder / "custom.py").write_text(CUSTOM.format(action=action))


def weights(path: Path) -> dict[str, bytes]:
    return {name: content for name, content in directory_bytes(path).items() if name.endswith(".safetensors")}


def test_a_node_that_dies_loses_only_its_unfinished_tasks(folder: Path, ray_cluster: Any) -> None:
    """Until the node that will die has begun a task, which waits for its death, the other nodes are kept busy."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray_cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray_cluster.wait_for_nodes()
    here = f"ray.get_runtime_context().get_node_id() == {node.node_id!r}"
    custom(folder, f"import ray\n    if {here}: Path('begun').touch(); time.sleep(300)")
    begun = folder / "begun"

    def stay_busy(name: str) -> None:
        begun.with_name(name).touch()
        while not begun.exists():
            time.sleep(0.02)

    def kill() -> None:
        while not begun.exists():
            time.sleep(0.02)
        ray_cluster.remove_node(node, allow_graceful=False)

    others = [known["NodeID"] for known in ray.nodes() if known["Alive"] and known["NodeID"] != node.node_id]
    for other in others:
        strategy = NodeAffinitySchedulingStrategy(other, soft=False)
        ray.remote(num_cpus=1, scheduling_strategy=strategy)(stay_busy).remote(f"busy-{other}")
    latest = time.monotonic() + 120
    while not all((folder / f"busy-{other}").exists() for other in others):
        assert time.monotonic() < latest, "a node runs no tasks"
        time.sleep(0.02)
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    states: list[ClusterProgress] = []
    result = on_cluster("clustered", progress=states.append)
    killer.join()
    assert weights(folder / "clustered") == weights(folder / "local")
    assert states[-1].failures >= 1
    assert not any(seen.node.endswith(node.node_id[:6]) for seen in states[-1].nodes)
    assert sum(seen.done_bytes for seen in states[-1].nodes) == result.written_bytes


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_is_killed_as_for_memory_is_replaced(folder: Path) -> None:
    kill = "if not Path('killed').exists(): Path('killed').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    custom(folder, kill)
    states: list[ClusterProgress] = []
    on_cluster("clustered", progress=states.append)
    assert (folder / "killed").exists()
    assert states[-1].failures == 1
    assert weights(folder / "clustered") == weights(folder / "local")


@pytest.mark.usefixtures("ray_cluster")
def test_a_task_that_fails_three_times_stops_the_run_and_keeps_what_is_done(folder: Path) -> None:
    fail = (
        "p = Path('calls'); p.write_text(p.read_text() + 'x' if p.exists() else 'x')\n"
        "    if models[0].name == 'model.norm.weight' and not Path('fixed').exists(): raise ValueError('broken here')"
    )
    custom(folder, fail)
    with pytest.raises(
        ClusterError, match=r"'model\.norm\.weight'.*: failed 3 times on the cluster, at last: .*broken here"
    ):
        on_cluster("clustered")
    assert not (folder / "clustered").exists()
    (folder / "fixed").touch()
    result = on_cluster("clustered")
    assert result.resumed_tensors > 5
    assert weights(folder / "clustered") == weights(folder / "local")


@pytest.mark.usefixtures("ray_cluster")
def test_a_task_that_is_slow_is_sent_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.cluster.run._SLOW_SECONDS", 0.5)
    sleep = (
        "slow = models[0].name == 'lm_head.weight' and not Path('slept').exists()\n"
        "    if slow: Path('slept').touch(); time.sleep(300)"
    )
    custom(folder, sleep)
    states: list[ClusterProgress] = []
    on_cluster("clustered", progress=states.append)
    assert states[-1].resent_tasks >= 1
    assert states[-1].failures == 0
    assert weights(folder / "clustered") == weights(folder / "local")


def test_a_driver_that_is_killed_is_resumed(folder: Path, ray_cluster: Any) -> None:
    custom(folder, "time.sleep(0.05)")
    here = Path(__file__).parent
    paths = [str(here), str(here.parent)]
    code = (
        f"import sys; sys.path[:0] = {paths}\n"
        f"from test_cluster_merge import on_cluster; on_cluster('clustered', address={ray_cluster.address!r})"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=folder)
    journal = folder / ".clustered.partial.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
        assert driver.poll() is None, "the driver ended by itself"
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not (folder / "clustered").exists()
    result = on_cluster("clustered")
    assert 3 <= result.resumed_tensors < 21
    assert weights(folder / "clustered") == weights(folder / "local")


@pytest.mark.usefixtures("ray_cluster", "folder")
def test_quantizing_and_converting_on_a_cluster() -> None:
    tensors = {f"blk.{layer}.ffn_up.weight": lbrx.normal((64, 256), seed=layer).to("bf16") for layer in range(4)}
    lbrx.save("a.gguf", tensors, {"general.architecture": "llama", "llama.block_count": 4})
    for write, out in (
        (partial(lbrx.quantize, "a.gguf", "quantized.gguf", "q4_k_m"), Path("quantized.gguf")),
        (partial(lbrx.convert, "a.gguf", "converted.gguf", type="f32"), Path("converted.gguf")),
    ):
        write()
        expected = out.read_bytes()
        out.unlink()
        write(cluster=ClusterOptions("auto", task_bytes=1000))
        assert out.read_bytes() == expected


@pytest.mark.usefixtures("ray_cluster")
def test_the_command_tells_of_the_nodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(folder, METHODS["linear"])
    local("local")
    arguments = ["merge", "recipe.yml", "clustered", "--shard-size", "4000", "--cluster", "auto", "--json"]
    assert run(arguments) == 0
    assert directory_bytes(folder / "clustered") == directory_bytes(folder / "local")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last = [event for event in events if event["event"] == "cluster"][-1]
    assert (last["waiting_tasks"], last["running_tasks"], last["failures"]) == (0, 0, 0)
    assert sum(node["done_bytes"] for node in last["nodes"]) == events[-1]["written_bytes"]
    assert all(node["bytes_per_second"] > 0 for node in last["nodes"])


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_sees_other_models_is_an_error(folder: Path) -> None:
    prepare(folder, METHODS["linear"])
    (folder / "elsewhere").mkdir()
    os.chdir(folder / "elsewhere")
    prepare(folder / "elsewhere", METHODS["linear"])
    make_llama(folder / "elsewhere/a", 1, vocabulary=8)
    make_llama(folder / "elsewhere/b", 2, vocabulary=8)
    plan_call = partial(plan_output_of_merge, "recipe.yml", "out")
    runner = cluster_runner("auto", plan_call)
    os.chdir(folder)
    with pytest.raises(ClusterError, match="this worker plans another output than the driver"):
        execute(plan_call(), runner=runner)


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_with_another_build_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(folder, METHODS["linear"])
    monkeypatch.setattr("lbrx.cluster.run.build", lambda: "0.1.0 (sources of the driver)")
    with pytest.raises(ClusterError, match=r"but the driver has 0.1.0 \(sources of the driver\); expected"):
        lbrx.merge("recipe.yml", "out", cluster="auto")
    assert not (folder / "out").exists()


@pytest.mark.usefixtures("ray_cluster")
def test_shards_are_uploaded_by_the_workers_that_made_them(
    folder: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBRX_REMOTE_WORK", str(folder / "uploads"))
    fail = "if models[0].name == 'lm_head.weight' and not Path('fixed').exists(): raise ValueError('broken here')"
    custom(folder, fail)
    with pytest.raises(ClusterError, match="broken here"):
        on_cluster(f"{bucket.url}/out")
    assert "model.safetensors.index.json" not in bucket.contents("out")
    (folder / "fixed").touch()
    result = on_cluster(f"{bucket.url}/out")
    assert result.resumed_tensors < 21
    found = bucket.contents("out")
    assert {name: found[name] for name in found if name.endswith(".safetensors")} == weights(folder / "local")
    assert found.keys() == directory_bytes(folder / "local").keys()
    assert [path.name for path in (folder / "uploads").iterdir()] == []


def test_without_ray_the_extra_is_named(folder: Path) -> None:
    prepare(folder, METHODS["linear"])
    code = "import sys; sys.modules['ray'] = None; from lbrx.cli.main import run; sys.exit(run(sys.argv[1:]))"
    arguments = ["merge", "recipe.yml", "out", "--cluster", "auto"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'lbrx[cluster]'" in done.stderr
