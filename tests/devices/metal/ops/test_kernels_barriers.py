"""The race detector sees that a barrier of a kernel is missing; `python -m mutants.barriers` deletes all of them."""

from __future__ import annotations

import pytest
from mutants.barriers import BARRIER, BarrierMutant, is_detected, results, shader_mutants

from lbrx.devices.metal.ops.sources import SHADERS, shader_source
from support.metal_shaders import needs_clang

pytestmark = needs_clang


def test_every_barrier_of_the_shaders_has_a_mutant() -> None:
    texts = [shader_source(path.stem) for path in SHADERS.glob("*.metal")]
    assert len(shader_mutants()) == sum(len(BARRIER.findall(text)) for text in texts) > 10


@pytest.mark.parametrize(
    "mutant",
    [
        next(each for each in shader_mutants() if each.kernel == "rows"),
        next(each for each in shader_mutants() if each.kernel == "matvec"),
        BarrierMutant("sums of a view", 0, "", is_pass=True),
    ],
    ids=lambda mutant: mutant.kernel,
)
def test_a_missing_barrier_is_detected(mutant: BarrierMutant) -> None:
    results(mutant, "reverse", changed=False)  # no false alarm
    assert is_detected(mutant)
