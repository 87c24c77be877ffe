"""Running targets: every call may raise LbrxError only, within limits of time and memory."""

from __future__ import annotations

import faulthandler
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from random import Random

from fuzz.mutations import mutate
from fuzz.targets import Target, set_up
from lbrx.errors import LbrxError
from lbrx.settings import compile_listeners

MAX_SECONDS = 5.0  # of processor time
MAX_BYTES = 1 << 30
_HANG_SECONDS = 600.0  # by the clock: slow calls are found by their processor time
_KIB = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss


@dataclass
class Finding:
    """An input that must not do what it does."""

    target: str
    problem: str
    data: bytes
    details: str


@dataclass
class Outcome:
    """What a run did."""

    calls: int = 0
    slowest_seconds: float = 0.0
    peak_growth_bytes: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)  # by problem


class Runner:
    """Calls the readers of a target on inputs, in a temporary directory."""

    def __init__(self, target: Target, *, input_path: Path | None = None) -> None:
        set_up()
        self.target = target
        self.outcome = Outcome()
        self._folder = tempfile.TemporaryDirectory(prefix="lbrx-fuzz-", dir=_memory_directory())
        self._input_path = input_path
        self._compiled = 0
        compile_listeners.append(self._note_compiling)
        self._peak = _peak_bytes()

    def close(self) -> None:
        """Remove the temporary directory."""
        compile_listeners.remove(self._note_compiling)
        self._folder.cleanup()

    def _note_compiling(self) -> None:
        self._compiled += 1

    def run(self, data: bytes) -> None:
        """Call all readers on one input. A hang ends the process, which leaves the input behind."""
        if self._input_path is not None:
            self._input_path.write_bytes(data)
            faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        for number, read in enumerate(self.target.readers(Path(self._folder.name), data)):
            self._call(f"{self.target.name}[{number}]", read, data)
        if self._input_path is not None:
            faulthandler.cancel_dump_traceback_later()

    def _call(self, name: str, read: Callable[[], object], data: bytes) -> None:
        compiled, start = self._compiled, time.process_time()
        try:
            read()
        except LbrxError:
            pass
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            lines = traceback.extract_tb(error.__traceback__)
            own = [line for line in lines if "/lbrx/" in line.filename] or lines
            where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
            self._report(f"{name} {type(error).__name__} at {where}", data, traceback.format_exc())
        seconds = time.process_time() - start
        self.outcome.calls += 1
        if self._compiled != compiled:  # the time of a compiler is not that of the file
            self._peak = _peak_bytes()
            return
        growth, self._peak = _peak_bytes() - self._peak, _peak_bytes()
        self.outcome.slowest_seconds = max(self.outcome.slowest_seconds, seconds)
        self.outcome.peak_growth_bytes = max(self.outcome.peak_growth_bytes, growth)
        if seconds > MAX_SECONDS:
            self._report(f"{name} takes more than {MAX_SECONDS} s", data, f"{seconds:.1f} s")
        if growth > MAX_BYTES:
            self._report(f"{name} takes more than {MAX_BYTES} bytes", data, f"{growth} bytes")

    def _report(self, problem: str, data: bytes, details: str) -> None:
        self.outcome.findings.setdefault(problem, Finding(self.target.name, problem, data, details))


def inputs(target: Target, seed: int) -> Iterable[bytes]:
    """The seeds, then endless changes of them; the same for the same number."""
    seeds = target.seeds()
    yield from seeds
    for number in count():
        yield mutate(target.format, seeds, Random(f"{target.name} {seed} {number}"))


def run_target(
    target: Target, seed: int, *, most: int | None = None, seconds: float | None = None, input_path: Path | None = None
) -> Outcome:
    """Run a target on ``most`` inputs, or for some time."""
    runner = Runner(target, input_path=input_path)
    end = None if seconds is None else time.monotonic() + seconds
    try:
        for data in islice(inputs(target, seed), most):
            if end is not None and time.monotonic() > end:
                break
            runner.run(data)
    finally:
        runner.close()
    return runner.outcome


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def _memory_directory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
