"""``make arm64``: tests of compiled code on an emulated arm64 processor, and digests of results against this machine.

Prints a table of the results that differ. The exit code is 1 if a test fails, or if a result differs that
`arm64.differences` does not list. The emulator shows neither speed nor weak memory order.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from arm64.differences import EXPECTED
from arm64.machine import ROOT, Machine
from lbrx.base.system import cpu_count

TESTS = (
    "tests/devices/cpu",
    "tests/tensors/codecs",
    "tests/ops",
    "tests/jobs/merge/test_merge_golden.py",
    "tests/jobs/merge/methods/test_golden.py",
    "tests/engine/test_casts.py",
    "tests/engine/test_selection.py",
    "tests/engine/test_reductions.py",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m arm64", description=__doc__)
    parser.add_argument("--no-tests", action="store_true", help="compare digests only")
    parser.add_argument("--no-digests", action="store_true", help="run tests only")
    parser.add_argument("--cases", type=int, default=3, help="parameter sets of each test (3); 0: all")
    parser.add_argument("tests", nargs="*", default=list(TESTS), help="folders and files of tests")
    options = parser.parse_args(arguments)
    machine, started = Machine(), time.monotonic()
    machine.make()
    failed, workers = False, cpu_count()
    with machine.compilers(workers):
        if not options.no_digests:
            failed |= not _compare(machine)
        if not options.no_tests:
            command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), "--dist", "worksteal"]
            sampling = ["-p", "arm64.sampling", f"--cases={options.cases}"]
            failed |= machine.run([*command, *sampling, *options.tests]).returncode != 0
    print(f"{(time.monotonic() - started) / 60:.0f} minutes")
    return int(failed)


def _compare(machine: Machine) -> bool:
    command = [sys.executable, "-m", "arm64.digests"]
    here = _parsed(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)
    done = machine.run(["-m", "arm64.digests"], subprocess.PIPE)
    there = _parsed(done.stdout)
    print(table(here, there))
    return done.returncode == 0 and not unexpected(here, there)


def _parsed(lines: str) -> dict[str, str]:
    return dict(line.rsplit(": ", 1) for line in lines.splitlines())


def different(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """The names of results that are not equal, or that only one side has."""
    return [name for name in {**here, **there} if here.get(name) != there.get(name)]


def unexpected(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """The results that must not differ but do."""
    return [name for name in different(here, there) if name not in EXPECTED]


def table(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The results that differ as a table in Markdown."""
    names = different(here, there)
    lines = [f"{len({**here, **there}) - len(names)} of {len({**here, **there})} results have equal bytes.", ""]
    if names:
        lines += ["| result that differs | reason |", "|---|---|"]
        lines += [f"| {name} | {EXPECTED.get(name, '**not known**')} |" for name in names]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
