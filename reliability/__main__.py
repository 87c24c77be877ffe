"""``python -m reliability``: every fault and every crash point of all jobs; prints a table."""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from reliability.faults import MODES, count_calls, try_fault
from reliability.jobs import JOBS, Trial, WrongOutcomeError
from reliability.jobs import trial as trial_of
from reliability.power_loss import PowerLoss

_SEEDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability", description=__doc__)
    parser.add_argument("--job", action="append", choices=[job.name for job in JOBS], help="only these jobs")
    parser.add_argument("--keep-going", action="store_true", help="print all failures, not only the first of a job")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    failures = 0
    print("| command | calls | faults | changes | power losses | wrong |\n|---|---|---|---|---|---|", flush=True)
    for job in JOBS:
        if arguments.job and job.name not in arguments.job:
            continue
        with tempfile.TemporaryDirectory() as folder, trial_of(job, Path(folder)) as trial:
            calls, faults, wrong = _try_faults(trial)
            changes, losses, more = _try_power_losses(trial)
        wrong += more
        print(f"| {job.name} | {calls} | {faults} | {changes} | {losses} | {len(wrong)} |", flush=True)
        for message in wrong if arguments.keep_going else wrong[:1]:
            print(f"    {message}", flush=True)
        failures += len(wrong)
    return 1 if failures else 0


def _try_faults(trial: Trial) -> tuple[int, int, list[str]]:
    calls = count_calls(trial)
    tries = [(number, mode) for number in range(1, calls + 1) for mode in MODES]
    wrong = [message for number, mode in tries if (message := _wrong(try_fault, trial, number, mode))]
    return calls, len(tries), wrong


def _try_power_losses(trial: Trial) -> tuple[int, int, list[str]]:
    loss = PowerLoss(trial)
    states = list(loss.states(_SEEDS))
    wrong = [message for point, way in states if (message := _wrong(loss.try_state, point, way))]
    return len(loss.events), len(states), wrong


def _wrong(attempt: Callable[..., None], *arguments: object) -> str | None:
    try:
        attempt(*arguments)
    except WrongOutcomeError as error:
        return str(error)
    return None


if __name__ == "__main__":
    raise SystemExit(main())
