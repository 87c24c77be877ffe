"""Compiles kernels for the emulated machine outside of it, where Numba is thirty times as fast.

Processes of ``python -m arm64.compiler SOCKET CPU FEATURES`` wait at a socket each. `request` asks one of them;
`arm64.startup` calls it in the emulated Python. The object code is what Numba would make there: the same version of
LLVM compiles for the same processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@contextmanager
def running(folder: Path, cpu: str, features: str, processes: int) -> Iterator[str]:
    """Let so many processes wait at sockets in a folder; gives the paths of the sockets, divided by colons."""
    sockets = [folder / f"compiler-{number}" for number in range(processes)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    started = []
    for path in sockets:
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "arm64.compiler", str(path), cpu, features]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment))
    try:
        while not all(path.exists() for path in sockets):
            if any(process.poll() is not None for process in started):
                raise SystemExit("the compiler of the emulated machine does not start")
            time.sleep(0.1)
        yield ":".join(map(str, sockets))
    finally:
        for process in started:
            process.terminate()
            process.wait()


def request(sockets: str, function: str, arguments: tuple[Any, ...]) -> tuple[str, bytes] | None:
    """What a function of `lbrx.devices.cpu.build.compiler` returns, or None if it raises an error."""
    paths = sockets.split(":")
    with Client(paths[os.getpid() % len(paths)], "AF_UNIX") as connection:
        connection.send((function, arguments))
        answer: tuple[str, bytes] | None = connection.recv()
    return answer


def main() -> None:
    """Answer requests until the process is ended."""
    path, cpu, features = sys.argv[1:]
    from apple.target import LINUX_TRIPLE, compile_for

    compile_for(cpu, LINUX_TRIPLE, features)
    from lbrx.base import system

    system.has_dot_products = lambda: True
    from lbrx.devices.cpu.build import compiler

    with Listener(path, "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                function, arguments = connection.recv()
                try:
                    answer = getattr(compiler, function)(*arguments)
                except Exception:
                    answer = None  # the emulated Python compiles it itself, and reports the error
                connection.send(answer)


if __name__ == "__main__":
    main()
