"""Running jobs with faults: attempts that are killed or limited, then a run that has to finish, then the checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

from soak.checks import Content, content, leftovers, wrong_result, wrong_state
from soak.jobs import JOBS, Job, make_inputs

FAULTS = ("kill", "kill while writing", "fsize", "nofile", "as", "two at once")
MOST_ATTEMPTS = 3
_HANG_SECONDS = 900.0
_POLL_SECONDS = 0.002
_ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The environment of processes that import this package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_ROOT))))}


@dataclass
class Attempt:
    """How a process ended."""

    code: int
    errors: str
    output: str
    was_killed: bool = False

    @property
    def resumed_tensors(self) -> int:
        """How many tensors of an earlier run it kept."""
        done = [line for line in self.output.splitlines() if line.startswith('{"event": "done"')]
        return int(json.loads(done[-1])["resumed_tensors"]) if done else 0

    @property
    def is_clear(self) -> bool:
        """Whether it succeeded, was killed, or ended with a line that says why."""
        if self.code == 0 or (self.was_killed and self.code == -signal.SIGKILL):
            return True
        return self.code in (1, 2) and "Traceback" not in self.errors and "rror" in self.errors


@dataclass
class Tally:
    """What a soak did; ``findings`` has a line for each thing that is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    growth: dict[str, int] = field(default_factory=dict)


