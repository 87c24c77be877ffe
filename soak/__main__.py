"""``make soak``: random jobs on small models, killed, limited and run side by side, for some time.

Every output is compared with one that was written without faults. Prints a table. The exit code is 1 if something is
wrong; the folder of the trial is kept then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from shutil import rmtree
from threading import Lock

from soak.long_lived import too_much
from soak.running import FAULTS, Soak, Tally, environment


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="lbrx-soak-"))
    print(f"seed {options.seed}, {options.minutes:g} minutes, in {folder}", flush=True)
    soak = Soak(folder, options.seed)
    end = time.monotonic() + 60 * options.minutes
    numbers, lock = iter(count()), Lock()

    def worker(_: int) -> None:
        while time.monotonic() < end:
            with lock:
                number = next(numbers)
            soak.trial(number)

    with ThreadPoolExecutor(options.workers + 1) as pool:
        long_lived = pool.submit(run_long_lived, soak, options.merges)
        list(pool.map(worker, range(options.workers)))
        long_lived.result()
    soak.check_inputs()
    print(table(soak.tally))
    for finding in soak.tally.findings:
        print(f"seed {options.seed}, {finding}")
    if not soak.tally.findings:
        rmtree(folder)
    return 1 if soak.tally.findings else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="time for the random jobs")
    parser.add_argument("--seed", type=int, default=1, help="chooses jobs and faults")
    parser.add_argument("--workers", type=int, default=2, help="jobs at a time")
    parser.add_argument("--merges", type=int, default=500, help="merges of the long-lived process")
    return parser


def run_long_lived(soak: Soak, merges: int) -> None:
    """Merge many times in one process, and add what grew to the tally."""
    folder = soak.folder / "long_lived"
    folder.mkdir()
    command = [sys.executable, "-m", "soak.long_lived", str(soak.inputs), str(folder), str(merges)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if process.returncode:
        soak.tally.findings.append(f"the long-lived process ended with {process.returncode}: {process.stderr[-1500:]}")
        return
    result = json.loads(process.stdout.splitlines()[-1])
    soak.tally.counts["merges in one process"] = merges
    soak.tally.growth = result["growth"]
    if result["wrong"]:
        soak.tally.findings.append(f"the long-lived process wrote {result['wrong']} wrong results")
    for name, more in too_much(result["growth"]).items():
        soak.tally.findings.append(f"the long-lived process grew by {more} {name}")


def table(tally: Tally) -> str:
    """What was done as a table in Markdown."""
    done = ("jobs", "processes", "kills", "errors", "resumed", "merge", "convert", "quantize", "save", "verify")
    rows = {name: tally.counts[name] for name in done} | {f"fault: {name}": tally.counts[name] for name in FAULTS}
    rows |= {"merges in one process": tally.counts["merges in one process"]}
    rows |= {f"growth: {name}": more for name, more in tally.growth.items()} | {"findings": len(tally.findings)}
    return "\n".join(["| what | number |", "|---|---|", *(f"| {name} | {number:,} |" for name, number in rows.items())])


if __name__ == "__main__":
    sys.exit(main())
