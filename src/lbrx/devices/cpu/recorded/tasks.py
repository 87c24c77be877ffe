"""Tasks of a recorded step before their memory is planned: a job's words may be addresses in slots."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from typing import NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.recording import View


@dataclass(frozen=True, slots=True)
class At:
    """An address: some bytes behind the beginning of a slot."""

    slot: int
    offset: int = 0

    def __add__(self, nbytes: int) -> At:
        return At(self.slot, self.offset + nbytes)


class Job(NamedTuple):
    """An address: some bytes behind the beginning of the job of a task."""

    task: int
    offset: int


Word = int | At


def start_of(view: View) -> At:
    return At(view.slot, view.offset)


@dataclass(slots=True)
class Task:
    """A compiled function over some elements, in pieces of whole blocks; or a function of Python.

    ``reads`` and ``writes`` are slots, or names of other memory. A task with a ``guard`` is left to ``python`` if the
    f32 there is not 0; a task without a function always is.
    """

    function: int = 0
    job: tuple[Word, ...] = ()
    second: int = 0
    elements: int = 1
    block: int = 1
    reads: tuple[Hashable, ...] = ()
    writes: tuple[Hashable, ...] = ()
    guard: Job | None = None
    has_status: bool = True  # the second word of the job is set if the function fails
    python: Callable[[], None] | None = None
    kept: tuple[object, ...] = field(default=())  # what owns the memory behind addresses
