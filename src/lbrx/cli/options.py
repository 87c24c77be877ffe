"""Options that several commands have. A record stands for all of its options."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from lbrx.base.system import parse_bytes
from lbrx.cli.parameters import Option
from lbrx.errors import UsageError
from lbrx.registry import DEVICES

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
Cluster = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="Compute on a Ray cluster: 'auto' for the one of this machine, or HOST:PORT. OUT is on a shared disk.",
    ),
]
Device = Annotated[
    str | None,
    Option(
        metavar="|".join(DEVICES),
        help="Where to compute.",
        values=lambda: DEVICES,
        check=lambda name: None if name == "cpu" else name,  # LBRX_DEVICE holds then
    ),
]
FORMATS = ("gguf", "mlx", "safetensors")
Format = Annotated[
    str | None,
    Option(help="gguf, mlx or safetensors; by default the format that OUT ends in.", values=lambda: FORMATS),
]


def type_names() -> list[str]:
    """What a model can be quantized to."""
    from lbrx.jobs.quantize.targets import target_names

    return target_names()


class LimitOptions(NamedTuple):
    """How much of the machine a command takes, and how large its files are."""

    threads: Threads = None
    memory: Memory = None
    shard_size: ShardSize = None


class RunOptions(NamedTuple):
    """How a model is written and what is reported."""

    strict: Annotated[bool, Option("--strict", help="Fail on NaN and infinite values.")] = False
    json_output: Annotated[bool, Option("--json", help="Print events as lines of JSON.")] = False
    overwrite: Annotated[bool, Option("--overwrite", help="Replace OUT, once everything is written.")] = False
    restart: Annotated[bool, Option("--restart", help="Discard the unfinished work of an earlier run.")] = False
    sync: Annotated[bool, Option(help="Wait until the result is on the disk.")] = True
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print errors only.")] = False
