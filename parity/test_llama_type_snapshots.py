"""The type of every tensor of twelve real models in 33 file types, as in llama.cpp's own snapshots."""

from __future__ import annotations

import pytest
from peer_sources import llama_cpp_sources

from support.type_snapshots import ARCHITECTURES, Snapshot, read_snapshots, wrong_types


@pytest.fixture(scope="module")
def snapshots() -> dict[str, Snapshot]:
    paths = sorted((llama_cpp_sources() / "tests" / "snapshots").glob("*.schema"))
    return {snapshot.model: snapshot for path in paths for snapshot in read_snapshots(path.read_text())}


def test_every_snapshot_is_compared(snapshots: dict[str, Snapshot]) -> None:
    assert set(snapshots) == set(ARCHITECTURES)
    assert {len(snapshot.listed) for snapshot in snapshots.values()} == {33}


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_types_are_those_of_llama_cpp(snapshots: dict[str, Snapshot], model: str) -> None:
    assert wrong_types(snapshots[model]) == {}
