"""The option ``--device``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lbrx.errors import UsageError

if TYPE_CHECKING:
    from lbrx.cli.progress import Reporter

Device = Annotated[str, typer.Option(metavar="cpu|metal", help="Where to compute. What is written is the same.")]


@contextmanager
def on_device(name: str, report: Reporter, cluster: str | None) -> Iterator[None]:
    """Compute on a device for the length of a ``with`` block; at its end, say what was left to the CPU, and why.

    A device that is not there is an error before anything is written.
    """
    if name == "cpu":
        yield
        return
    if cluster is not None:
        raise UsageError(f"--device {name} is for this machine, but with --cluster {cluster} its workers compute")
    from lbrx.devices.device import CpuFallback, checked_device, fallbacks, metal_context
    from lbrx.settings import using

    checked_device(name)
    metal_context()
    before = set(fallbacks())
    with warnings.catch_warnings(), using(device=name):
        warnings.simplefilter("ignore", CpuFallback)
        yield
    report.warnings([f"computed on the CPU in part: {reason}" for reason in fallbacks() if reason not in before])
