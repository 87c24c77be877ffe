"""A process that has imported lbrx and all tests once, and runs tests in forks: ``python -m mutants.warm``.

It reads a list of test files from standard input, then requests, one line of JSON each. It answers with the process id
of the fork, then with its exit status. A fork may change the code of functions first (``mutant``: the file, and its
text before and after), or record which lines run (``record``: a path for them).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mutants.instrument import Recording
from mutants.recorder import Recorder
from mutants.replace import Functions
from mutants.sample import AREAS

NOT_REPLACED = 90  # exit status: the mutant needs a process of its own


def main() -> None:
    source = Path("src/lbrx").resolve()
    recording = Recording(source, AREAS) if sys.argv[1] == "record" else None
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    test_files = json.loads(requests.readline())
    _redirect(os.devnull)
    _import_all()
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *test_files])
    functions = Functions()
    gc.collect()
    gc.freeze()
    print("ready", file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        process = os.fork()
        if not process:
            os._exit(_run(request, functions, recording))
        print(process, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), file=answers, flush=True)


def _import_all() -> None:
    import lbrx

    for module in pkgutil.walk_packages(lbrx.__path__, "lbrx."):
        with suppress(ImportError):  # of optional packages, and of another system
            importlib.import_module(module.name)


def _redirect(output: str) -> None:
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)


def _run(request: dict[str, Any], functions: Functions, recording: Recording | None) -> int:
    """Run the tests of a request in this fork."""
    os.setsid()
    _redirect(request["output"])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if request["mutant"] and not functions.replace(*request["mutant"]):
        return NOT_REPLACED
    recorder = Recorder(recording, Path(request["record"])) if recording else None
    try:
        return int(pytest.main(request["arguments"], plugins=[recorder] if recorder else []))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    main()
