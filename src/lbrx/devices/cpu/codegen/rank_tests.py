"""Comparisons with ranks, decided without sorting where bounds of the rank are enough.

Ranks often only serve a comparison such as ``random < a * rank + b``. What stands on the side of the rank is monotone
in it, so if the comparison comes out the same for a lower and an upper bound of the rank, that is its outcome. Counts
of keys by their top bits give such bounds; the exact rank is counted only for the few elements in between.

A test's part of the rank buffer, in runs of 8 bytes a column: two runs for the sort that takes over where many keys
share their top bits, a run for keys and bounds (int32 each; outcomes take the place of the bounds), one that is not
used, and one for the ranks that the sort finds.
"""

from __future__ import annotations

from typing import NamedTuple

from lbrx.engine.block_sizes import RANK_TEST_KEYS_RUN
from lbrx.engine.program import RANK_OPS, Program

_COMPARISONS = frozenset({"lt", "le", "gt", "ge"})
_MONOTONE = frozenset({"add", "mul", "sub"})


class RankTest(NamedTuple):
    """A comparison of something with a monotone function of a rank.

    ``steps``: the instructions that lead from the rank to the comparison, which is the last of them.
    ``other``: the value on the other side.
    """

    rank: int
    steps: tuple[int, ...]
    other: int

    def keys_text(self, buffer: str) -> str:
        return f"{buffer} + {8 * RANK_TEST_KEYS_RUN} * columns"

    def outcomes_text(self, buffer: str) -> str:
        return f"{buffer} + {8 * RANK_TEST_KEYS_RUN + 4} * columns"

    def result_text(self, buffer: str, column: str) -> str:
        return f"(peek_i32({self.outcomes_text(buffer)}, {column}) != 0)"


def rank_tests(program: Program, types: list[str], phase: list[int]) -> dict[int, RankTest]:
    """The comparisons of a program that bounds can decide, by number: nothing else may use the rank."""
    first_scalar = len(program.leaves)
    first_body = first_scalar + len(program.scalars)
    users: dict[int, list[int]] = {}
    for number, instruction in enumerate(program.body, first_body):
        for arg in instruction.args:
            users.setdefault(arg, []).append(number)
    stored = {arg for sink in program.sinks for arg in sink.args}
    tests = {}
    for rank, instruction in enumerate(program.body, first_body):
        if instruction.op not in RANK_OPS or types[instruction.args[0]] in ("f64", "i64"):
            continue
        steps: list[int] = []
        value = rank
        while value not in stored and len(users.get(value, [])) == 1:
            last, value = value, users[value][0]
            steps.append(value)
            step = program.body[value - first_body]
            others = [arg for arg in step.args if arg != last]
            if step.op in _COMPARISONS and len(others) == 1 and phase[others[0]] < phase[rank]:
                tests[value] = RankTest(rank, tuple(steps), others[0])
                break
            is_cast = step.op == "cast" and step.type in ("f32", "f64")
            is_scaled = step.op in _MONOTONE and len(others) == 1 and first_scalar <= others[0] < first_body
            if not (is_cast or (is_scaled and types[value] in ("f32", "f64"))):
                break
    return tests
