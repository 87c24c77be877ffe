"""Every test here runs on every device of the registry; the GPU is emulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.devices import device

__all__ = ["device"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Falling back to the CPU is expected here; test_devices.py tests the warning."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::lbrx.engine.device.CpuFallback"))
