"""Runs the command line in this process, as its entry point does."""

from __future__ import annotations

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
