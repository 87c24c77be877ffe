"""A short part of the soak in ``soak/``, and that its checks notice what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.__main__ import run_long_lived, table
from soak.checks import content, leftovers, wrong_result, wrong_state
from soak.jobs import JOBS
from soak.long_lived import growth, too_much
from soak.running import FAULTS, Attempt, Soak, Tally

SHORT = ("merge ties", "quantize q8_0 split", "convert to bf16", "save")
TRIALS = 5
MERGES = 10


def test_short_soak(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "soak", 1, tuple(job for job in JOBS if job.name in SHORT))
    for number in range(TRIALS):
        soak.trial(number)
    run_long_lived(soak, MERGES)
    soak.check_inputs()
    assert soak.tally.findings == []
    assert soak.tally.counts["jobs"] == TRIALS
    assert sum(soak.tally.counts[fault] for fault in FAULTS) >= 3
    assert set(soak.tally.growth) == {"resident KiB", "descriptors", "threads", "mappings"}
    assert leftovers(tmp_path / "soak/trials") == []


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_results_are_compared(tmp_path: Path) -> None:
    expected = content(write(tmp_path / "expected", {"out/a": "1", "out/b": "2"}))
    assert wrong_result(write(tmp_path / "same", {"out/a": "1", "out/b": "2"}), expected) == ""
    assert "out/b differs" in wrong_result(write(tmp_path / "other", {"out/a": "1", "out/b": "3"}), expected)
    assert "out/b is missing" in wrong_result(write(tmp_path / "less", {"out/a": "1"}), expected)
    left = write(tmp_path / "left", {"out/a": "1", "out/b": "2", ".out.partial.journal": ""})
    assert wrong_result(left, expected) == "has .out.partial.journal left"


@pytest.mark.parametrize(
    ("files", "is_split", "is_right"),
    [
        ({"a": "old", "b": "old"}, False, True),
        ({"a": "new", "b": "new"}, False, True),
        ({"a": "new", "b": "old"}, False, False),
        ({"a": "new", "b": "old"}, True, True),
        ({"a": "ne", "b": "old"}, True, False),
        ({".out.replaced/a": "old"}, False, True),
        ({}, False, False),
    ],
)
def test_states_after_a_kill(tmp_path: Path, files: dict[str, str], is_split: bool, is_right: bool) -> None:
    old = content(write(tmp_path / "old", {"a": "old", "b": "old"}))
    new = content(write(tmp_path / "new", {"a": "new", "b": "new"}))
    (tmp_path / "now").mkdir()
    problem = wrong_state(write(tmp_path / "now", files), old, new, is_split)
    assert (problem == "") is is_right


def test_changed_inputs_are_noticed(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "soak", 1, ())
    soak.check_inputs()
    assert soak.tally.findings == []
    with (soak.inputs / "a/model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    soak.check_inputs()
    assert len(soak.tally.findings) == 1


def test_growth_after_the_warm_up() -> None:
    steady = [5, 50, *[100] * 48]
    assert too_much(growth({"threads": steady, "descriptors": steady, "resident KiB": steady})) == {}
    leaking = list(range(50))
    assert too_much(growth({"descriptors": leaking, "mappings": leaking})) == {"descriptors": 36, "mappings": 36}


@pytest.mark.parametrize(
    ("attempt", "is_clear"),
    [
        (Attempt(0, "", ""), True),
        (Attempt(1, "error: out: disk full", ""), True),
        (Attempt(1, "Traceback (most recent call last): ... OSError", ""), False),
        (Attempt(1, "", ""), False),
        (Attempt(-11, "", ""), False),
        (Attempt(-9, "", "", was_killed=True), True),
        (Attempt(-9, "", ""), False),
    ],
)
def test_clear_ends(attempt: Attempt, is_clear: bool) -> None:
    assert attempt.is_clear is is_clear


def test_table_counts_findings() -> None:
    tally = Tally(findings=["wrong"], growth={"threads": 2})
    tally.counts["kills"] = 1234
    lines = table(tally).splitlines()
    assert "| kills | 1,234 |" in lines
    assert "| growth: threads | 2 |" in lines
    assert lines[-1] == "| findings | 1 |"
