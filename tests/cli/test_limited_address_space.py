"""Commands in processes whose address space is limited, as by ``ulimit -v``: one line, exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx

RUN = """
import resource, sys, psutil
import lbrx.devices.cpu.build.compiler
from lbrx.cli.main import command_of, main
command_of("merge")
more, out = int(sys.argv[1]), sys.argv[2]
limit = psutil.Process().memory_info().vms + more
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.argv[1:] = ["merge", "a.safetensors", "b.safetensors", "--method", "linear", "--weight", "0.5,0.25", "--out", out]
main()
"""
MIB = 1 << 20


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for seed, name in enumerate("ab"):
        values = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
        lbrx.save(folder / f"{name}.safetensors", {"weight": values})
    return folder


def merge_within(more_bytes: int, inputs: Path, out: str) -> subprocess.CompletedProcess[str]:
    """Merge with an empty kernel cache and so many bytes of address space left after the imports."""
    return subprocess.run(
        [sys.executable, "-c", RUN, str(more_bytes), out],
        cwd=inputs,
        env={**os.environ, "LBRX_CACHE_DIR": str(inputs / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce RLIMIT_AS")
def test_llvm_is_not_called_without_the_address_space_that_it_needs(inputs: Path) -> None:
    """LLVM ends the process if an allocation is refused."""
    refused = merge_within(100 * MIB, inputs, "out")
    assert refused.stderr == (
        "error: out of memory: the system refused an allocation (compiling a kernel needs 128 MiB of address space)\n"
    )
    assert refused.returncode == 1
    assert not (inputs / "out").exists()
    finished = merge_within(1024 * MIB, inputs, "out")
    assert finished.returncode == 0, finished.stderr
    loading = merge_within(12 * MIB, inputs, "other")  # the kernels are in the cache now
    assert loading.stderr.count("\n") == 1
    assert loading.stderr.startswith("error: out of memory")
    assert loading.returncode == 1
