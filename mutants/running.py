"""Running tests in a copy of the tree: in a fork of a process that has imported all (warm), or in a new one (cold)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import psutil

HANGING = 5  # times as long by the clock as the processor time that a run may take
MOST_BYTES = 6 << 30  # resident memory of a test run
START_SECONDS = 1800.0  # for importing all tests on a busy machine
_OPTIONS = ("-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--doctest-modules")
_Result = tuple[int | None, str]  # exit status, None if it took too much; and what was printed


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def run_cold(tree: Path, arguments: Sequence[str], most_seconds: float) -> _Result:
    """Run tests in a new process."""
    with TemporaryDirectory() as scratch:
        output = Path(scratch) / "output"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *_listed(arguments, Path(scratch))],
                cwd=tree,
                env=environment(tree),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            is_done = _is_done_within(most_seconds, process.pid, lambda seconds: _has_ended(process, seconds))
        finally:
            _end(process.pid)
            process.wait()
        return process.returncode if is_done else None, output.read_text(errors="replace")


class WarmTests:
    """A process of ``mutants.warm`` for a tree. ``start`` it before the tree has a mutant: it imports all sources."""

    def __init__(self, tree: Path, test_files: Sequence[str], mode: str = "try") -> None:
        self._tree, self._test_files, self._mode = tree, test_files, mode
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        arguments: Sequence[str],
        most_seconds: float,
        mutant: tuple[str, str, str] | None = None,
        record: Path | None = None,
    ) -> _Result:
        """Run tests in a fork, with a source exchanged or lines recorded."""
        with TemporaryDirectory() as scratch:
            output = Path(scratch) / "output"
            request = {
                "arguments": _listed(arguments, Path(scratch)),
                "output": str(output),
                "mutant": mutant,
                "record": str(record),
            }
            requests, answers = _pipes(self._process)
            requests.write(json.dumps(request).encode() + b"\n")
            fork = int(answers.readline())
            try:
                is_done = _is_done_within(most_seconds, fork, lambda seconds: _has_line(answers, seconds))
            finally:
                _end(fork)
                answer = answers.readline()
            return int(answer) if is_done else None, output.read_text(errors="replace") if output.exists() else ""

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in _pipes(self._process):
                pipe.close()
            self._process = None

    def start(self) -> None:
        """Import everything, unless that was done. It is done again if the process broke."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mutants.warm", self._mode],
            cwd=self._tree,
            env=environment(self._tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # `select` does not see what a buffer has
        )
        requests, answers = _pipes(self._process)
        requests.write(json.dumps([*self._test_files]).encode() + b"\n")
        if not _has_line(answers, START_SECONDS) or answers.readline() != b"ready\n":
            raise RuntimeError("the process that imports all tests does not start")


def _pipes(process: subprocess.Popen[bytes] | None) -> tuple[IO[bytes], IO[bytes]]:
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _listed(arguments: Sequence[str], scratch: Path) -> list[str]:
    """The arguments of pytest, with long lists in a file."""
    listed = scratch / "tests"
    listed.write_text("\n".join(arguments))
    return [*_OPTIONS, f"--basetemp={scratch}/pytest", f"@{listed}"]


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _has_line(answers: IO[bytes], seconds: float) -> bool:
    return bool(select.select([answers], [], [], seconds)[0])


def _is_done_within(most_seconds: float, pid: int, is_done: Callable[[float], bool]) -> bool:
    """Whether a run ends before it hangs, or takes too much processor time or memory.

    Processor time, not the clock: other work on the machine must not look like a hang.
    """
    started = time.monotonic()
    while not is_done(2.0):
        seconds, size = _use(pid)
        is_hanging = time.monotonic() - started > HANGING * most_seconds
        if is_hanging or seconds > most_seconds or size > MOST_BYTES:
            return False
    return True


def _use(pid: int) -> tuple[float, int]:
    """Processor seconds and resident bytes of a process and all that it started."""
    seconds, size = 0.0, 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
            size += process.memory_info().rss
    except psutil.NoSuchProcess:  # ended meanwhile: the next look has what is left
        pass
    return seconds, size


def _end(pid: int) -> None:
    """End a test run with all processes that it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
