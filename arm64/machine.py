"""An arm64 Python on any Debian machine: qemu-user, Debian's packages and the aarch64 wheels of the same versions.

Nothing is installed on the machine itself, and no root is needed: all files are unpacked into one folder.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from arm64.compiler import running

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-arm64"
WHEEL_TAGS = tuple(f"manylinux_2_{minor}_aarch64" for minor in (36, 35, 34, 31, 28, 27, 24, 17))
# lbrx and these packages are installed with what they need.
TEST_PACKAGES = ("lbrx", "pytest", "pytest-xdist", "hypothesis", "safetensors", "gguf")
# Apple's M1 as far as qemu 7.2 has it: no SVE.
QEMU_CPU = "max,sve=off"
# What the emulated programs read in /proc/cpuinfo: LLVM takes the processor for an M1 and finds these features.
CPU_INFO = """processor : 0
Features : fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc asimddp
CPU implementer : 0x61
CPU architecture: 8
CPU variant : 0x1
CPU part : 0x022
CPU revision : 1
"""
PROCESSOR = "import llvmlite.binding as b; print(b.get_host_cpu_name(), b.get_host_cpu_features().flatten())"


class Machine:
    """The emulated machine in a folder; ``make`` downloads it."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.packages = folder / "packages"
        self.python = folder / "python"
        self._compilers = ""

    def make(self) -> None:
        """Download and unpack what is missing; takes two minutes the first time."""
        if (self.folder / ".installed").exists():
            return
        for needed in ("apt-get", "dpkg-deb"):
            if shutil.which(needed) is None:
                raise SystemExit(f"make arm64 needs {needed}: it runs on Debian and Ubuntu")
        shutil.rmtree(self.folder, ignore_errors=True)
        print(f"Downloading an arm64 Python into {self.folder}", flush=True)
        self._unpack("arm64", ["python3-minimal", "libpython3-stdlib", "libstdc++6"], self.root)
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/cpuinfo").write_text(CPU_INFO)
        self._unpack(_host_architecture(), ["qemu-user-static"], self.folder / "tools")
        self._install_wheels()
        self._write_launcher()
        (self.folder / ".installed").touch()

    def run(self, arguments: Sequence[str], output: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run the emulated Python with these arguments, in the folder of the repository."""
        command = [str(self.python), *arguments]
        environment = {**os.environ, "LBRX_ARM64_COMPILER": self._compilers}
        return subprocess.run(command, cwd=ROOT, text=True, check=False, stdout=output, env=environment)

    @contextmanager
    def compilers(self, processes: int) -> Iterator[None]:
        """Compile the kernels of what is run in so many processes outside of the emulator."""
        cpu, features = self.run(["-c", PROCESSOR], subprocess.PIPE).stdout.split()
        with running(self.folder, cpu, features, processes) as self._compilers:
            yield

    def version(self) -> str:
        """The version of the emulated Python, such as ``3.11``."""
        return (self.root / "usr/bin/python3").readlink().name.removeprefix("python")

    def _unpack(self, architecture: str, packages: list[str], target: Path) -> None:
        """Unpack packages and what they depend on, except essential ones of no use here."""
        state = self.folder / f"apt-{architecture}"
        archives = state / "cache/archives"
        (archives / "partial").mkdir(parents=True)
        (state / "lists/partial").mkdir(parents=True)
        options = {
            "Dir::State": state,
            "Dir::State::status": "/dev/null",
            "Dir::Cache": state / "cache",
            "APT::Architecture": architecture,
            "APT::Architectures::": architecture,
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "1",
        }
        apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
        subprocess.run([*apt, "update"], check=True)
        install = ["install", "--download-only", "--yes", "--no-install-recommends", *packages]
        subprocess.run([*apt, *install], check=True, stdout=subprocess.DEVNULL)
        target.mkdir()
        for package in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(target)], check=True)
        shutil.rmtree(state)

    def _install_wheels(self) -> None:
        """The packages of this environment in the same versions, for arm64."""
        wanted = [f"{name}=={version(name)}" for name in sorted(_with_requirements(TEST_PACKAGES)) if name != "lbrx"]
        tags = [f"--platform={tag}" for tag in (*WHEEL_TAGS, "any")]
        target = ["--only-binary=:all:", f"--python-version={self.version()}", f"--target={self.packages}", "--no-deps"]
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *tags, *target, *wanted], check=True)

    def _write_launcher(self) -> None:
        """A script that runs the emulated Python, also from within: it takes itself for the executable."""
        (qemu,) = (self.folder / "tools/usr/bin").glob("qemu-aarch64-static")
        binary = self.root / "usr/bin" / f"python{self.version()}"
        settings = {
            "PYTHONHOME": self.root / "usr",
            "PYTHONPATH": f"{ROOT / 'arm64/startup'}:{ROOT / 'src'}:{ROOT}:{self.packages}",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": self.folder / "bytecode",
            "LBRX_CACHE_DIR": self.folder / "cache",
        }
        exports = "".join(f"export {name}='{value}'\n" for name, value in settings.items())
        start = f"exec '{qemu}' -cpu {QEMU_CPU} -L '{self.root}' -0 '{self.python}' '{binary}' \"$@\"\n"
        self.python.write_text(f"#!/bin/sh\n{exports}{start}")
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)


def _with_requirements(names: Sequence[str]) -> set[str]:
    """Packages and all that they require here, without extras."""
    found, waiting = set[str](), [*names]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            needed = (Requirement(text) for text in requires(name) or ())
            waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def _host_architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
