"""``make apple``: count the instructions of lbrx's kernels for Apple's processors, without a Mac.

Compiles the kernels for the M1 to the M4, runs them in an emulator, and prints a table of cycles by a model of the
cores, next to ggml's kernels. The exit code is 1 if a loop has lost its vectors or takes a tenth more instructions than
stored.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apple.counting import count_in_process, default_cache
from apple.report import QUICK, regressions, store, table, write_page
from apple.target import CPUS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m apple", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the workloads of make test, for the M1")
    parser.add_argument("--update", action="store_true", help="store the counts; all of them also write the page")
    parser.add_argument("--ggml", type=Path, help="folder for ggml's sources (default: a cache)")
    options = parser.parse_args(arguments)
    started, counts = time.monotonic(), {}
    for cpu in CPUS[:1] if options.quick else CPUS:
        counts[cpu] = count_in_process(cpu, QUICK if options.quick else ())
        print(f"{cpu}: {len(counts[cpu])} operations, {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
    if not options.quick:
        text = table(counts, _ggml_cycles(options.ggml or default_cache() / "ggml"))
        print(text)
        if options.update:
            write_page(text)
    if options.update:
        store(counts)
        return 0
    found = [f"{cpu}: {line}" for cpu, figures in counts.items() for line in regressions(cpu, figures)]
    print("\n".join(found))
    return int(bool(found))


def _ggml_cycles(folder: Path) -> dict[str, float]:
    from apple import ggml

    folder.mkdir(parents=True, exist_ok=True)
    return {name: mix.cycles for name, mix in ggml.count(folder, CPUS[0]).items()}


if __name__ == "__main__":
    sys.exit(main())
