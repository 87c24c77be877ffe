"""Locks between processes and threads, named by a file."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbrx.base import system

_POLL_SECONDS = 0.05
_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)  # the file system has none: go on without


def open_locked(path: str | os.PathLike[str], *, wait_seconds: float = 0.0, must_exist: bool = False) -> int | None:
    """Open a file, made if missing, and lock it; None if another process or thread holds the lock for so long.

    The lock ends when the descriptor is closed, or with the process. Not reentrant.
    """
    until = time.monotonic() + wait_seconds
    while True:
        descriptor = system.open_write(path, must_exist=must_exist)
        is_locked = _try_lock(descriptor)
        # Whoever held the lock before may have removed the file: a lock on a nameless file guards nothing.
        if is_locked and _is_same(path, descriptor):
            return descriptor
        os.close(descriptor)
        if not is_locked:
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_SECONDS)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    return True


def _is_same(path: str | os.PathLike[str], descriptor: int) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


@contextmanager
def file_lock(path: str | os.PathLike[str], *, wait_seconds: float = math.inf) -> Iterator[None]:
    """Hold the lock of a file within the block, or go on without it after so many seconds. Its directory is made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, file_lock(f"{directory}/compile.lock"):
    ...     print("alone")
    alone
    """
    system.make_directory(Path(path).parent)
    descriptor = open_locked(path, wait_seconds=wait_seconds)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
