"""Tab completion: the scripts, run by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lbrx.cli.main import COMMANDS
from lbrx.jobs.quantize.targets import target_names
from lbrx.registry import METHODS
from support.cli_running import lbrx_command


def script_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    outcome = lbrx_command(capsys, "completion", shell)
    assert outcome.code == 0
    return outcome.out


def completed_by_bash(script: str, line: str, folder: Path) -> list[str]:
    """What a real bash offers for the last word of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    run = f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _lbrx; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    done = subprocess.run(["bash", "-c", run], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lbrx qu", ["quantize"]),
        ("lbrx ", [*COMMANDS, "--help", "--version"]),
        ("lbrx merge a b --method ti", ["ties"]),
        ("lbrx merge a b --method ", list(METHODS)),
        ("lbrx methods ", list(METHODS)),
        ("lbrx quantize in out --to ", target_names()),
        ("lbrx quantize in out --targ", ["--target-bpw", "--target-size"]),
        ("lbrx diff a b --metric si", ["signs"]),
        ("lbrx completion z", ["zsh"]),
        ("lbrx inspect mod", []),  # bash itself completes files then
    ],
)
def test_bash_completes(line: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert completed_by_bash(script_of("bash", capsys), line, tmp_path) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script_of(shell, capsys))
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    path = tmp_path / "lbrx.fish"
    path.write_text(script_of("fish", capsys))
    run = f"source {path}; complete -C 'lbrx merge a --method tie'; complete -C 'lbrx quantize a b --target-b'"
    done = subprocess.run(["fish", "-c", run], capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["ties", "--target-bpw"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lbrx merge a --method tie", list(METHODS)),
        ("lbrx quantize a b --to q", target_names()),
        ("lbrx completion z", ["bash", "zsh", "fish"]),
    ],
)
def test_zsh_completes(line: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """zsh itself chooses those that begin like the word."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    path = tmp_path / "_lbrx"
    path.write_text(script_of("zsh", capsys))
    words = line.split(" ")
    stubs = "compdef() { : }; compadd() { print -l -- $@ }"
    run = f"{stubs}; source {path}; words=({line}); CURRENT={len(words)}; _lbrx"
    done = subprocess.run(["zsh", "-f", "-c", run], capture_output=True, text=True, check=True)
    assert [word for word in done.stdout.split() if not word.startswith("-")] == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_have_every_command_and_value(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of(shell, capsys)
    assert all(name in script for name in COMMANDS)
    assert " ".join(METHODS) in script
