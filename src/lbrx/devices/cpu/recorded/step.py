"""A recording, compiled for the CPU: tables of tasks that compiled code walks through, with the helpers of the team."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base import system
from lbrx.base.threads import is_inside_step
from lbrx.devices.cpu.build.kernel_cache import EXCEPTION_ADDRESS, RESULT_ADDRESS
from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import check_status, team
from lbrx.devices.cpu.recorded.lowering import Lowering
from lbrx.devices.cpu.recorded.phases import in_phases
from lbrx.devices.cpu.recorded.tasks import At, Job
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import Recording
from lbrx.settings import settings

_JOB_WORDS, _TASK_WORDS, _PHASE_WORDS = 32, 8, 4
_STATUS = 1  # the word of a job
_BLOCKS = 5  # the word of a task
Numbers = npt.NDArray[np.int64]


class Step:
    """Runs a recording; see `lbrx.engine.recording.CompiledStep`."""

    def __init__(self, recording: Recording) -> None:
        lowered = Lowering(recording)
        slots, tasks = lowered.slots, lowered.tasks
        lasting = (recording.output.slot, *(view.slot for view in recording.inputs))
        slots.plan(tasks, lasting)
        self._lowered, self._tasks, self._recording = lowered, tasks, recording
        self.inputs: Sequence[npt.NDArray[Any]] = [slots.array(view) for view in recording.inputs]
        self._output = slots.array(recording.output)
        self._jobs = np.zeros((len(tasks), _JOB_WORDS), np.int64)
        self._always = np.ones(1, np.float32)  # guards tasks of Python

        def block_of(name: Hashable) -> Hashable:
            return slots.offset(name) if isinstance(name, int) else name

        self._phases = in_phases(tasks, block_of)
        self._table = self._task_table()
        self._starts = np.cumsum([0, *(len(phase) for phase in self._phases)])[:-1]
        self._phase_table = self._phases_of_table()
        self._checked = np.array([task.has_status for task in tasks])
        self._reached = np.zeros(2, np.int64)
        self._placed: tuple[weakref.ref[KeyValueCache], int] | None = None
        self._walk = compiled("walk", "walk", 7)
        self._do_blocks = compiled("walk", "do_blocks", 4)
        self._blocks_address = code_address("walk", "do_blocks", 4)

    @property
    def _order(self) -> list[int]:
        return [number for phase in self._phases for number in phase]

    def _word(self, word: int | At | Job | None) -> int:
        if isinstance(word, At):
            return self._lowered.slots.address(word.slot) + word.offset
        if isinstance(word, Job):
            return address(self._jobs) + 8 * _JOB_WORDS * word.task + word.offset
        return word or 0

    def _task_table(self) -> Numbers:
        for row, task in zip(self._jobs, self._tasks, strict=True):
            row[: len(task.job)] = [self._word(word) for word in task.job]
        table = np.zeros((len(self._tasks), _TASK_WORDS), np.int64)
        for row, number in zip(table, self._order, strict=True):
            task = self._tasks[number]
            guard = self._word(task.guard) if task.function else address(self._always)
            work = task.second, task.elements, task.block, -(-task.elements // task.block)
            row[:] = task.function, self._word(Job(number, 0)), *work, guard, 0
        return table

    def _phases_of_table(self) -> Numbers:
        table = np.zeros((len(self._phases), _PHASE_WORDS), np.int64)
        table[:, 0] = address(self._table) + 8 * _TASK_WORDS * self._starts
        table[:, 1] = [len(phase) for phase in self._phases]
        table[:, 2] = np.add.reduceat(self._table[:, _BLOCKS], self._starts)
        return table

    def _place(self, cache: KeyValueCache) -> None:
        """Tell the tasks where keys and values are."""
        if self._placed is not None and self._placed[0]() is cache and self._placed[1] == cache.version:
            return
        for row, layer in zip(self._lowered.places, cache.layers, strict=False):
            keys, values = layer.keys, layer.values
            strides = keys.strides[1], values.strides[1]
            row[:] = address(keys), keys.strides[0], address(values), values.strides[0], *strides
        self._placed = weakref.ref(cache), cache.version

    @system.guarded
    def run(self, cache: KeyValueCache) -> npt.NDArray[Any]:
        """Run all operations for tokens that follow those in the cache. The result is valid until the next run."""
        for file in self._lowered.files.values():
            file.check_unchanged()  # raises if the weights are no longer there
        tokens = self._recording.tokens
        cache.reserve(tokens)
        self._place(cache)
        self._lowered.state[:] = cache.length, cache.length + tokens
        self._lowered.cache = cache
        self._forget_status()
        try:
            self._run_all()
        finally:
            self._lowered.cache = None
        return self._output

    def _forget_status(self) -> None:
        """Forget that an earlier run has failed."""
        self._reached[1] = 0
        self._jobs[self._checked, _STATUS] = 0

    @system.guarded
    def run_beside(self, others: Sequence[Step]) -> list[npt.NDArray[Any]] | None:
        """Run this step and others of the same form at the same time; none of them has attention or calls Python.

        Returns the results, or None if they have to be run one by one.
        """
        steps = (self, *others)
        if any(len(step._phases) != len(self._phases) for step in steps):
            return None
        files = {number: file for step in steps for number, file in step._lowered.files.items()}
        for file in files.values():
            file.check_unchanged()
        for step in steps:
            step._forget_status()
        by_phase = zip(*(step._pieces for step in steps), strict=True)
        table = np.concatenate([piece for phase in by_phase for piece in phase])
        phases = np.zeros((len(self._phases), _PHASE_WORDS), np.int64)
        phases[:, 1:3] = sum(step._phase_table[:, 1:3] for step in steps)
        phases[1:, 0] = 8 * _TASK_WORDS * np.cumsum(phases[:-1, 1])
        phases[:, 0] += address(table)
        threads = 1 if is_inside_step() else min(settings.threads, team().fast_processors)
        rest = 0, len(self._phases), self._blocks_address, address(self._reached)
        with team().helping(threads) as board:
            self._walk(RESULT_ADDRESS, EXCEPTION_ADDRESS, board, threads, address(phases), *rest)
        if self._reached[0] != len(self._phases):
            return None
        failed = any(bool(step._jobs[step._checked, _STATUS].any()) for step in steps)
        check_status(int(self._reached[1]) or int(failed))
        return [step._output for step in steps]

    @cached_property
    def _pieces(self) -> list[Numbers]:
        """The rows of the table of each phase."""
        return np.split(self._table, self._starts[1:])

    def _run_all(self) -> None:
        at, threads = 0, 1 if is_inside_step() else min(settings.threads, team().fast_processors)
        while True:
            at = self._walk_from(at, threads)
            if at == len(self._phases):
                return
            self._run_phase(at)
            at += 1

    def _walk_from(self, first: int, threads: int) -> int:
        """Run phases until one that needs Python; return its number."""
        reached = self._reached
        phases, rest = address(self._phase_table), (first, len(self._phases), self._blocks_address, address(reached))
        with team().helping(threads) as board:
            self._walk(RESULT_ADDRESS, EXCEPTION_ADDRESS, board, threads, phases, *rest)
        check_status(int(reached[1]) or int(self._jobs[self._checked, _STATUS].any()))
        return int(reached[0])

    def _run_phase(self, number: int) -> None:
        """Run the tasks of a phase one by one; those that are guarded in Python."""
        first = int(self._starts[number])
        for row, task_number in enumerate(self._phases[number], first):
            task = self._tasks[task_number]
            guard = np.float32(0.0) if task.guard is None else self._watched(task.guard)
            if task.python is not None and (not task.function or guard != 0):
                task.python()
                continue
            start = address(self._table) + 8 * _TASK_WORDS * row
            blocks = int(self._table[row, _BLOCKS])
            check_status(self._do_blocks(RESULT_ADDRESS, EXCEPTION_ADDRESS, start, 1, 0, blocks))

    def _watched(self, guard: Job) -> np.float32:
        words: Sequence[np.float32] = self._jobs[guard.task].view(np.float32)
        return words[guard.offset // 4]
