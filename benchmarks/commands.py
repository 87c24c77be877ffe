"""Whole commands, timed with their start-up, and the memory that they hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import psutil

from benchmarks.harness import Figure

MEMORY_LIMIT_BYTES = 400 << 20
MEMORY_AT_HAND_BYTES = 7 << 30
_READ_BYTES = 8 << 20
_TOUCH = "import sys, mmap; m = mmap.mmap(-1, int(sys.argv[1])); m[:: mmap.PAGESIZE] = bytes(len(m) // mmap.PAGESIZE)"
PEERS = Path(__file__).parent.parent / ".venv-mergekit" / "bin"


def run_command(command: list[str], work: Path, *outs: Path) -> tuple[float, int]:
    """Seconds of a command and the most anonymous memory that it was seen to hold.

    What earlier turns wrote is removed right before. Then nothing of it has to go to the disk, and its memory is at
    hand: the host of a virtual machine takes back what has been free for some seconds, and is slow to give it again.
    """
    for out in outs:
        if out.is_file():
            out.unlink()
        shutil.rmtree(out, ignore_errors=True)
    # An installed program has its compiled modules on disk; let those of a checkout be written too.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=work, stdout=output, stderr=subprocess.STDOUT, env=environment)
        peak = watch(process)
        elapsed = time.perf_counter() - start
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{output.read().decode()[-2000:]}")
    return elapsed, peak


def bring_memory() -> None:
    """Touch free memory, so that no program has to wait until the host of a virtual machine gives it."""
    wanted = min(MEMORY_AT_HAND_BYTES, psutil.virtual_memory().available // 2)
    subprocess.run([sys.executable, "-c", _TOUCH, str(wanted)], check=True)


def read_through(*directories: Path) -> None:
    """Bring files into the system's cache, from front to back, whoever used them last and in whatever order."""
    for path in (path for directory in directories for path in sorted(directory.rglob("*")) if path.is_file()):
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process, and look at its memory rarely enough not to slow it down."""
    watched, ended, peak = psutil.Process(process.pid), Event(), 0

    def look() -> None:
        nonlocal peak
        with suppress(psutil.NoSuchProcess):
            while not ended.wait(0.05):
                memory = watched.memory_info()
                peak = max(peak, memory.rss - getattr(memory, "shared", 0))

    looking = Thread(target=look)
    looking.start()
    process.wait()
    ended.set()
    looking.join()
    return peak


def memory_figure(suite: str, name: str, peak: int) -> Figure:
    return Figure(suite, f"{name}: 400 MB / peak", MEMORY_LIMIT_BYTES / peak, 1, f"{peak / 1e6:.0f} MB anonymous")
