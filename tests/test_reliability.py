"""A sample of the faults and power losses of ``make faults``, and that the trials notice a job that is not safe."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from reliability.faults import MODES, count_calls, try_fault
from reliability.jobs import JOBS, Job, Trial, WrongOutcomeError, trial
from reliability.power_loss import PowerLoss

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of open files are read from /proc")
FAULTS = POWER_LOSSES = 5  # of each job


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_sample_of_faults_and_power_losses(job: Job, tmp_path: Path) -> None:
    with trial(job, tmp_path) as tried:
        calls = count_calls(tried)
        assert calls > 20
        for number in range(FAULTS):
            try_fault(tried, 1 + number * (calls - 1) // (FAULTS - 1), MODES[number % len(MODES)])
        loss = PowerLoss(tried)
        states = list(loss.states(seeds=1))
        for point, way in states[1 :: len(states) // POWER_LOSSES]:
            loss.try_state(point, way)


def write_in_place(_: Path, out: Path) -> None:
    descriptor = os.open(out, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"new content", 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_without_flush(_: Path, out: Path) -> None:
    partial = out.with_name(".partial")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"new content", 0)
    os.close(descriptor)
    os.replace(partial, out)


def write_old(_: Path, out: Path) -> None:
    out.write_bytes(b"old")


def wrong_faults(tried: Trial) -> list[str]:
    wrong = []
    for number in range(1, count_calls(tried) + 1):
        for mode in MODES:
            try:
                try_fault(tried, number, mode)
            except WrongOutcomeError as error:
                wrong.append(str(error))
    return wrong


def wrong_losses(tried: Trial) -> list[str]:
    loss, wrong = PowerLoss(tried), []
    for point, way in loss.states(seeds=1):
        try:
            loss.try_state(point, way)
        except WrongOutcomeError as error:
            wrong.append(str(error))
    return wrong


def test_a_job_that_writes_in_place_is_noticed(tmp_path: Path) -> None:
    with trial(Job("in place", "out", write_in_place, write_old), tmp_path) as tried:
        assert any("is partial" in message for message in wrong_faults(tried))
        assert any("is partial" in message for message in wrong_losses(tried))


def test_a_job_that_does_not_flush_is_noticed(tmp_path: Path) -> None:
    with trial(Job("no flush", "out", rename_without_flush, write_old), tmp_path) as tried:
        assert any("is partial" in message for message in wrong_losses(tried))
