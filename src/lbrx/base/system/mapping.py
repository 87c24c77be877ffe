"""Read-only file mappings and advice about their pages.

Advice goes through ``ctypes`` and not through ``mmap.madvise``, which holds the interpreter lock while the
kernel works: reading ahead in one thread would stop all others.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
from typing import Final

import numpy as np

from lbrx.base.system.files import StrPath, file_error, name_of
from lbrx.base.system.missing_pages import watch
from lbrx.errors import TruncatedError

_PAGE_BYTES: Final = mmap.PAGESIZE
_MADV_HUGEPAGE: Final = 14  # Linux
_MADV_POPULATE_READ: Final = 22  # Linux 5.14
_ACCESS_ADVICE: Final = {
    "normal": mmap.MADV_NORMAL,
    "sequential": mmap.MADV_SEQUENTIAL,
    "random": mmap.MADV_RANDOM,
}
_CANNOT_MAP = frozenset(
    {errno.ENODEV, errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EAGAIN}
    | {errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_mmap.restype = ctypes.c_void_p
_MAP_FIXED: Final = 0x10


def page_bytes() -> int:
    """Bytes of a page of memory: 16 KiB on Apple Silicon, usually 4 KiB elsewhere.

    >>> page_bytes() % 4096
    0
    """
    return _PAGE_BYTES


def map_readonly(fd: int, offset: int, length: int, path: StrPath | None = None) -> mmap.mmap | None:
    """Map a range of a file for reading, or None where that is not possible.

    A mapping starts at a page, so the file's byte at offset is the mapping's byte at ``offset % page_bytes()``.
    None is the answer for an empty range, a pipe or device, and a file system or process limit that refuses to
    map; positioned reads still work there. A range past the end of the file is a TruncatedError. The mapping does not
    keep the file open: the descriptor can be closed.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(b"x" * 100_000 + b"weights")
    ...     file.flush()
    ...     mapping = map_readonly(file.fileno(), 100_000, 7)
    >>> mapping[100_000 % page_bytes():]
    b'weights'
    """
    if length == 0 or not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    file_bytes = os.fstat(fd).st_size
    if offset + length > file_bytes:
        raise TruncatedError(
            f"{name_of(fd, path)}: has {file_bytes} bytes, but bytes {offset} to {offset + length} were expected"
        )
    lead = offset % _PAGE_BYTES
    try:
        return _map(fd, offset - lead, lead + length)
    except OSError as error:
        if error.errno in _CANNOT_MAP:
            return None
        raise file_error(error, name_of(fd, path), f"map bytes {offset} to {offset + length}") from error


def _map(fd: int, offset: int, length: int) -> mmap.mmap:
    """Map a file over addresses that Python has reserved.

    Python's own mappings of files keep a copy of the descriptor. On macOS they also flush the drive's cache first
    (``F_FULLFSYNC``), with the interpreter locked.
    """
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=mmap.PROT_READ)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    if _mmap(address, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd, offset) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return mapping


class PinnedMapping:
    """A mapping whose address is kept for cheap advice; the mapping cannot be closed while this lives.

    Ranges are given in bytes of the mapping and clipped to it. Advice to read covers every page that the range
    touches; advice to drop covers only pages that lie wholly in the range.
    """

    __slots__ = ("__weakref__", "_nbytes", "_view", "address", "is_lost", "path")

    def __init__(self, mapping: mmap.mmap, path: str | None = None) -> None:
        """Pin a mapping. With the path of its file, reads of it in ``guarded_reads`` cannot end the process."""
        self._view = np.frombuffer(mapping, dtype=np.uint8)  # the export that keeps the mapping open
        self.address = int(self._view.__array_interface__["data"][0])
        self._nbytes = self._view.nbytes
        self.path = path
        self.is_lost = False
        """Whether the file became shorter while it was read, so that zeros took the place of its pages."""
        if path is not None:
            watch(self)

    @property
    def end(self) -> int:
        """The address behind the last page."""
        return self.address + -(-self._nbytes // _PAGE_BYTES) * _PAGE_BYTES

    def will_need(self, start: int, length: int) -> bool:
        """The range will be read soon. Linux returns at once; macOS once the pages are there."""
        return self._advise(*self._touched_pages(start, length), mmap.MADV_WILLNEED)

    def dont_need(self, start: int, length: int) -> bool:
        """The range has been read and may leave memory.

        Linux unmaps its pages at once, so the process's resident size falls; the file cache keeps them while it
        has memory. macOS moves the pages to the inactive list: the first that it takes back when memory is short,
        though until then the resident size still counts them. MADV_FREE, which discards contents, and
        ``msync(MS_INVALIDATE)``, which empties the cache for every process, would be wrong for a file.
        """
        return self._advise(*self._whole_pages(start, length), mmap.MADV_DONTNEED)

    def expect(self, access: str, start: int, length: int) -> bool:
        """Say how the range will be read: "normal", "sequential" or "random"."""
        return self._advise(*self._touched_pages(start, length), _ACCESS_ADVICE[access])

    def populate(self, start: int, length: int) -> None:
        """Read the range and map its pages before returning. The file must not be shorter than the mapping."""
        first, end = self._touched_pages(start, length)
        if end > first and (sys.platform == "darwin" or not self._advise(first, end, _MADV_POPULATE_READ)):
            self.will_need(start, length)
            self._view[first:end:_PAGE_BYTES].max()  # touches each page

    def huge_pages(self) -> bool:
        """Back an anonymous mapping by huge pages; macOS chooses its page size itself."""
        return sys.platform != "darwin" and self._advise(0, self._nbytes, _MADV_HUGEPAGE)

    def _touched_pages(self, start: int, length: int) -> tuple[int, int]:
        first = max(start, 0) // _PAGE_BYTES * _PAGE_BYTES
        return first, min(start + length, self._nbytes)

    def _whole_pages(self, start: int, length: int) -> tuple[int, int]:
        first = -(-max(start, 0) // _PAGE_BYTES) * _PAGE_BYTES
        end = start + length
        # Nothing else can lie behind the mapping's end, so its last page is whole even if the file stops in it.
        return first, self._nbytes if end >= self._nbytes else end // _PAGE_BYTES * _PAGE_BYTES

    def _advise(self, first: int, end: int, advice: int) -> bool:
        return end <= first or _madvise(self.address + first, end - first, advice) == 0
