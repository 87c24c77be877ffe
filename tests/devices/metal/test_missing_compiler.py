"""Without clang the tests of the Metal emulator are skipped, but they fail in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
WITHOUT_ZIG = "import sys, pytest; sys.modules['ziglang'] = None; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("test", ["devices/metal/test_simdgroups.py", "engine/test_devices.py"])
@pytest.mark.parametrize("ci", ["", "true"])
def test_a_missing_compiler_fails_only_in_ci(ci: str, test: str) -> None:
    command = [sys.executable, "-c", WITHOUT_ZIG, "-x", "-q", "-rfEs", "-p", "no:cacheprovider", str(TESTS / test)]
    done = subprocess.run(
        command, env=os.environ | {"CI": ci, "PATH": ""}, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert "pip install ziglang" in done.stdout
    assert done.returncode == (1 if ci else 0), done.stdout
