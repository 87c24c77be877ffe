"""Every test here runs in a directory of its own, where models can be named by short paths."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
