"""A server that speaks S3 on loopback, a proxy in front of it that makes faults, and an empty bucket for every test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from lbrx.files.remote import using_remote
from support.bucket import Bucket
from support.faulty_proxy import FaultyProxy, faulty_proxy

_numbers = count()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture(scope="session")
def running_proxy(s3_port: int) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_port) as made:
        yield made


@pytest.fixture
def proxy(running_proxy: FaultyProxy) -> Iterator[FaultyProxy]:
    yield running_proxy
    running_proxy.reset()


@pytest.fixture
def bucket(proxy: FaultyProxy, s3_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket; lbrx reaches it through the proxy, and the test itself directly."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", proxy.url),
        ("LBRX_REMOTE_WORK", str(tmp_path / "uploads")),
    ):
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")
    name = f"bucket-{next(_numbers)}"
    client.create_bucket(Bucket=name)
    with using_remote(timeout_seconds=0.5, pause_seconds=0.01, attempts=3):
        yield Bucket(client, name)
    proxy.reset()
