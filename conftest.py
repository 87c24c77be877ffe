"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Other processes may slow a test down at any time, so time is never a reason to fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def clang() -> None:
    """The compiler of the Metal emulator; see ``needs_clang``."""
    from support.metal_shaders import require_clang

    require_clang()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that speaks the part of the Hugging Face hub's API that an upload uses."""
    from huggingface_hub import constants

    from support.hub_uploads import TOKEN, upload_server

    with upload_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield server
