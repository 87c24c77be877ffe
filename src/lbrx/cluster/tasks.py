"""From the slots of a plan to tasks of about equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.header import FileLayout, Slot

MIN_TASK_BYTES = 16 << 20
MAX_TASK_BYTES = 512 << 20
TASKS_PER_WORKER = 8


@dataclass(frozen=True, slots=True)
class Task:
    """Neighbouring slots of one file. ``number`` is its index among the tasks."""

    number: int
    layout_index: int
    slots: tuple[Slot, ...]

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots)


def task_size(waiting_bytes: int, workers: int) -> int:
    """Bytes of a task: several for each worker, so that none is long at the end, and not so small that they cost more
    to send than to do.

    >>> task_size(1 << 40, 64) >> 20, task_size(1 << 20, 2) >> 20
    (512, 16)
    """
    return min(max(waiting_bytes // (max(workers, 1) * TASKS_PER_WORKER), MIN_TASK_BYTES), MAX_TASK_BYTES)


def group_slots(layouts: Sequence[FileLayout], done: Sequence[str] | frozenset[str], max_bytes: int) -> list[Task]:
    """Slots that are not done, in the order of the files: neighbours read neighbours. A slot is never cut.

    >>> slots = tuple(Slot(name, "u8", (10,), 0, 10) for name in "abcd")
    >>> tasks = group_slots([FileLayout("x", b"", slots, 40)], {"b"}, 20)
    >>> [[slot.name for slot in task.slots] for task in tasks]
    [['a', 'c'], ['d']]
    """
    finished = frozenset(done)
    groups = [
        (index, group)
        for index, layout in enumerate(layouts)
        for group in _groups([slot for slot in layout.slots if slot.name not in finished], max_bytes)
    ]
    return [Task(number, index, group) for number, (index, group) in enumerate(groups)]


def whole_files(layouts: Sequence[FileLayout], done: Sequence[str] | frozenset[str]) -> list[Task]:
    """A task for each file that has slots which are not done: for outputs that are uploaded file by file."""
    finished = frozenset(done)
    waiting = [index for index, layout in enumerate(layouts) if any(slot.name not in finished for slot in layout.slots)]
    return [Task(number, index, layouts[index].slots) for number, index in enumerate(waiting)]


def _groups(slots: Sequence[Slot], max_bytes: int) -> Iterator[tuple[Slot, ...]]:
    group: list[Slot] = []
    held_bytes = 0
    for slot in slots:
        if group and held_bytes + slot.nbytes > max_bytes:
            yield tuple(group)
            group, held_bytes = [], 0
        group.append(slot)
        held_bytes += slot.nbytes
    if group:
        yield tuple(group)
