"""``make mutants``: change the sources in small ways, one at a time, and see whether a test fails.

Runs the mutants of the review (review.json) and a sample of all mutations, leaving out those judged equivalent
(equivalent.json). Prints a table, and writes all outcomes to .mutants/results.json.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from mutants.coverage_map import measure
from mutants.sample import AREAS, Key, Mutant, area_of, review, sample
from mutants.trial import Outcome, Trial, copy_tree

ROOT = Path(__file__).parents[1]
LEAST_SHARE = 0.95
# Test files that are not measured: no source of the sample is theirs, or they take minutes.
UNMEASURED = (
    "tests/cluster",
    "tests/docs",
    "tests/devices",
    "tests/test_apple",
    "tests/test_fuzz",
    "tests/test_mutant",
    "tests/test_reliability",
    "tests/test_soak",
    "larger_than_memory",
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    test_files = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not any(part in path.as_posix() for part in UNMEASURED)
    ]
    with TemporaryDirectory() as scratch:
        trees = [copy_tree(ROOT, Path(scratch) / f"tree{number}") for number in range(options.workers)]
        covered = measure(trees[0], options.cache / "coverage", test_files, options.workers)
        source = trees[0] / "src/lbrx"
        mutants = [*([] if options.no_review else review(source)), *sample(source, options.seed, options.count)]
        known = known_outcomes(options.known, mutants)
        results = options.cache / "results.json"
        results.parent.mkdir(parents=True, exist_ok=True)
        trials = [Trial(tree, covered, test_files) for tree in trees]
        outcomes = _attempt_all(trials, mutants, known, results)
    print(table(outcomes))
    return 0 if is_enough(outcomes) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=150, help="mutants of the sample")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time")
    parser.add_argument("--no-review", action="store_true", help="leave out the mutants of the review")
    parser.add_argument("--known", type=Path, help="results of an earlier run: what it killed is not tried again")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mutants", help="folder of the coverage and the results")
    return parser


def known_outcomes(path: Path | None, mutants: Sequence[Mutant]) -> dict[Key, Outcome]:
    """The mutants among these that a test killed in an earlier run. A timeout is tried again."""
    entries = json.loads(path.read_text()) if path else []
    killed = {
        (entry["file"], entry["function"], entry["before"], entry["after"]): entry
        for entry in entries
        if entry["result"] == "killed"
    }
    found = [(mutant, killed[mutant.key]) for mutant in mutants if mutant.key in killed]
    return {
        mutant.key: Outcome(mutant, entry["result"], entry["tests"], entry["seconds"], entry["killer"])
        for mutant, entry in found
    }


def _attempt_all(
    trials: Sequence[Trial], mutants: Sequence[Mutant], known: dict[Key, Outcome], results: Path
) -> list[Outcome]:
    """The outcomes of all mutants. Those known so far are always in the file of results."""
    free: queue.Queue[Trial] = queue.Queue()
    for trial in trials:
        free.put(trial)
    lock, started, outcomes = threading.Lock(), time.monotonic(), dict(known)
    tried = [mutant for mutant in mutants if mutant.key not in known]

    def run(mutant: Mutant) -> None:
        trial = free.get()
        try:
            outcome = trial.attempt(mutant)
        finally:
            free.put(trial)
        with lock:
            outcomes[mutant.key] = outcome
            entries = [_entry(outcomes[mutant.key]) for mutant in mutants if mutant.key in outcomes]
            results.write_text(json.dumps(entries, indent=1) + "\n")
            minutes = (time.monotonic() - started) / 60
            done = len(outcomes) - len(known)
            print(f"[{done}/{len(tried)} {minutes:.1f} min] {_line(outcome)}", flush=True)

    with ThreadPoolExecutor(len(trials)) as pool:
        list(pool.map(run, tried))
    for trial in trials:
        trial.close()
    return [outcomes[mutant.key] for mutant in mutants]


def _line(outcome: Outcome) -> str:
    mutant = outcome.mutant
    text = (
        f"{outcome.result}: {mutant.file}:{mutant.first} {mutant.function} ({mutant.operator}, {outcome.tests} tests)"
    )
    return text if outcome.is_killed else f"{text}\n  - {mutant.before}\n  + {mutant.after}"


def _entry(outcome: Outcome) -> dict[str, object]:
    mutant = outcome.mutant
    return {
        "result": outcome.result,
        "file": mutant.file,
        "line": mutant.first,
        "function": mutant.function,
        "operator": mutant.operator,
        "before": mutant.before,
        "after": mutant.after,
        "tests": outcome.tests,
        "seconds": round(outcome.seconds, 1),
        "killer": outcome.killer,
    }


def _groups(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {"review": [], **{area: [] for area in AREAS}}
    for outcome in outcomes:
        groups["review" if outcome.mutant.operator == "review" else area_of(outcome.mutant.file)].append(outcome)
    return {name: group for name, group in groups.items() if group}


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes by area as a table in Markdown."""
    lines = ["| area | mutants | killed | survived |", "|---|---|---|---|"]
    groups = _groups(outcomes)
    sampled = [outcome for outcome in outcomes if outcome.mutant.operator != "review"]
    for name, group in {**groups, "sample": sampled}.items():
        killed = sum(outcome.is_killed for outcome in group)
        lines.append(f"| {name} | {len(group)} | {killed} | {len(group) - killed} |")
    return "\n".join(lines)


def is_enough(outcomes: Sequence[Outcome]) -> bool:
    """Whether all mutants of the review and enough of the sample are killed."""
    sampled = [outcome.is_killed for outcome in outcomes if outcome.mutant.operator != "review"]
    reviewed = [outcome.is_killed for outcome in outcomes if outcome.mutant.operator == "review"]
    return all(reviewed) and sum(sampled) >= LEAST_SHARE * len(sampled)


if __name__ == "__main__":
    sys.exit(main())
