"""A short, repeatable part of the fuzzing in ``fuzz/``: all seeds, among them earlier findings, and some changes."""

from __future__ import annotations

from random import Random

import pytest
from fuzz.gguf_parts import GgufParts
from fuzz.mutations import mutate
from fuzz.running import inputs, run_target
from fuzz.targets import TARGETS

CHANGES = 60  # of each target, besides its seeds


@pytest.mark.parametrize("name", TARGETS)
def test_readers_raise_nothing_but_their_own_errors(name: str) -> None:
    target = TARGETS[name]
    outcome = run_target(target, 1, most=len(target.seeds()) + CHANGES)
    assert not outcome.findings, "\n".join(each.problem + each.details for each in outcome.findings.values())
    assert outcome.calls >= CHANGES


def test_inputs_repeat() -> None:
    target = TARGETS["config"]
    first, second = ([data for data, _ in zip(inputs(target, 7), range(40), strict=False)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 30


def test_zip_files_that_are_cut_off_are_changed_as_bytes() -> None:
    (data, *_) = TARGETS["pytorch"].seeds()
    at = data.rindex(b"PK\x01\x02")  # the last entry of the directory; sizes follow at 20 and 24
    broken = data[: at + 20] + (10**6).to_bytes(4, "little") * 2 + data[at + 28 :]
    changed = [mutate(TARGETS["pytorch"].format, [broken], Random(number)) for number in range(50)]
    assert len(set(changed)) > 5


def test_gguf_files_survive_their_parts() -> None:
    for data in TARGETS["gguf_model"].seeds():
        assert GgufParts.parse(data).to_bytes() == data
