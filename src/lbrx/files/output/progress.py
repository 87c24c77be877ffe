"""How far a job is: what the callbacks of jobs are called with."""

from __future__ import annotations

from collections.abc import Callable

from lbrx.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is that writes tensors.

    ``tensor`` was finished last, ``at_hand`` is computed now if that is one large tensor. ``resumed_bytes`` were done
    by an earlier run.
    """

    done_bytes: int
    total_bytes: int
    done_tensors: int
    total_tensors: int
    tensor: str
    at_hand: str | None = None
    resumed_bytes: int = 0


ProgressCallback = Callable[[Progress], None]
CountCallback = Callable[[int, int, str], None]
"""For jobs that write nothing: called with the number of steps done, of all steps, and the name of the last one."""
