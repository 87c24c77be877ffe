"""The tests of operations that ``make test`` leaves out in some modes of the emulated GPU: they take minutes there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mode", ["reversed", "flushing"])
def test_all_operations_on_many_elements(mode: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "tests/engine", "-k", f"metal and {mode}"]
    environment = os.environ | {"LBRX_EVERY_TEST_IN_EVERY_MODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
