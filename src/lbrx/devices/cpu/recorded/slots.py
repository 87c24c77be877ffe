"""The memory of a step: slots share memory if they are not needed at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.recorded.tasks import Task
from lbrx.engine.recording import View

_ALIGNMENT = 64


class Slots:
    """Slots by number, and their addresses once they are planned."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._offsets: list[int] = []
        self._arrays: dict[View, npt.NDArray[Any]] = {}
        self._memory = np.empty(0, np.uint8)

    def new(self, nbytes: int) -> int:
        """Return a further slot."""
        self._sizes.append(nbytes)
        return len(self._sizes) - 1

    def plan(self, tasks: Sequence[Task], lasting: Sequence[int]) -> None:
        """Choose addresses. A slot is needed from its first task to its last; those that are ``lasting`` always are."""
        needed: dict[int, tuple[int, int]] = {}
        for number, task in enumerate(tasks):
            for slot in (*task.reads, *task.writes):
                if isinstance(slot, int):
                    needed[slot] = needed.get(slot, (number, number))[0], number
        needed |= dict.fromkeys(lasting, (-1, len(tasks)))
        self._offsets = [0] * len(self._sizes)
        free: list[tuple[int, int]] = []  # bytes and offset
        in_use: list[tuple[int, int, int]] = []  # last task, bytes and offset
        end = 0
        for slot, (first, last) in sorted(needed.items(), key=lambda item: (item[1][0], item[0])):
            free += [block[1:] for block in in_use if block[0] < first]
            in_use = [block for block in in_use if block[0] >= first]
            nbytes = -(-self._sizes[slot] // _ALIGNMENT) * _ALIGNMENT
            fitting = min((block for block in free if block[0] >= nbytes), default=None)
            if fitting is None:
                fitting, end = (nbytes, end), end + nbytes
            else:
                free.remove(fitting)
            self._offsets[slot] = fitting[1]
            in_use.append((last, *fitting))
        whole = np.zeros(end + _ALIGNMENT, np.uint8)
        first_byte = -whole.ctypes.data % _ALIGNMENT
        self._memory = whole[first_byte : first_byte + end]

    def offset(self, slot: int) -> int:
        """Return where a slot begins: slots with the same offset share memory."""
        return self._offsets[slot]

    def address(self, slot: int) -> int:
        return int(self._memory.ctypes.data) + self._offsets[slot]

    def array(self, view: View) -> npt.NDArray[Any]:
        """Return an array over the memory of a view."""
        known = self._arrays.get(view)
        if known is None:
            start = self._offsets[view.slot] + view.offset
            known = np.ndarray(view.shape, view.dtype, self._memory.data, start, view.strides)
            self._arrays[view] = known
        return known
