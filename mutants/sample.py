"""The mutants of a run: those of the review, and a sample of all mutations, the same for the same seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from mutants.mutate import mutations, statement_start

HERE = Path(__file__).parent
# Folders in which a mistake loses data or changes numbers; each gives the same share of the sample.
AREAS = (
    "base",
    "files/output",
    "files/remote",
    "files/formats",
    "files/checkpoint",
    "jobs/merge/plan",
    "jobs/merge/methods",
    "jobs/merge/recipe",
    "jobs/merge/vocabulary",
    "jobs/quantize",
    "jobs/convert",
    "jobs/lora",
    "jobs/moe",
    "engine",
    "tensors/codecs",
    "tensors",
    "ops",
    "memory",
    "models/architectures",
)
Key = tuple[str, str, str, str]  # file, function, lines before and after
_ELSEWHERE = ("base/system/darwin.py",)  # cannot run here


@dataclass(frozen=True)
class Mutant:
    """A changed source: the changed lines before and after, and the lines of the statement, ``first`` to ``last``."""

    file: str
    operator: str
    function: str
    before: str
    after: str
    first: int
    last: int
    text: str

    @property
    def key(self) -> Key:
        """What tells it from others while the rest of the source may change."""
        return self.file, self.function, self.before, self.after


def review(source: Path, table: Path = HERE / "review.json") -> list[Mutant]:
    """The mutants that a review found to survive: all of them have to be killed."""
    mutants = []
    for entry in json.loads(table.read_text()):
        text = (source / entry["file"]).read_text()
        before, after = entry["before"], entry["after"]
        if text.count(before) != 1:
            raise ValueError(f"{entry['file']}: {before!r} occurs {text.count(before)} times; expected once")
        line = text[: text.index(before)].count("\n") + 1
        first, last = statement_start(text, line), line + before.count("\n")
        changed = text.replace(before, after)
        mutants.append(Mutant(entry["file"], "review", entry["gap"], before, after, first, last, changed))
    return mutants


def equivalent_keys(table: Path = HERE / "equivalent.json") -> set[Key]:
    """Mutants that change nothing a test could see; the table has a reason for each."""
    entries = json.loads(table.read_text())
    return {(entry["file"], entry["function"], entry["before"], entry["after"]) for entry in entries}


def sample(source: Path, seed: int, count: int) -> list[Mutant]:
    """So many mutants without those known to be equivalent: from each area in turn, at most one of a function.

    Their order depends on their texts alone, so that a change of one function leaves the others in the sample.
    """
    known = equivalent_keys()
    by_area = [_ordered(source, area, seed, known) for area in AREAS]
    in_turn = (mutant for turn in zip_longest(*by_area) for mutant in turn if mutant is not None)
    return list(islice(in_turn, count))


def _ordered(source: Path, area: str, seed: int, known: set[Key]) -> list[Mutant]:
    """One mutant of each function of an area, in an order given by the seed; none if that one is equivalent."""
    functions: dict[tuple[str, str], list[tuple[str, Mutant]]] = {}
    for mutant in _mutants_of(source, area):
        functions.setdefault((mutant.file, mutant.function), []).append((_rank(seed, mutant), mutant))
    one_each = sorted(
        (min(ranked, key=lambda pair: pair[0]) for ranked in functions.values()), key=lambda pair: pair[0]
    )
    return [mutant for _, mutant in one_each if mutant.key not in known]


def _rank(seed: int, mutant: Mutant) -> str:
    return hashlib.sha256("\n".join((str(seed), *mutant.key)).encode()).hexdigest()


def _mutants_of(source: Path, area: str) -> Iterator[Mutant]:
    for path in sorted((source / area).rglob("*.py")):
        file = path.relative_to(source).as_posix()
        if area_of(file) != area or file in _ELSEWHERE:
            continue
        text = path.read_text()
        for mutation in mutations(text):
            before, after = mutation.describe(text)
            changed = mutation.apply(text)
            yield Mutant(
                file, mutation.operator, mutation.function, before, after, mutation.first, mutation.last, changed
            )


def area_of(file: str) -> str:
    """The area with the longest name that a file belongs to."""
    return max((area for area in AREAS if file.startswith(f"{area}/")), key=len)
