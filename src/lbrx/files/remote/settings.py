"""Settings for remote files: retries, timeouts, block size and cache size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import cache_directory, parse_bytes
from lbrx.errors import UsageError

CACHE_VARIABLE = "LBRX_REMOTE_CACHE"
WORK_VARIABLE = "LBRX_REMOTE_WORK"


@dataclass(slots=True)
class RemoteSettings:
    """A request has ``attempts`` tries, each aborted after ``timeout_seconds`` without data; the pause between them
    starts at ``pause_seconds`` and doubles. Reads fetch whole blocks of ``block_bytes`` and prefetch ``ahead_blocks``,
    at most ``transfers`` at once; ``cache_bytes`` of blocks are kept in memory. Uploads have parts of ``part_bytes``.
    """

    attempts: int = 5
    timeout_seconds: float = 30.0
    pause_seconds: float = 0.2
    block_bytes: int = 4 << 20
    ahead_blocks: int = 4
    transfers: int = 8
    cache_bytes: int = 256 << 20
    part_bytes: int = 16 << 20


def _from_environment() -> RemoteSettings:
    text = os.environ.get(CACHE_VARIABLE)
    return RemoteSettings() if text is None else RemoteSettings(cache_bytes=parse_bytes(text))


remote_settings = _from_environment()


@contextmanager
def using_remote(**changes: Any) -> Iterator[RemoteSettings]:
    """Change settings within a ``with`` block.

    >>> with using_remote(attempts=2) as current:
    ...     current.attempts
    2
    """
    names = [field.name for field in fields(RemoteSettings)]
    for name, value in changes.items():
        if name not in names:
            raise UsageError(f"unknown remote setting {name!r}; expected one of {', '.join(names)}")
        if value <= 0:
            raise UsageError(f"{name} is {value}; expected more than 0")
    before = replace(remote_settings)
    for name, value in changes.items():
        setattr(remote_settings, name, value)
    try:
        yield remote_settings
    finally:
        for name in names:
            setattr(remote_settings, name, getattr(before, name))


def work_directory() -> Path:
    """Return the directory for shards before their upload: ``LBRX_REMOTE_WORK``, or a folder in the user's cache."""
    text = os.environ.get(WORK_VARIABLE)
    return cache_directory() / "uploads" if text is None else Path(text)
