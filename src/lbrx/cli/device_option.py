"""The option ``--device``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from lbrx.cli.parameters import Option
from lbrx.errors import UsageError

Device = Annotated[str, Option(metavar="cpu|metal", help="Where to compute.")]


@contextmanager
def on_device(name: str, warn: Callable[[Sequence[str]], None], cluster: str | None = None) -> Iterator[None]:
    """Compute on a device for the length of a ``with`` block; at its end, warn of what was left to the CPU, and why.

    A device that is not there is an error before anything is written.
    """
    if name == "cpu":
        yield
        return
    if cluster is not None:
        raise UsageError(f"--device {name} is for this machine, but with --cluster {cluster} its workers compute")
    from lbrx.engine.device import CpuFallback, device, fallbacks
    from lbrx.settings import using

    device(name).open()
    before = set(fallbacks())
    with warnings.catch_warnings(), using(device=name):
        warnings.simplefilter("ignore", CpuFallback)
        yield
    warn([f"computed on the CPU in part: {reason}" for reason in fallbacks() if reason not in before])
