"""Files by descriptor: opening, positioned reads and writes, allocation and cache advice."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lbrx.base.system import darwin
from lbrx.base.system.sizes import format_bytes
from lbrx.errors import FileError, TruncatedError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from numpy.typing import NDArray

StrPath: TypeAlias = str | os.PathLike[str]

_MAX_TRANSFER_BYTES = 1 << 30  # macOS refuses reads and writes of 2 GiB and more
_BYTES_PER_STAT_BLOCK = 512
_MOST_OPEN_FILES = 10_240  # macOS refuses more, also where the hard limit is infinite
_CANNOT_ALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
_REASONS = {
    errno.ENOENT: "no such file",
    errno.EISDIR: "is a directory",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOSPC: "disk full",
    errno.EFBIG: "file too large for its file system or for this process's limit",
    errno.EXDEV: "source and target are on different file systems",
    errno.EMFILE: "too many open files in this process",
}


def name_of(fd: int, path: StrPath | None) -> str:
    """What an error message calls a file: its path if known."""
    return os.fspath(path) if path is not None else f"file descriptor {fd}"


def file_error(error: OSError, where: StrPath, attempt: str) -> FileError:
    """The FileError for a failed system call: where, what was attempted, and why it failed."""
    code = error.errno if error.errno is not None else 0
    return FileError(f"{os.fspath(where)}: cannot {attempt}: {_REASONS.get(code) or os.strerror(code).lower()}")


def open_read(path: StrPath) -> int:
    """Open a file for reading and return its descriptor, which programs started later do not inherit."""
    try:
        fd = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise file_error(error, path, "open") from error
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileError(f"{os.fspath(path)}: cannot open: is a directory; expected a file")
    return fd


def open_write(path: StrPath, *, must_exist: bool = False, must_be_new: bool = False) -> int:
    """Open a file for reading and writing and return its descriptor; by default it is made if missing.

    Symbolic links are not followed.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    flags |= 0 if must_exist else os.O_CREAT
    flags |= os.O_EXCL if must_be_new else 0
    try:
        return _open(path, flags)
    except OSError as error:
        raise file_error(error, path, "be opened") from error


def _open(path: StrPath, flags: int) -> int:
    """Open a file. If the process has too many open, its soft limit is raised once: on macOS that is 256."""
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.EMFILE or not _raise_open_files():
            raise
    return os.open(path, flags, 0o644)


