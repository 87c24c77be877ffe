"""A Ray cluster of several nodes on this machine, started once, and a directory of its own for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from support.bucket import Bucket
from support.hub_server import HubServer, hub_server

STORE_BYTES = 80 << 20


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """A server that speaks S3, which the nodes find by their environment: it has to be there before them."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        yield names["AWS_ENDPOINT_URL"]
    server.stop()


@pytest.fixture
def bucket(s3_url: str) -> Bucket:
    client = boto3.client("s3", endpoint_url=s3_url)
    client.create_bucket(Bucket="clustered")
    return Bucket(client, "clustered")


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A server that speaks as the Hugging Face hub does, over an empty folder."""
    with hub_server(tmp_path_factory.mktemp("hub")) as server:
        yield server


@pytest.fixture(scope="session")
def ray_cluster(s3_url: str, hub: HubServer) -> Iterator[Any]:
    assert s3_url
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:  # nodes keep the environment in which they are started
        patch.setenv("HF_ENDPOINT", hub.url)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
