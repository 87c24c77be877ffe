"""Reads of mapped files that become shorter meanwhile.

The system sends SIGBUS to a thread that touches a page behind the end of a mapped file, which would end the process.
Inside ``with guarded_reads()`` zeros take the place of the missing pages, so that the kernel that reads them goes on,
and the block raises TruncatedError at its end. A handler of SIGBUS is installed with the first mapping of a file. It
leaves all other faults to the handler before it.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
from collections.abc import Callable
from functools import wraps
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from lbrx.errors import TruncatedError

if TYPE_CHECKING:
    from lbrx.base.system.mapping import PinnedMapping

_IS_DARWIN: Final = sys.platform == "darwin"
_SIGINFO: Final = 0x40 if _IS_DARWIN else 4  # SA_SIGINFO
_ADDRESS_OFFSET: Final = 24 if _IS_DARWIN else 16  # of si_addr in siginfo_t
_MAP_FIXED: Final = 0x10

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """struct sigaction."""

    _fields_ = (
        [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint32), ("flags", ctypes.c_int)]
        if _IS_DARWIN
        else [
            ("handler", ctypes.c_void_p),
            ("mask", ctypes.c_uint8 * 128),
            ("flags", ctypes.c_int),
            ("restorer", ctypes.c_void_p),
        ]
    )


_libc = ctypes.CDLL(None, use_errno=True)
_sigaction = _libc.sigaction
_sigaction.argtypes = (ctypes.c_int, ctypes.POINTER(_Action), ctypes.POINTER(_Action))
_mmap = ctypes.CDLL(None).mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_mmap.restype = ctypes.c_void_p

_mapped: WeakValueDictionary[int, PinnedMapping] = WeakValueDictionary()
_numbers = count()
_blocks: list[None] = []  # one for each block that is guarded now, in any thread
_lost: list[str] = []  # the file of each fault
_previous = _Action()
_installed: list[Any] = []  # keeps the handler


def watch(mapping: PinnedMapping) -> None:
    """Guard reads of the mapping of a file, as long as it lives."""
    _mapped[next(_numbers)] = mapping
    if not _installed:
        handler = _Handler(_replace_pages)
        _installed.append(handler)
        action = _Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SIGINFO)
        _sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_previous))


class guarded_reads:
    """A block that raises TruncatedError at its end if a mapped file became shorter while it was read.

    Blocks may be nested. If several threads read while a file becomes shorter, all of them raise the error.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = len(_lost)
        _blocks.append(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _blocks.pop()
        if len(_lost) != self._before and kind is None:
            raise TruncatedError(f"{_lost[-1]}: the file became shorter while it was read")


def guarded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function whose calls are blocks of `guarded_reads`."""

    @wraps(function)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _T:
        with guarded_reads():
            return function(*arguments, **options)

    return run


def _replace_pages(_signal: int, info: int, _context: int) -> None:
    """Put zeros in place of the missing pages of a mapping. If that is not possible, the fault comes again."""
    address = ctypes.c_void_p.from_address(info + _ADDRESS_OFFSET).value or 0
    for reference in _mapped.valuerefs() if _blocks else ():
        mapping = reference()
        if mapping is not None and mapping.address <= address < mapping.end:
            first = address // mmap.PAGESIZE * mmap.PAGESIZE
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_FIXED
            if _mmap(first, mapping.end - first, mmap.PROT_READ, flags, -1, 0) == first:
                mapping.is_lost = True
                _lost.append(str(mapping.path))
                return
    _sigaction(signal.SIGBUS, ctypes.byref(_previous), None)
