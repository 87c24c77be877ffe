"""Large files that take no space on the disk, and processes with little memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from lbrx.files.formats import safetensors
from lbrx.files.formats.header import TensorSpec

DATA_LIMIT_BYTES = 512 << 20


def sparse_model(path: Path, tensors: list[TensorSpec]) -> dict[str, int]:
    """A SafeTensors file of zeros; returns where each tensor begins."""
    layout = safetensors.lay_out(path.name, tensors, {})
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.file_bytes)
    return {slot.name: slot.offset for slot in layout.slots}


def put(path: Path, offset: int, values: np.ndarray) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(values.tobytes())


def run_limited(script: str, *arguments: object) -> str:
    """Run a script in a process whose private memory is limited; it prints its result."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_LIMIT_BYTES, DATA_LIMIT_BYTES))

    command = [sys.executable, "-c", script, *map(str, arguments)]
    finished = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
