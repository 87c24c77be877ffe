"""Each call of a job fails: the n-th alone, the n-th and all later ones, or as if the process were killed there."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from typing import Any

from lbrx.errors import LbrxError
from reliability.calls import Call, Perform, intercepted
from reliability.jobs import Trial, WrongOutcomeError

MODES = ("once", "from then on", "kill")
_CODES = {"open": errno.EMFILE, "write": errno.ENOSPC, "fallocate": errno.ENOSPC, "mmap": errno.ENOMEM}


class Killed(BaseException):
    """Nothing of the process reaches the disk after this."""


class Fault:
    """A hook that counts calls and fails the n-th; 0 fails none."""

    def __init__(self, number: int = 0, mode: str = "once") -> None:
        self.number, self.mode = number, mode
        self.count = 0
        self.failed: list[Call] = []
        self._lock = threading.Lock()

    def __call__(self, call: Call, perform: Perform) -> Any:
        with self._lock:
            self.count += 1
            fails = self.count == self.number or (self.mode != "once" and 0 < self.number < self.count)
            if fails:
                self.failed.append(call)
        if fails:
            raise self._error(call)
        return perform()

    def _error(self, call: Call) -> BaseException:
        if self.mode == "kill":
            return Killed()
        if call.function == "thread":
            return RuntimeError("can't start new thread")
        if call.function == "allocate":
            return MemoryError()
        code = _CODES.get(call.function, errno.EIO)
        return OSError(code, os.strerror(code))


def count_calls(trial: Trial) -> int:
    """The calls of a job that nothing disturbs."""
    trial.reset()
    counting = Fault()
    with intercepted(trial.root, counting):
        trial.job.perform(trial)
    return counting.count


def try_fault(trial: Trial, number: int, mode: str) -> None:
    """Run a job with a fault and check what it leaves."""
    trial.reset()
    fault = Fault(number, mode)
    what = f"{trial.job.name}: call {number}, {mode}"
    try:
        with intercepted(trial.root, fault):
            trial.job.perform(trial)
    except (LbrxError, Killed):
        pass
    except (MemoryError, RuntimeError) as error:
        if not any(call.function in ("thread", "allocate") for call in fault.failed):
            raise WrongOutcomeError(f"{what}: {fault.failed[:2]} raised {error!r}") from error
    except Exception as error:
        raise WrongOutcomeError(f"{what}: {fault.failed[:2]} raised {error!r}") from error
    trial.check(f"{what} ({fault.failed[:1]})")


def try_faults(trial: Trial, numbers: Iterable[int]) -> int:
    """Try all modes for these calls; how many faults that were."""
    tried = 0
    for number in numbers:
        for mode in MODES:
            try_fault(trial, number, mode)
            tried += 1
    return tried
