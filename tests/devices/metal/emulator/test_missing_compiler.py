"""Without clang the tests of the Metal emulator are skipped, but they fail in CI and in ``make test``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.metal_shaders import REQUIRE_CLANG

TESTS = Path(__file__).parents[3]
WITHOUT_ZIG = "import sys, pytest; sys.modules['ziglang'] = None; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("test", ["devices/metal/emulator/test_simdgroups.py", "engine/test_devices.py"])
@pytest.mark.parametrize("required_by", [None, *REQUIRE_CLANG])
def test_a_missing_compiler_fails_only_if_it_is_required(required_by: str | None, test: str) -> None:
    variables = {name: "true" if name == required_by else "" for name in REQUIRE_CLANG}
    command = [sys.executable, "-c", WITHOUT_ZIG, "-x", "-q", "-rfEs", "-p", "no:cacheprovider", str(TESTS / test)]
    done = subprocess.run(
        command,
        env=os.environ | variables | {"PATH": ""},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install ziglang" in done.stdout
    assert done.returncode == (1 if required_by else 0), done.stdout
