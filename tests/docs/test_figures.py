"""docs/figures.md is generated from stored results, which a new measurement replaces."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import PAGE, Result, load, page, processor, result_of, save, updated
from benchmarks.harness import Figure

OLD = Result("merge", "linear against mergekit", 20.0, "1 s against 20 s", "A, 2 cores", "0.1.0", "2026-01-01")
OTHER = Result("numpy", "sum", 3.0, "1 ms against 3 ms", "A, 2 cores", "0.1.0", "2026-01-01")


def test_the_page_is_that_of_the_stored_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(load())


def test_every_row_has_program_processor_version_and_date() -> None:
    text = page([OTHER, OLD])
    (row,) = (line for line in text.splitlines() if OLD.name in line)
    assert row.endswith("| 20 | 1 s against 20 s | `benchmarks/merging.py` | A, 2 cores | 0.1.0 | 2026-01-01 |")
    assert text.index("## Merging") < text.index("## Against NumPy")


def test_a_new_measurement_replaces_the_stored_one_and_keeps_the_others(tmp_path: Path) -> None:
    measured = result_of(Figure("merge", OLD.name, 25.123, 20, "1 s against 25 s"))
    save(updated([OLD, OTHER], [measured]), tmp_path / "figures.json")
    first, second = load(tmp_path / "figures.json")
    assert (first.name, first.ratio, first.processor) == (OLD.name, 25.1, processor())
    assert second == OTHER