class Soak:
    """Trials in a folder that has the inputs, an output without faults for each job, and a folder for each trial."""

    def __init__(self, folder: Path, seed: int, jobs: tuple[Job, ...] = JOBS) -> None:
        self.folder, self.seed, self.jobs = folder, seed, jobs
        self.inputs = folder / "inputs"
        self.tally = Tally()
        self._lock = threading.Lock()
        make_inputs(self.inputs)
        self._inputs_content = content(self.inputs)
        self.seconds: dict[str, float] = {}
        self.expected = {job.name: self._run_without_faults(job) for job in jobs}

    def _run_without_faults(self, job: Job) -> Content:
        out = self.folder / "expected" / job.name.replace(" ", "_")
        out.mkdir(parents=True)
        started = time.monotonic()
        attempt = self._attempt(job, out, {}, ())
        self.seconds[job.name] = time.monotonic() - started
        if attempt.code:
            raise RuntimeError(f"{job.name} fails without faults: {attempt.errors}")
        return content(out)

    # -- one trial -------------------------------------------------------------------------------------------------

    def trial(self, number: int) -> None:
        """One job with some faults; the same number and seed give the same job and faults."""
        random = Random(f"{self.seed} {number}")
        job = random.choice(self.jobs)
        folder = self.folder / "trials" / f"{number:05d}"
        folder.mkdir(parents=True)
        old: Content = {}
        options: list[str] = []
        if job.has_run_options and random.random() < 0.4:
            old = self._put_old_output(job, folder, random)
            options.append("--overwrite")
        if job.has_run_options:
            options += ["--threads", str(random.choice((1, 2, 3))), "--memory", random.choice(("32MB", "64MB", "1GB"))]
        problem = self._disturb_and_finish(job, folder, old, options, random)
        if not problem and random.random() < 0.2:
            problem = self._verify(folder)
        with self._lock:
            self.tally.counts["jobs"] += 1
            self.tally.counts[job.arguments[0]] += 1
            if problem:
                self.tally.findings.append(f"trial {number} ({job.name}) in {folder}: {problem}")
        if not problem:
            rmtree(folder)

    def _put_old_output(self, job: Job, folder: Path, random: Random) -> Content:
        """Another output under the same name."""
        same_name = [other for other in self.jobs if (other.out, other.is_split) == (job.out, job.is_split)]
        other = random.choice(same_name)
        copytree(self.folder / "expected" / other.name.replace(" ", "_"), folder, dirs_exist_ok=True)
        return self.expected[other.name]

    def _disturb_and_finish(self, job: Job, folder: Path, old: Content, options: list[str], random: Random) -> str:
        new = self.expected[job.name]
        for _ in range(random.randint(0, MOST_ATTEMPTS)):
            fault = random.choice(FAULTS)
            attempts = self._with_fault(fault, job, folder, options, random)
            self._count(fault, attempts)
            unclear = [attempt for attempt in attempts if not attempt.is_clear]
            if unclear:
                return f"{fault}: ended with {unclear[0].code}: {unclear[0].errors[-1500:]}"
            problem = wrong_state(folder, old, new, job.is_split)
            if problem:
                return f"{fault}: {problem}"
            if not old and content(folder) == new and not leftovers(folder):
                return ""  # the run had finished, and another one would refuse to replace its output
        last = self._attempt(job, folder, {}, options)
        if last.code:
            return f"the last run ended with {last.code}: {last.errors[-1500:]}"
        with self._lock:
            self.tally.counts["resumed"] += last.resumed_tensors > 0
        return wrong_result(folder, new)

    def _with_fault(self, fault: str, job: Job, folder: Path, options: list[str], random: Random) -> list[Attempt]:
        if fault == "kill":
            return [self._attempt(job, folder, {}, options, kill_after=random.uniform(0, 1.2 * self.seconds[job.name]))]
        if fault == "kill while writing":
            return [
                self._attempt(job, folder, {}, options, kill_writing=(random.randint(1, 6), random.uniform(0, 0.02)))
            ]
        if fault == "two at once":
            return self._two_at_once(job, folder, options)
        least, most = {"fsize": (1 << 10, 12 << 20), "nofile": (1, 12), "as": (1 << 20, 256 << 20)}[fault]
        return [self._attempt(job, folder, {fault: int(least * (most / least) ** random.random())}, options)]

    def _two_at_once(self, job: Job, folder: Path, options: list[str]) -> list[Attempt]:
        attempts: list[Attempt] = []
        threads = [
            threading.Thread(target=lambda: attempts.append(self._attempt(job, folder, {}, options))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return attempts

    def _count(self, fault: str, attempts: list[Attempt]) -> None:
        with self._lock:
            self.tally.counts["processes"] += len(attempts)
            self.tally.counts[fault] += 1
            self.tally.counts["kills"] += sum(attempt.code == -signal.SIGKILL for attempt in attempts)
            self.tally.counts["errors"] += sum(attempt.code > 0 for attempt in attempts)

    def _verify(self, folder: Path) -> str:
        attempt = self._process(["verify", str(min(folder.iterdir()))], {})
        with self._lock:
            self.tally.counts["verify"] += 1
        return f"verify ended with {attempt.code}: {attempt.output[-1500:]}" if attempt.code else ""

    # -- processes -------------------------------------------------------------------------------------------------

    def _attempt(
        self,
        job: Job,
        folder: Path,
        limits: dict[str, int],
        options: list[str] | tuple[()],
        kill_after: float | None = None,
        kill_writing: tuple[int, float] | None = None,
    ) -> Attempt:
        extra = [*job.options, *options, "--json"] if job.has_run_options else []
        command = [*job.arguments, str(folder / job.out), *extra]
        journal = folder / f".{job.out}.partial.journal"
        return self._process(command, limits, kill_after, kill_writing and (journal, *kill_writing))

    def _process(
        self,
        command: list[str],
        limits: dict[str, int],
        kill_after: float | None = None,
        kill_writing: tuple[Path, int, float] | None = None,
    ) -> Attempt:
        before = None if kill_writing is None else _changed_at(kill_writing[0])
        process = subprocess.Popen(
            [sys.executable, "-m", "soak.child", json.dumps(limits), *command],
            cwd=self.inputs,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if kill_writing is not None:
            journal, changes, kill_after = kill_writing
            while process.poll() is None and changes:
                time.sleep(_POLL_SECONDS)
                now = _changed_at(journal)
                changes -= now != before
                before = now
        try:
            output, errors = process.communicate(timeout=_HANG_SECONDS if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            return Attempt(process.returncode, errors, output, was_killed=kill_after is not None)
        return Attempt(process.returncode, errors, output)

    # -- at the end ------------------------------------------------------------------------------------------------

    def check_inputs(self) -> None:
        """Add a finding if an input was changed."""
        if content(self.inputs) != self._inputs_content or leftovers(self.inputs):
            self.tally.findings.append(f"inputs in {self.inputs} were changed")


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
