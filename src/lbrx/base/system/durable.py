"""What outlives a crash and what two processes agree on: flushes, atomic renames, locks."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbrx.base.system import darwin
from lbrx.base.system.files import StrPath, file_error, name_of

_CANNOT_SYNC_DIRECTORY = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def flush_to_disk(fd: int, path: StrPath | None = None) -> None:
    """Return once the file's bytes are on the medium, past the drive's own cache."""
    try:
        if sys.platform == "darwin":
            darwin.full_sync(fd)
        else:
            os.fsync(fd)
    except OSError as error:
        raise file_error(error, name_of(fd, path), "flush to disk") from error


def sync_directory(path: StrPath) -> None:
    """Make the names in a directory, such as a rename just done, survive a crash.

    File systems that cannot flush a directory order its changes themselves and are left alone.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_DIRECTORY:
            raise file_error(error, path, "flush the directory") from error


def replace_atomically(temporary: StrPath, target: StrPath) -> None:
    """Rename a finished file onto its target: a reader or a crash sees the old file or the new one, whole.

    The caller flushes the temporary file first. Both must be on one file system.
    """
    replace_unsynced(temporary, target)
    sync_directory(Path(target).parent)


def replace_unsynced(temporary: StrPath, target: StrPath) -> None:
    """``replace_atomically`` without waiting: a crash of the machine may undo it."""
    try:
        os.replace(temporary, target)
    except OSError as error:
        raise file_error(error, target, f"replace by {os.fspath(temporary)}") from error


@contextmanager
def file_lock(path: StrPath) -> Iterator[None]:
    """Hold an exclusive lock between processes and threads, named by a file that is made if missing.

    The lock ends with the block, or with the process. The file stays: removing it would let two processes lock
    two different files of one name. Not reentrant.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, file_lock(f"{directory}/compile.lock"):
    ...     print("alone")
    alone
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise file_error(error, path, "open the lock file") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise file_error(error, path, "lock") from error
        yield
    finally:
        os.close(fd)
