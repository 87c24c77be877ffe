"""The functions through which lbrx reaches the system, replaced for a while so that each call passes a hook."""

from __future__ import annotations

import builtins
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lbrx.base.system import files, names
from lbrx.memory.arena import MemoryArena

Perform = Callable[[], Any]


@dataclass(frozen=True)
class Call:
    """A call: its function, the paths it concerns, and what it writes where."""

    function: str
    paths: tuple[str, ...] = ()
    offset: int = 0
    data: bytes = b""


Hook = Callable[[Call, Perform], Any]


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _absolute(path: Any, dir_fd: int | None = None) -> str:
    text = os.fsdecode(path)
    return os.path.join(path_of(dir_fd), text) if dir_fd is not None else os.path.abspath(text)


@contextmanager
def intercepted(root: Path, hook: Hook) -> Iterator[None]:
    """Pass all calls that concern files below a directory, mappings, threads and allocations through a hook."""
    inside = f"{root.resolve()}/"

    def passed(call: Call, perform: Perform) -> Any:
        if call.paths and not any(path.startswith(inside) for path in call.paths):
            return perform()
        return hook(call, perform)

    with ExitStack() as stack:
        for owner, name, replacement in _replacements(passed):
            stack.enter_context(patch.object(owner, name, replacement))
        yield


def _replacements(hook: Hook) -> list[tuple[Any, str, Any]]:
    return [*_descriptors(hook), *_names(hook), *_resources(hook)]


def _descriptors(hook: Hook) -> list[tuple[Any, str, Any]]:
    os_open, io_open, pwrite = os.open, io.open, os.pwrite

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        call = Call("open", (_absolute(path, dir_fd),))
        return int(hook(call, lambda: os_open(path, flags, mode, dir_fd=dir_fd)))

    def opened_stream(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, int):
            return io_open(path, *arguments, **options)
        return hook(Call("open", (_absolute(path),)), lambda: io_open(path, *arguments, **options))

    def written(fd: int, data: Any, offset: int) -> int:
        call = Call("write", (path_of(fd),), offset, bytes(data))
        try:
            return int(hook(call, lambda: pwrite(fd, data, offset)))
        except BaseException:
            pwrite(fd, call.data[: len(call.data) // 2], offset)  # a torn write
            raise

    def by_descriptor(function: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(fd: int, *arguments: Any) -> Any:
            size = arguments[0] if function == "truncate" else 0
            return hook(Call(function, (path_of(fd),), size), lambda: original(fd, *arguments))

        return called

    return [
        (os, "open", opened),
        (io, "open", opened_stream),
        (builtins, "open", opened_stream),
        (os, "pwrite", written),
        (os, "pread", by_descriptor("read", os.pread)),
        (os, "preadv", by_descriptor("read", os.preadv)),
        (os, "fsync", by_descriptor("fsync", os.fsync)),
        (os, "ftruncate", by_descriptor("truncate", os.ftruncate)),
        (files, "_allocate", by_descriptor("fallocate", files._allocate)),
    ]


def _names(hook: Hook) -> list[tuple[Any, str, Any]]:
    def two_names(function: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(first: Any, second: Any) -> Any:
            return hook(Call(function, (_absolute(first), _absolute(second))), lambda: original(first, second))

        return called

    def one_name(function: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *arguments: Any, dir_fd: int | None = None) -> Any:
            return hook(Call(function, (_absolute(path, dir_fd),)), lambda: original(path, *arguments, dir_fd=dir_fd))

        return called

    return [
        (os, "replace", two_names("rename", os.replace)),
        (names, "_exchange", two_names("exchange", names._exchange)),
        (os, "mkdir", one_name("mkdir", os.mkdir)),
        (os, "unlink", one_name("unlink", os.unlink)),
        (os, "rmdir", one_name("rmdir", os.rmdir)),
    ]


def _resources(hook: Hook) -> list[tuple[Any, str, Any]]:
    start, get, mapping = threading.Thread.start, MemoryArena.get, mmap.mmap

    def started(thread: threading.Thread) -> None:
        hook(Call("thread"), lambda: start(thread))

    def allocated(arena: MemoryArena, nbytes: int) -> Any:
        return hook(Call("allocate"), lambda: get(arena, nbytes))

    class Mapping(mapping):  # type: ignore[misc,valid-type]
        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            return hook(Call("mmap"), lambda: mapping(*arguments, **options))

    return [
        (threading.Thread, "start", started),
        (MemoryArena, "get", allocated),
        (mmap, "mmap", Mapping),
    ]
