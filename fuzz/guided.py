"""One target under atheris, which keeps inputs that reach new code: ``python -m fuzz.guided TARGET [options]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random
from shutil import copyfile

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["lbrx.files", "lbrx.models", "lbrx.jobs"]):
    from fuzz.mutations import mutate
    from fuzz.running import Runner
    from fuzz.targets import SEEDS, TARGETS


def main() -> None:
    """Fuzz until a limit of libFuzzer, such as ``-max_total_time``, or until a finding."""
    name, *options = sys.argv[1:]
    target, corpus = TARGETS[name], Path(tempfile.mkdtemp())
    for path in (SEEDS / name).iterdir():
        copyfile(path, corpus / path.name)
    runner = Runner(target)

    def test_one(data: bytes) -> None:
        runner.run(data)
        for finding in runner.outcome.findings.values():
            raise RuntimeError(finding.problem + "\n" + finding.details)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        return mutate(target.format, [data or b" "], Random(seed))[:max_size]

    limits = ["-timeout=60", "-rss_limit_mb=4096", "-max_len=1000000", "-artifact_prefix=fuzz-findings/" + name + "-"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, *options], test_one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
