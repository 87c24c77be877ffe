"""Options that several commands have."""

from __future__ import annotations

import resource
from typing import Annotated

from lbrx.base.system import parse_bytes
from lbrx.cli.parameters import Option
from lbrx.errors import UsageError

_OPEN_FILES = 4096

Threads = Annotated[int | None, Option(min=1, help="Processors to use; all of them by default.")]
Memory = Annotated[
    str | None,
    Option(
        metavar="SIZE",
        help="The most memory for buffers, such as 512MB; by default a quarter of what is free, at most 4GiB.",
    ),
]


def _checked_shard_size(size: str | None) -> str | None:
    """Say it under the option's name if nothing could be written."""
    if size is not None and parse_bytes(size) == 0:
        raise UsageError(f"--shard-size is {size}; expected at least 1 byte")
    return size


ShardSize = Annotated[
    str | None,
    Option(
        metavar="SIZE",
        help="The largest file of weights; by default 5GB in a directory, no limit for GGUF.",
        check=_checked_shard_size,
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Print what would be done, and do nothing.")]
Strict = Annotated[bool, Option("--strict", help="Fail on NaN and infinite values.")]
JsonEvents = Annotated[bool, Option("--json", help="Print events as lines of JSON.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace OUT, once everything is written.")]
Restart = Annotated[bool, Option("--restart", help="Discard the unfinished work of an earlier run.")]
Sync = Annotated[bool, Option(help="Wait until the result is on the disk.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print errors only.")]


def allow_many_files() -> None:
    """Raise the soft limit of open files: macOS has 256, and every shard of every model is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
