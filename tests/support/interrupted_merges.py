"""Merges that stop in the middle, and what they leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbrx.base import system
from lbrx.errors import FileError
from lbrx.files.output import slots
from lbrx.jobs.merge.merge import merge
from support.tiny import LINEAR

DARE = """
merge_method: dare_ties
base_model: base
models:
  - {model: a, parameters: {weight: 0.5, density: 0.6}}
  - {model: b, parameters: {weight: 0.5, density: 0.4}}
"""


def hidden(folder: Path) -> list[str]:
    """What a merge has left beside its output."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def fail_after(monkeypatch: pytest.MonkeyPatch, tensors: int) -> None:
    """Let the disk be full after so many tensors, each of which is written alone."""
    monkeypatch.setattr(slots, "BATCH_BYTES", 0)
    written = 0
    pwrite_all = system.pwrite_all

    def limited(descriptor: int, buffer: object, offset: int, path: object = None) -> None:
        nonlocal written
        if str(path).endswith(".safetensors"):
            written += 1
            if written > tensors:
                raise FileError(f"{path}: disk full")
        pwrite_all(descriptor, buffer, offset, path)  # type: ignore[arg-type]

    monkeypatch.setattr(system, "pwrite_all", limited)


def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear merge that stopped after eleven tensors."""
    with monkeypatch.context() as patch:
        fail_after(patch, 12)
        with pytest.raises(FileError):
            merge(LINEAR, "out", threads=1)
