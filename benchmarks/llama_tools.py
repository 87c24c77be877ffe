"""llama.cpp's own programs, built once from the source distribution of llama-cpp-python.

They are put beside the peers, in ``.venv-mergekit/llama.cpp``. ``LBRX_LLAMA_TOOLS`` names a folder that has them.
Building takes about ten minutes and needs cmake and a C++ compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from benchmarks.commands import PEERS

PACKAGE = "llama-cpp-python==0.3.36"
PROGRAMS = ("llama-quantize", "llama-imatrix", "llama-perplexity", "llama-bench")
FOLDER = PEERS.parent / "llama.cpp"
_OPTIONS = (
    *("CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF"),
    *("LLAMA_BUILD_SERVER=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_UI=OFF"),
)


def tool(name: str) -> Path:
    """Return the path of a program of llama.cpp; builds all of them if it is missing."""
    folder = Path(os.environ.get("LBRX_LLAMA_TOOLS") or FOLDER)
    if not (folder / name).exists():
        if folder != FOLDER:
            raise FileNotFoundError(f"LBRX_LLAMA_TOOLS: no {name} in {folder}")
        _build()
    return folder / name


def _build() -> None:
    with tempfile.TemporaryDirectory(dir=PEERS.parent) as scratch:
        pip = [
            str(PEERS / "python"),
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
        ]
        subprocess.run([*pip, PACKAGE, "-d", scratch], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (source,) = Path(scratch).glob("*/vendor/llama.cpp")
        build = Path(scratch) / "build"
        options = [f"-D{option}" for option in _OPTIONS]
        subprocess.run(["cmake", "-S", str(source), "-B", str(build), *options], check=True)
        jobs = str(os.cpu_count() or 1)  # without a number, make starts all compilers at once
        subprocess.run(["cmake", "--build", str(build), "--parallel", jobs, "--target", *PROGRAMS], check=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for program in PROGRAMS:
            shutil.move(build / "bin" / program, FOLDER / program)
