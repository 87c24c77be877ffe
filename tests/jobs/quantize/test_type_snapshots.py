"""The type of every tensor of some real models in every file type, as llama.cpp's own snapshots have it.

``type_snapshots.txt.xz`` joins four files of llama.cpp's ``tests/snapshots`` (MIT licence). `make parity` reads all.
"""

from __future__ import annotations

import lzma

import pytest

import support
from support.type_snapshots import read_snapshots, wrong_types

PATH = support.GOLDEN / "llama_cpp" / "type_snapshots.txt.xz"
SNAPSHOTS = {snapshot.model: snapshot for snapshot in read_snapshots(lzma.decompress(PATH.read_bytes()).decode())}


@pytest.mark.parametrize("model", SNAPSHOTS)
def test_types_are_those_of_llama_cpp(model: str) -> None:
    snapshot = SNAPSHOTS[model]
    assert len(snapshot.listed) == 33
    assert wrong_types(snapshot) == {}
