"""Names in directories: making, renaming, exchanging and removing files and directories.

A change of names survives a crash of the machine only after `sync_directory`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

from lbrx.base.system import darwin
from lbrx.base.system.files import StrPath, file_error

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_CANNOT_SYNC_DIRECTORY = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: StrPath) -> None:
    """Make a directory, and those above it. One that exists is left as it is."""
    _make_directory(os.fspath(path), 0o777)


def make_private(path: StrPath) -> None:
    """Make a directory and its missing parents, in which only this user can write."""
    _make_directory(os.fspath(path), 0o700)


def rename(source: StrPath, target: StrPath) -> None:
    """Give a file or directory another name on the same file system. An old file of that name is replaced."""
    try:
        os.replace(source, target)
    except OSError as error:
        raise file_error(error, target, f"replace by {os.fspath(source)}") from error


def exchange(first: StrPath, second: StrPath) -> bool:
    """Swap two names in one step; False if the system or the file system cannot do that."""
    try:
        _exchange(os.fsencode(first), os.fsencode(second))
    except OSError as error:
        if error.errno in _CANNOT_EXCHANGE:
            return False
        raise file_error(error, second, f"replace by {os.fspath(first)}") from error
    return True


def remove_file(path: StrPath) -> None:
    """Remove a file, if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error, path, "be removed") from error


def remove_tree(path: StrPath) -> None:
    """Remove a directory, if it exists, and everything in it. Symbolic links are not followed.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> make_directory(folder / "a" / "b")
    >>> remove_tree(folder)
    >>> folder.exists()
    False
    """
    try:
        _remove_tree(os.fspath(path), None)
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error(error, path, "be removed") from error


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


def _make_directory(path: str, mode: int) -> None:
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        _make_directory(parent, mode)
    try:
        os.mkdir(path, mode)
    except OSError as error:
        if not os.path.isdir(path):  # some systems refuse a name that exists for another reason than that
            raise file_error(error, path, "be made") from error


def _remove_tree(path: str, parent_fd: int | None) -> None:
    fd = os.open(path, _DIRECTORY_FLAGS, dir_fd=parent_fd)
    try:
        with os.scandir(fd) as entries:
            names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        for name, is_directory in names:
            if is_directory:
                _remove_tree(name, fd)
            else:
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(path, dir_fd=parent_fd)


def _exchange(first: bytes, second: bytes) -> None:
    if sys.platform == "darwin":
        darwin.swap(first, second)
        return
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:  # an old C library
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
