"""Runs the command line: in this process as its entry point does, or in a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import pytest

from lbrx.cli.main import run

_PATIENCE_SECONDS = 120.0


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def lbrx_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """The exit code of `lbrx` with these arguments, and what it printed."""
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return Outcome(code, printed.out, printed.err)


def in_terminal(*arguments: object, columns: int = 80, **environment: str) -> tuple[int, str]:
    """The exit code of Python with these arguments, on a terminal of this width, and what it printed."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    given |= {"TERM": "xterm-256color", **environment}
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=given) as process:
        os.close(follower)
        printed = b""
        while piece := _read(leader):
            printed += piece
    os.close(leader)
    return process.returncode, printed.decode(errors="replace")


def in_dialogue(
    steps: Sequence[tuple[str, str | signal.Signals]], *arguments: object, rows: int = 24, columns: int = 80
) -> tuple[int, str]:
    """Type lines, or send signals, each when a program in a terminal has shown a text after the step before.

    An empty line follows a signal, because Python notices one that comes just before it waits only behind a line.
    """
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (rows, columns))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR")}
    given |= {"TERM": "xterm-256color", "NO_COLOR": "1"}
    command = [sys.executable, *map(str, arguments)]
    terminal = {"stdin": follower, "stdout": follower, "stderr": follower}
    with subprocess.Popen(command, **terminal, env=given, preexec_fn=_heed_interrupts) as process:
        os.close(follower)
        printed, seen, waiting = b"", 0, list(steps)
        while True:
            if not select.select([leader], [], [], _PATIENCE_SECONDS)[0]:
                process.kill()  # it waits for something else than expected
            piece = _read(leader)
            if not piece:
                break
            printed += piece
            while waiting and (place := printed.find(waiting[0][0].encode(), seen)) >= 0:
                expected, answer = waiting.pop(0)
                seen = place + len(expected.encode())
                if isinstance(answer, str):
                    os.write(leader, answer.encode())
                else:
                    process.send_signal(answer)
                    with suppress(OSError):  # of a program that has ended
                        os.write(leader, b"\n")
    os.close(leader)
    assert not waiting, printed.decode(errors="replace")
    return process.returncode, printed.decode(errors="replace")


def _heed_interrupts() -> None:
    """Undo that a test run in the background ignores interrupts, and so do its programs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read(descriptor: int) -> bytes:
    """What a terminal shows next; nothing once its program has ended, which is an error on Linux."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
