"""This process and its machine: memory in use and available, processors, the user's cache directory."""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import stat
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

from lbrx.base.system import darwin
from lbrx.base.system.sizes import format_bytes

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_BYTES_PER_KIB = 1024
_AT_HWCAP, _HWCAP_ASIMDDP = 16, 1 << 20  # Linux on arm64


def anonymous_bytes() -> int:
    """Bytes of this process in physical memory that no file backs: what it really takes from others.

    macOS counts the pages that are this process's alone, which leaves out shared file pages as well.
    """
    if sys.platform == "darwin":
        import psutil

        return int(psutil.Process().memory_full_info().uss)
    return _kib_field(Path("/proc/self/status"), "RssAnon")


def available_bytes() -> int:
    """Bytes that could be allocated now without swapping, within the limits of a container.

    >>> available_bytes() > 0
    True
    """
    if sys.platform == "darwin":
        import psutil

        return int(psutil.virtual_memory().available)
    machine_bytes = _kib_field(Path("/proc/meminfo"), "MemAvailable")
    return min([machine_bytes, *_cgroup_free_bytes(_CGROUP_ROOT, Path("/proc/self/cgroup"))])


def cpu_count() -> int:
    """Processors that this process may use, at least one.

    >>> cpu_count() >= 1
    True
    """
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if sys.platform == "darwin":
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))


def gpu_cores() -> int | None:
    """Cores of an Apple GPU, or None where there is none."""
    return darwin.gpu_cores() if sys.platform == "darwin" else None


def performance_cpu_count() -> int:
    """Processors that are not slower than the others: on a Mac those that are not efficiency cores.

    >>> 1 <= performance_cpu_count() <= cpu_count()
    True
    """
    if sys.platform == "darwin":
        return min(darwin.performance_cpu_count() or cpu_count(), cpu_count())
    return cpu_count()


def prefer_performance_cores() -> None:
    """Ask that this thread runs on performance cores. Only macOS has classes of threads; elsewhere nothing happens."""
    if sys.platform == "darwin":
        darwin.set_quality_of_service(darwin.USER_INITIATED)


def set_accelerate_threads(is_single: bool) -> bool:
    """Let Accelerate, the BLAS of macOS 15 and later, use one thread or several when this thread calls it.

    Returns whether it was one before. Nothing happens elsewhere.
    """
    return darwin.set_accelerate_threads(is_single) if sys.platform == "darwin" else False


def has_dot_products() -> bool:
    """Whether an arm64 processor sums products of i8 in i32 by one instruction. All of Apple's do; Linux says so."""
    if sys.platform == "darwin":
        return True
    return bool(ctypes.CDLL(None).getauxval(_AT_HWCAP) & _HWCAP_ASIMDDP)


def require_address_space(nbytes: int, purpose: str) -> None:
    """Raise MemoryError if the system would refuse so many bytes, as with ``ulimit -v``.

    For libraries that end the process if an allocation is refused, such as LLVM.
    """
    try:
        mmap.mmap(-1, nbytes).close()
    except (OSError, MemoryError) as error:
        raise MemoryError(f"{purpose} needs {format_bytes(nbytes)} of address space") from error


def cache_directory(part: str = "") -> Path:
    """The directory of a cache, such as ``"kernels"``, which may not exist yet.

    It is below LBRX_CACHE_DIR or the system's directory for caches. If others can write there, it is a temporary
    directory of this process instead, and there is one warning.
    """
    root = _chosen_cache_directory()
    chosen = root / part
    shared = next((each for each in (root, chosen) if not is_private(each)), None)
    if shared is None:
        return chosen
    _warn_of_shared_cache(shared)
    return _temporary_cache() / part


@cache
def _warn_of_shared_cache(directory: Path) -> None:
    message = (
        f"{directory}: other users can write to this cache directory, so it is not used; run: chmod go-w {directory}"
    )
    warnings.warn(message, RuntimeWarning, stacklevel=4)


@cache
def _temporary_cache() -> Path:
    directory = tempfile.mkdtemp(prefix="lbrx-cache-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _chosen_cache_directory() -> Path:
    chosen = os.environ.get("LBRX_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform != "darwin" and os.path.isabs(xdg):  # a relative one is to be ignored, as its specification demands
        return Path(xdg) / "lbrx"
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry in the list of users, as in some containers
        return Path(tempfile.gettempdir()) / f"lbrx-{os.getuid()}"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "lbrx"


def is_private(directory: Path) -> bool:
    """Whether nobody but this user and root can put files into a directory, or it does not exist yet.

    >>> is_private(Path("/"))
    True
    """
    try:
        state = directory.stat()
    except OSError:
        return True
    return state.st_uid in (os.getuid(), 0) and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _kib_field(table: Path, field: str) -> int:
    """Bytes of a line such as ``VmRSS:    2048 kB`` in one of Linux's tables."""
    for line in table.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _BYTES_PER_KIB
    raise OSError(f"{table}: has no line {field!r}")


def _cgroup_free_bytes(root: Path, membership: Path) -> list[int]:
    """Bytes left in each limited control group (version 2) around this process, itself first.

    The file cache that a group could give back counts as free.
    """
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.exists() else []
    inside = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    if not inside:
        return []
    own = root / inside[0]
    groups = [own, *own.parents]
    return [_free_bytes_in(group) for group in groups[: groups.index(root) + 1] if _is_limited(group)]


def _is_limited(group: Path) -> bool:
    limit = group / "memory.max"
    return limit.exists() and limit.read_text(encoding="ascii").strip() != "max"


def _free_bytes_in(group: Path) -> int:
    limit_bytes = int((group / "memory.max").read_text(encoding="ascii"))
    used_bytes = int((group / "memory.current").read_text(encoding="ascii"))
    counters = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    return max(limit_bytes - used_bytes + int(counters.get("inactive_file", 0)), 0)
