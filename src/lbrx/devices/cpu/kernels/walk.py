"""The compiled side of recorded steps: phases one after the other, and the blocks of a phase by a team.

``phases`` has four int64 numbers for each phase: the address of its tasks, how many there are, and their blocks.
A task has eight: the function, its job, its second argument, the elements, the elements of a block, the blocks, and the
address of an f32 that stops the walk if it is not 0, or 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.devices.cpu.kernels import team
from lbrx.devices.cpu.kernels.team_board import LEAST_PER_THREAD, SHARES_PER_THREAD, STATUS
from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.elements import load_i64, store_i64
from lbrx.devices.cpu.simd.instruction import jit
from lbrx.devices.cpu.simd.memory import peek_f32, peek_i64, stack_bytes

PHASE_WORDS, TASK_WORDS = 4, 8
_call, _lead = make_call(6), jit(team.lead)


@jit
def _is_stopped(tasks: Any, count: Any) -> Any:
    """Whether a task cannot be run here."""
    for number in range(count):
        guard = load_i64(tasks, TASK_WORDS * number + 6)
        if guard != 0 and peek_f32(guard, 0) != np.float32(0.0):
            return True
    return False


def do_blocks(tasks: int, count: int, first: int, stop: int) -> None:
    """Do blocks ``first`` to ``stop`` - 1, counted through all tasks of a phase."""
    scratch = stack_bytes(16)
    passed = 0
    for number in range(count):
        task = tasks + 8 * TASK_WORDS * number
        elements, block, blocks = load_i64(task, 3), load_i64(task, 4), load_i64(task, 5)
        low, high = block * max(first - passed, 0), min(block * min(stop - passed, blocks), elements)
        if low < high:
            _call(load_i64(task, 0), (scratch, scratch + 8, load_i64(task, 1), load_i64(task, 2), low, high))
        passed += blocks


def walk(board: int, threads: int, phases: int, first: int, stop: int, function: int, reached: int) -> None:
    """Run phases ``first`` to ``stop`` - 1, with the helpers at a board or alone if it is 0.

    ``function`` is the address of `do_blocks`. Writes the number of the phase that cannot be run here, or ``stop``, to
    ``reached``, and then a status.
    """
    scratch = stack_bytes(16)
    for number in range(first, stop):
        phase = phases + 8 * PHASE_WORDS * number
        tasks, count, blocks = load_i64(phase, 0), load_i64(phase, 1), load_i64(phase, 2)
        if _is_stopped(tasks, count):
            store_i64(reached, 0, number)
            return
        if board == 0 or blocks <= count:
            status = _call(function, (scratch, scratch + 8, tasks, count, 0, blocks))
        else:
            least = max(blocks // (LEAST_PER_THREAD * threads), 1)
            _lead(board, function, tasks, count, 0, blocks, 1, least, blocks, SHARES_PER_THREAD * threads, scratch)
            status = peek_i64(board, STATUS)
        if status != 0:
            store_i64(reached, 1, status)
    store_i64(reached, 0, stop)
