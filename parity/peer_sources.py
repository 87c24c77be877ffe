"""Sources of peers that are packages: downloaded once into a cache folder, never committed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

LLAMA_CPP = "llama_cpp_python-0.3.36"


@cache
def llama_cpp_sources() -> Path:
    """The folder of llama.cpp in the sdist of llama-cpp-python. ``LBRX_LLAMA_CPP`` names another one."""
    given = os.environ.get("LBRX_LLAMA_CPP")
    if given:
        return Path(given)
    cached = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lbrx-parity"
    sources = cached / LLAMA_CPP / "vendor" / "llama.cpp"
    if not sources.exists():
        cached.mkdir(parents=True, exist_ok=True)
        name, version = LLAMA_CPP.rsplit("-", 1)
        command = ["pip", "download", "--no-deps", "--no-binary=:all:", "--dest", str(cached), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        with tarfile.open(cached / f"{LLAMA_CPP}.tar.gz") as archive:
            archive.extractall(cached, filter="data")
    return sources
