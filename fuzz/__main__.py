"""``python -m fuzz``: fuzz every reader, each in a process of its own. See docs/fuzzing.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from fuzz.running import run_target
from fuzz.targets import TARGETS

FINDINGS = Path("fuzz-findings")


def main() -> int:
    """Fuzz the chosen targets; 1 if something was found."""
    arguments = _arguments()
    if arguments.worker is not None:
        return _work(arguments)
    names = arguments.target or list(TARGETS)
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    has_coverage = find_spec("atheris") is not None and not arguments.no_coverage and arguments.inputs is None
    seconds = arguments.seconds / len(names)
    print(f"seed {seed}, {len(names)} targets, {_budget(arguments, seconds)}", flush=True)
    total = guided_inputs = found = 0
    for name in names:
        guided = seconds / 2 if has_coverage else 0.0
        calls, problems = _fuzz(name, seed, arguments.inputs, seconds - guided)
        if guided:
            inputs, stops = _guided(name, guided)
            guided_inputs, problems = guided_inputs + inputs, problems + stops
        total, found = total + calls, found + problems
    print(
        f"{total:,} calls, {guided_inputs:,} more inputs by atheris, {found} findings{f' in {FINDINGS}/' if found else ''}"
    )
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz every reader of lbrx.")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all targets (default: ten minutes)")
    parser.add_argument("--inputs", type=int, help="inputs for each target, instead of a time")
    parser.add_argument("--seed", type=int, help="repeat a run (default: the time)")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="may be repeated (default: all)")
    parser.add_argument("--no-coverage", action="store_true", help="do not use atheris")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _budget(arguments: argparse.Namespace, seconds: float) -> str:
    return f"{arguments.inputs} inputs each" if arguments.inputs is not None else f"{seconds:.0f} s each"


def _fuzz(name: str, seed: int, inputs: int | None, seconds: float) -> tuple[int, int]:
    """Structured mutations of one target: the numbers of calls and findings."""
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--inputs={inputs}"] if inputs is not None else [f"--seconds={seconds}"]
        command = [sys.executable, "-m", "fuzz", "--worker", folder, "--target", name, f"--seed={seed}", *options]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        result = Path(folder) / "result.json"
        if not result.exists():
            data = (Path(folder) / "input").read_bytes() if (Path(folder) / "input").exists() else b""
            _keep(name, f"{name} ends the process with {process.returncode}", data, process.stderr[-5000:])
            return 0, 1
        outcome = json.loads(result.read_text())
    for problem, (data, details) in outcome["findings"].items():
        _keep(name, problem, bytes.fromhex(data), details)
    growth = outcome["growth"] / 2**20
    print(f"{name}: {outcome['calls']:,} calls, slowest {outcome['slowest']:.2f} s, {growth:.0f} MiB", flush=True)
    return outcome["calls"], len(outcome["findings"])


def _work(arguments: argparse.Namespace) -> int:
    """The process of one target."""
    (name,) = arguments.target
    seconds = None if arguments.inputs is not None else arguments.seconds
    outcome = run_target(
        TARGETS[name], arguments.seed, most=arguments.inputs, seconds=seconds, input_path=arguments.worker / "input"
    )
    findings = {problem: (each.data.hex(), each.details) for problem, each in outcome.findings.items()}
    result = {"calls": outcome.calls, "slowest": outcome.slowest_seconds, "growth": outcome.peak_growth_bytes}
    (arguments.worker / "result.json").write_text(json.dumps({**result, "findings": findings}))
    return 0


def _guided(name: str, seconds: float) -> tuple[int, int]:
    """Coverage-guided mutations by atheris: the numbers of inputs, and of findings, which is one if it stopped."""
    FINDINGS.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "fuzz.guided", name, f"-max_total_time={int(seconds)}"]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "FUZZ_FINDINGS": str(FINDINGS)}
    )
    if process.returncode:
        print(f"{name}: atheris stopped\n{process.stderr[-3000:]}", flush=True)
    numbers = re.findall(r"^#(\d+)\s", process.stderr, re.MULTILINE)
    return int(numbers[-1]) if numbers else 0, int(process.returncode != 0)


def _keep(target: str, problem: str, data: bytes, details: str) -> None:
    FINDINGS.mkdir(exist_ok=True)
    stem = "".join(letter if letter.isalnum() else "_" for letter in problem)
    (FINDINGS / f"{stem}.input").write_bytes(data)
    (FINDINGS / f"{stem}.txt").write_text(details)
    print(f"{target}: {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
