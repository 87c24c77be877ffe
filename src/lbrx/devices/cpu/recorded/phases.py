"""Order the tasks of a step in phases: the tasks of a phase do not depend on each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from lbrx.devices.cpu.recorded.tasks import Task


def in_phases(tasks: Sequence[Task], block_of: Callable[[Hashable], Hashable]) -> list[list[int]]:
    """Return the numbers of the tasks by phase, each as early as possible.

    ``block_of`` says which memory a slot is in. A task comes after those that wrote what it reads, and after those that
    read or wrote what it writes. A task of Python has a phase to itself.
    """
    written: dict[Hashable, int] = defaultdict(lambda: -1)  # the last phase that wrote a block
    read: dict[Hashable, int] = defaultdict(lambda: -1)
    phases: list[list[int]] = []
    first = 0
    for number, task in enumerate(tasks):
        reads, writes = ([block_of(each) for each in names] for names in (task.reads, task.writes))
        after = [written[each] for each in (*reads, *writes)] + [read[each] for each in writes]
        phase = len(phases) if not task.function else max(first, *(before + 1 for before in after))
        while len(phases) <= phase:
            phases.append([])
        phases[phase].append(number)
        for each in reads:
            read[each] = max(read[each], phase)
        for each in writes:
            written[each] = phase
        if not task.function:
            first = phase + 1
    return phases
