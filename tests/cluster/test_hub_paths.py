"""Models by hf:// URLs, read from a server on this machine that answers as the hub does: real requests, real sockets.

The hub's library takes its address from the environment when it is imported: commands run in processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.hub_server import HubServer
from support.tiny import directory_bytes, make_llama

LINEAR = """
merge_method: linear
models: [{{model: "{first}", parameters: {{weight: 3}}}}, {{model: "{second}", parameters: {{weight: 1}}}}]
"""


@pytest.fixture
def owner(hub: HubServer) -> str:
    """The owner of two models, each in a repository of its own; what was counted before is forgotten."""
    for seed, name in enumerate(("a", "b")):
        make_llama(hub.folder / "tiny" / name, seed, vocabulary=1 << 15)
    hub.body_bytes = hub.ranges = hub.failures = 0
    return "hf://tiny"


def lbrx_command(hub: HubServer, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "lbrx", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def local_weights(hub: HubServer, folder: Path) -> bytes:
    models = hub.folder / "tiny"
    (folder / "local.yml").write_text(LINEAR.format(first=models / "a", second=models / "b"))
    assert lbrx_command(hub, folder, "merge", "local.yml", "local").returncode == 0
    return directory_bytes(folder / "local")["model.safetensors"]


def test_inspecting_reads_headers_only(hub: HubServer, owner: str, folder: Path) -> None:
    done = lbrx_command(hub, folder, "inspect", f"{owner}/a", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["path"] == f"{owner}/a"
    assert hub.ranges > 0
    assert hub.body_bytes < 50_000 < (hub.folder / "tiny/a/model.safetensors").stat().st_size


def test_a_merge_reads_from_the_hub_and_goes_on_after_an_error(hub: HubServer, owner: str, folder: Path) -> None:
    expected = local_weights(hub, folder)
    (folder / "recipe.yml").write_text(LINEAR.format(first=f"{owner}/a", second=f"{owner}/b"))
    hub.failures = 1
    done = lbrx_command(hub, folder, "merge", "recipe.yml", "merged")
    assert done.returncode == 0, done.stderr
    assert hub.failures == 0
    assert hub.ranges > 2
    assert directory_bytes(folder / "merged")["model.safetensors"] == expected


def test_workers_of_a_cluster_read_from_the_hub(hub: HubServer, owner: str, folder: Path, ray_cluster: Any) -> None:
    expected = local_weights(hub, folder)
    (folder / "recipe.yml").write_text(LINEAR.format(first=f"{owner}/a", second=f"{owner}/b"))
    done = lbrx_command(hub, folder, "merge", "recipe.yml", "merged", "--cluster", ray_cluster.address)
    assert done.returncode == 0, done.stderr
    assert directory_bytes(folder / "merged")["model.safetensors"] == expected


def test_what_is_not_on_the_hub_is_told(hub: HubServer, owner: str, folder: Path) -> None:
    done = lbrx_command(hub, folder, "inspect", f"{owner}/none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {owner}/none: no such file or directory\n"