def _raise_open_files() -> bool:
    """Raise the soft limit of open files as far as the hard limit and macOS allow; whether it is higher now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return True


def pread_into(fd: int, buffer: WriteableBuffer | NDArray[Any], offset: int, path: StrPath | None = None) -> None:
    """Fill a contiguous writable buffer with the file's bytes from offset on.

    Raises TruncatedError if the file ends before the buffer is full.
    """
    view = _bytes_of(buffer)
    filled = 0
    while filled < view.nbytes:
        try:
            count = os.preadv(fd, [view[filled : filled + _MAX_TRANSFER_BYTES]], offset + filled)
        except OSError as error:
            raise file_error(error, name_of(fd, path), f"read at byte {offset + filled}") from error
        if count == 0:
            raise TruncatedError(
                f"{name_of(fd, path)}: ends at byte {offset + filled}, "
                f"but bytes {offset} to {offset + view.nbytes} were expected"
            )
        filled += count


def pwrite_all(fd: int, buffer: ReadableBuffer | NDArray[Any], offset: int, path: StrPath | None = None) -> None:
    """Write all of a contiguous buffer into the file at offset."""
    _pwrite(fd, _bytes_of(buffer), offset, path)


def open_past_cache(path: StrPath) -> int | None:
    """Open a file once more for writes of whole blocks that do not pass through the file cache.

    None where the file system has no such writes. On macOS always: ``F_NOCACHE`` is not used, see decision 8.
    """
    if sys.platform != "linux":
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise file_error(error, path, "open for writing") from error


def pwrite_past_cache(fd: int, buffer: NDArray[Any], offset: int, path: StrPath | None = None) -> int:
    """Write blocks through a descriptor of `open_past_cache`; how many bytes of them it took.

    A file system may refuse what is not a multiple of its own, larger blocks, or all of it.
    """
    return _pwrite(fd, _bytes_of(buffer), offset, path, refusal=errno.EINVAL)


def _pwrite(fd: int, view: memoryview, offset: int, path: StrPath | None, refusal: int | None = None) -> int:
    """Write bytes until all are written, or the system refuses them with that error; how many it has taken."""
    written = 0
    while written < view.nbytes:
        try:
            written += os.pwrite(fd, view[written : written + _MAX_TRANSFER_BYTES], offset + written)
        except OSError as error:
            if error.errno == refusal:
                break
            raise _write_error(error, fd, path, offset + written, view.nbytes - written) from error
    return written


def write_file(path: StrPath, data: bytes, *, sync: bool = True) -> None:
    """Write a whole file in place: for one inside a directory that is itself still partial."""
    fd = open_write(path)
    try:
        truncate(fd, 0, path)
        pwrite_all(fd, data, 0, path)
        if sync:
            flush_to_disk(fd, path)
    finally:
        os.close(fd)


def truncate(fd: int, nbytes: int, path: StrPath | None = None) -> None:
    """Set the size of a file."""
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        raise file_error(error, name_of(fd, path), f"set its size to {format_bytes(nbytes)}") from error


def preallocate(fd: int, nbytes: int, path: StrPath | None = None) -> None:
    """Make a file exactly nbytes long, with disk blocks behind all of it where the file system can.

    A full disk is found here, before any work, and not at the last byte. File systems that cannot allocate
    ahead get a sparse file.
    """
    try:
        if nbytes > 0:
            _allocate(fd, nbytes)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            needed_bytes = nbytes - os.fstat(fd).st_blocks * _BYTES_PER_STAT_BLOCK
            raise _disk_full(fd, path, needed_bytes) from error
        if error.errno not in _CANNOT_ALLOCATE:
            raise file_error(error, name_of(fd, path), f"allocate {format_bytes(nbytes)}") from error
    truncate(fd, nbytes, path)


def read_ahead(fd: int, offset: int, length: int) -> bool:
    """Start reading a range into the file cache without waiting; whether the kernel took the advice.

    This is the asynchronous read-ahead on both systems. On macOS the advice on a mapping is not: it returns
    once the pages are there.
    """
    try:
        if sys.platform == "darwin":
            darwin.read_ahead(fd, offset, length)
        else:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
    except OSError as error:
        return _refused(error, fd)
    return True


def expect_access(fd: int, access: str, offset: int, length: int) -> bool:
    """Say how a range will be read: "normal", "sequential" or "random"; whether the kernel took the advice.

    macOS knows read-ahead on or off only, and for the whole descriptor.
    """
    try:
        if sys.platform == "darwin":
            darwin.set_read_ahead(fd, access != "random")
        else:
            advice = {"sequential": os.POSIX_FADV_SEQUENTIAL, "random": os.POSIX_FADV_RANDOM}
            os.posix_fadvise(fd, offset, length, advice.get(access, os.POSIX_FADV_NORMAL))
    except OSError as error:
        return _refused(error, fd)
    return True


def seems_cached(fd: int, offset: int, length: int) -> bool:
    """Whether the first, middle and last byte of a range are in the file cache; never waits for the disk.

    Linux takes some 20 microseconds for each MiB to find that nothing has to be read ahead, which this saves.
    macOS sees that fast by itself, and the answer there is always False.
    """
    if sys.platform != "linux":
        return False
    try:
        return all(
            os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT) == 1
            for position in (offset, offset + length // 2, offset + max(length - 1, 0))
        )
    except OSError as error:
        return _refused(error, fd)


def _bytes_of(buffer: ReadableBuffer | NDArray[Any]) -> memoryview:
    """The bytes of a contiguous buffer or array, an array's also if its dtype has no buffer format (bfloat16)."""
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise UsageError(f"an array with strides {buffer.strides} has gaps; expected a contiguous one")
        return buffer.reshape(-1).view(np.uint8).data
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _refused(error: OSError, fd: int) -> bool:
    """False for advice that this kind of file does not take; a descriptor that is not open is an error."""
    try:
        os.fstat(fd)
    except OSError:
        raise file_error(error, name_of(fd, None), "advise") from error
    return False


def _write_error(error: OSError, fd: int, path: StrPath | None, position: int, missing_bytes: int) -> FileError:
    if error.errno == errno.ENOSPC:
        return _disk_full(fd, path, missing_bytes)
    return file_error(error, name_of(fd, path), f"write at byte {position}")


def _disk_full(fd: int, path: StrPath | None, needed_bytes: int) -> FileError:
    volume = os.fstatvfs(fd)
    free_bytes = volume.f_bavail * volume.f_frsize
    return FileError(
        f"{name_of(fd, path)}: disk full: needs {format_bytes(needed_bytes)}, has {format_bytes(free_bytes)} free"
    )


def _allocate(fd: int, nbytes: int) -> None:
    if sys.platform == "darwin":
        darwin.allocate(fd, nbytes)
    elif _lies_in_memory(fd):
        _check_room(fd, nbytes)
    else:
        _fallocate(fd, nbytes)


def _lies_in_memory(fd: int) -> bool:
    """Whether a file is in a file system of memory pages: allocating there means to clear all of them on one core."""
    device = os.fstat(fd).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            fields = [line.split() for line in mounts]
    except OSError:
        return False
    return any(line[2] == wanted and line[line.index("-") + 1] in ("tmpfs", "ramfs") for line in fields)


def _check_room(fd: int, nbytes: int) -> None:
    volume = os.fstatvfs(fd)
    missing_bytes = nbytes - os.fstat(fd).st_blocks * _BYTES_PER_STAT_BLOCK
    if volume.f_blocks and missing_bytes > volume.f_bavail * volume.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fallocate(fd: int, nbytes: int) -> None:
    """Linux's ``fallocate``, and not ``posix_fallocate``, for which glibc writes into every block of a file
    where the file system cannot allocate."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while fallocate(fd, 0, 0, nbytes) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def flush_to_disk(fd: int, path: StrPath | None = None) -> None:
    """Return once the file's bytes are on the medium, past the drive's own cache."""
    try:
        if sys.platform == "darwin":
            darwin.full_sync(fd)
        else:
            os.fsync(fd)
    except OSError as error:
        raise file_error(error, name_of(fd, path), "flush to disk") from error
