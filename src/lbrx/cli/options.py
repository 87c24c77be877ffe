"""Options shared by several commands. A NamedTuple groups options."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from lbrx.base.system import parse_bytes
from lbrx.cli.parameters import Option
from lbrx.errors import UsageError
from lbrx.registry import DEVICES

Threads = Annotated[int | None, Option(min=1, help="Number of threads (default: all processors).")]
Memory = Annotated[
    str | None,
    Option(
        metavar="SIZE",
        help="Memory limit for buffers, such as 512MB (default: a quarter of the free memory, at most 4GiB).",
    ),
]


def _checked_shard_size(size: str | None) -> str | None:
    """Refuse a size of zero with the option's name in the message."""
    if size is not None and parse_bytes(size) == 0:
        raise UsageError(f"--shard-size is {size}; expected at least 1 byte")
    return size


ShardSize = Annotated[
    str | None,
    Option(
        metavar="SIZE",
        help="Maximum size of a weights file (default: 5GB in a directory, no limit for GGUF).",
        check=_checked_shard_size,
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Print the plan without running it.")]
Cluster = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="Run on a Ray cluster: 'auto' for the local one, or HOST:PORT. OUT must be on a shared disk.",
    ),
]
Device = Annotated[
    str | None,
    Option(
        metavar="|".join(DEVICES),
        help="Device to compute on.",
        values=lambda: DEVICES,
        check=lambda name: None if name == "cpu" else name,  # None means LBRX_DEVICE, or the CPU
    ),
]
FORMATS = ("gguf", "mlx", "safetensors")
Format = Annotated[
    str | None,
    Option(help="gguf, mlx or safetensors (default: from the name of OUT).", values=lambda: FORMATS),
]


def type_names() -> list[str]:
    """Return the names of all quantization types."""
    from lbrx.jobs.quantize.targets import target_names

    return target_names()


class LimitOptions(NamedTuple):
    """Limits on threads, memory and file size."""

    threads: Threads = None
    memory: Memory = None
    shard_size: ShardSize = None


class RunOptions(NamedTuple):
    """How to write the model and what to report."""

    strict: Annotated[bool, Option("--strict", help="Fail on NaN, infinities and unused recipe settings.")] = False
    json_output: Annotated[bool, Option("--json", help="Print events as JSON lines.")] = False
    overwrite: Annotated[bool, Option("--overwrite", help="Replace OUT after everything is written.")] = False
    restart: Annotated[bool, Option("--restart", help="Discard unfinished output of an earlier run.")] = False
    sync: Annotated[bool, Option(help="Wait until the result is on disk.")] = True
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print errors only.")] = False
