"""Every test here runs on the devices with compiled kernels; the GPU is emulated.

The NumPy reference would make this folder 40 % slower. It runs the contract suite (tests/devices).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lbrx.registry import DEVICES
from support.devices import device_fixture

device = device_fixture([*(name for name in DEVICES if name not in ("numpy", "metal")), "metal", "metal flushing"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Falling back to the CPU is expected here; test_devices.py tests the warning."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::lbrx.engine.device.CpuFallback"))
