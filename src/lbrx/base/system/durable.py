"""Flushes: what is on the disk after a crash."""

from __future__ import annotations

import errno
import os
import sys

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
