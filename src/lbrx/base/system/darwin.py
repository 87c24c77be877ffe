"""Calls that only macOS has, most of them plain functions over ``fcntl``.

The numbers are those of ``<sys/fcntl.h>``; Python's ``fcntl`` module lacks most of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from functools import cache
from typing import Any

F_PREALLOCATE = 42
F_RDADVISE = 44
F_RDAHEAD = 45
F_FULLFSYNC = 51

F_ALLOCATECONTIG = 0x2
F_ALLOCATEALL = 0x4
F_PEOFPOSMODE = 3
RENAME_SWAP = 2
USER_INITIATED = 0x19  # a class of <sys/qos.h>: work that a user waits for
_ACCELERATE = "/System/Library/Frameworks/Accelerate.framework/Accelerate"
_MULTI_THREADED, _SINGLE_THREADED = 0, 1  # of <vecLib/thread_api.h>

# struct radvisory { off_t ra_offset; int ra_count; }, padded to 16 bytes
_RADVISORY = struct.Struct("=qi4x")
# struct fstore { unsigned flags; int posmode; off_t offset; off_t length; off_t bytesalloc; }
_FSTORE = struct.Struct("=Iiqqq")

_MAX_ADVISED_BYTES = 1 << 30  # ra_count is a signed 32-bit integer
_BYTES_PER_STAT_BLOCK = 512
_CANNOT_FULLSYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY})


def read_ahead(fd: int, offset: int, length: int) -> None:
    """Start reading a range of a file into the file cache, without waiting for it."""
    end = offset + length
    for start in range(offset, end, _MAX_ADVISED_BYTES):
        fcntl.fcntl(fd, F_RDADVISE, _RADVISORY.pack(start, min(_MAX_ADVISED_BYTES, end - start)))


def set_read_ahead(fd: int, is_on: bool) -> None:
    """Whether the system reads ahead of the reads through a descriptor."""
    fcntl.fcntl(fd, F_RDAHEAD, int(is_on))


def allocate(fd: int, nbytes: int) -> None:
    """Give a file blocks for nbytes in all, in one piece if the volume has one; its size stays as it was."""
    missing_bytes = nbytes - os.fstat(fd).st_blocks * _BYTES_PER_STAT_BLOCK
    if missing_bytes <= 0:
        return
    try:
        _allocate_past_end(fd, F_ALLOCATECONTIG | F_ALLOCATEALL, missing_bytes)
    except OSError:
        _allocate_past_end(fd, F_ALLOCATEALL, missing_bytes)


def _allocate_past_end(fd: int, flags: int, length: int) -> None:
    fcntl.fcntl(fd, F_PREALLOCATE, _FSTORE.pack(flags, F_PEOFPOSMODE, 0, length, 0))


def full_sync(fd: int) -> None:
    """Write a file through the drive's own cache; a plain ``fsync`` on macOS stops before that cache.

    File systems that do not know the call (network ones, FAT) get a plain ``fsync``.
    """
    try:
        fcntl.fcntl(fd, F_FULLFSYNC)
    except OSError as error:
        if error.errno not in _CANNOT_FULLSYNC:
            raise
        os.fsync(fd)


def swap(first: bytes, second: bytes) -> None:
    """Exchange two names in one step."""
    if ctypes.CDLL(None, use_errno=True).renamex_np(first, second, RENAME_SWAP) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def performance_cpu_count() -> int:
    """The performance cores of the machine; 0 if all of its cores are equal."""
    count, size = ctypes.c_int32(), ctypes.c_size_t(4)
    read = ctypes.CDLL(None).sysctlbyname
    failed = read(b"hw.perflevel0.logicalcpu", ctypes.byref(count), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 0 if failed else count.value


def set_quality_of_service(thread_class: int) -> None:
    """Put the calling thread into a class, which decides on what cores it may run. A refusal changes nothing."""
    ctypes.CDLL(None).pthread_set_qos_class_self_np(ctypes.c_uint32(thread_class), ctypes.c_int(0))


@cache
def _accelerate() -> Any:
    """Apple's BLAS, or None before macOS 15, where its threads cannot be chosen."""
    try:
        library = ctypes.CDLL(_ACCELERATE)
    except OSError:
        return None
    return library if hasattr(library, "BLASSetThreading") else None


def set_accelerate_threads(is_single: bool) -> bool:
    """Whether Accelerate uses one thread when the calling thread calls it; returns what it was before."""
    library = _accelerate()
    if library is None:
        return False
    was_single = bool(library.BLASGetThreading() == _SINGLE_THREADED)
    if was_single != is_single:
        library.BLASSetThreading(ctypes.c_uint(_SINGLE_THREADED if is_single else _MULTI_THREADED))
    return was_single


def gpu_cores() -> int | None:
    """Cores of the GPU, which Metal does not tell; None if the registry of devices does not list them."""
    import plistlib
    import subprocess

    command = ("ioreg", "-r", "-d", "1", "-a", "-c", "AGXAccelerator")
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
        return int(plistlib.loads(listed)[0]["gpu-core-count"])
    except (OSError, subprocess.SubprocessError, plistlib.InvalidFileException, ValueError, LookupError, TypeError):
        return None
