"""Masks that are kept between passes: only where the memory allows, and without a change in the result."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.task_arithmetic import della
from lbrx.memory.limits import limited

PARAMETERS = {"weight": [0.5, 0.5], "density": [0.6, 0.4], "epsilon": [0.1, 0.1]}


@pytest.mark.parametrize("memory", ["1MB", "16MB"])
def test_della_in_little_memory(memory: str) -> None:
    base, *models = (lbrx.normal((3000, 1000), seed, "w").to("bf16").realize() for seed in range(3))

    def merged() -> bytes:
        return np.asarray(della(base, models, context=MergeContext("w"), **PARAMETERS).to("bf16").numpy()).tobytes()

    expected = merged()
    with limited(2, memory):
        assert merged() == expected
