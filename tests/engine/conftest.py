"""Every test here runs on the devices with compiled kernels; the GPU is emulated, in several modes.

The NumPy reference would make this folder 40 % slower. It runs the contract suite (tests/devices).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbrx.registry import DEVICES
from support.devices import EVERY_TEST_IN_EVERY_MODE, MODES, device_fixture

device = device_fixture([*(name for name in DEVICES if name not in ("numpy", "metal")), *MODES])
MANY_ELEMENTS = (
    *("test_large_tensors_of_which_a_sample_is_taken", "test_large_tensors_that_need_something_of_their_rows"),
    *("test_many_elements_take_several_passes", "test_with_little_memory_what_is_collected_is_not_kept"),
    *("test_sums_of_many_halves", "test_same_bytes_for_all_schedules", "test_ranks_of_long_rows"),
    *("test_long_columns_are_reduced_in_blocks_of_rows", "test_reductions_over_any_axes_are_those_of_numpy"),
)
"""Tests that take minutes on the emulated GPU. ``make test`` runs them in its plain mode, ``make parity`` in all."""

OTHER_MODES = [mode for mode in MODES if mode != "metal"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Falling back to the CPU is expected here; test_devices.py tests the warning."""
    left_out = []
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::lbrx.engine.device.CpuFallback"))
            if any(f"[{mode}" in item.name for mode in OTHER_MODES) and item.name.startswith(MANY_ELEMENTS):
                left_out.append(item)
    if left_out and EVERY_TEST_IN_EVERY_MODE not in os.environ:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
