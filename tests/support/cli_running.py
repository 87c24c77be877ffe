"""Runs the command line: in this process as its entry point does, or in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from typing import NamedTuple

import pytest

from lbrx.cli.main import run


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


def _read(descriptor: int) -> bytes:
    """What a terminal shows next; nothing once its program has ended, which is an error on Linux."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
