"""`lbrx completion`: generate shell completion scripts from the options of all commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import click

from lbrx.base.fast_dataclass import dataclass
from lbrx.cli.parameters import Argument, completions


class Shell(StrEnum):
    """A supported shell."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@dataclass(frozen=True, slots=True)
class _Option:
    """An option to complete. ``values`` is empty if the values are not known in advance."""

    flags: tuple[str, ...]
    help: str
    values: tuple[str, ...]
    is_flag: bool


@dataclass(frozen=True, slots=True)
class _Completed:
    """A command to complete. ``values`` are the values of its arguments."""

    name: str
    summary: str
    options: tuple[_Option, ...]
    values: tuple[str, ...]


def completion(shell: Annotated[Shell, Argument("The shell to print a script for.", "SHELL")]) -> None:
    """Print a shell script for tab completion.

    The script completes commands, options, and the names of methods, types, formats and devices. Everything else is
    completed as a file name.

    Examples:

      lbrx completion bash > ~/.local/share/bash-completion/completions/lbrx

      lbrx completion zsh > ~/.zfunc/_lbrx    (in a directory of fpath)

      lbrx completion fish > ~/.config/fish/completions/lbrx.fish
    """
    scripts = {Shell.bash: _bash, Shell.zsh: _zsh, Shell.fish: _fish}
    sys.stdout.write("\n".join(scripts[shell](list(_commands()))) + "\n")


def _commands() -> Iterator[_Completed]:
    from lbrx.cli.main import COMMANDS, command_of

    for name, listed in COMMANDS.items():
        command = command_of(name)
        options = [each for each in command.params if isinstance(each, click.Option)]
        values = [value for each in command.params if isinstance(each, click.Argument) for value in completions(each)]
        described = [_described(each) for each in options]
        help_option = _Option(("--help",), "Show this message and exit.", (), is_flag=True)
        yield _Completed(name, listed.summary, (*described, help_option), tuple(values))


def _described(option: click.Option) -> _Option:
    flags = (*option.opts, *option.secondary_opts)
    return _Option(tuple(flags), option.help or "", tuple(completions(option)), option.is_flag)


def _flags(command: _Completed) -> str:
    return " ".join(flag for option in command.options for flag in option.flags)


def _valued(command: _Completed) -> Iterator[tuple[str, str]]:
    """Yield (case pattern of command and flag, values) for each option with known values."""
    for option in command.options:
        if option.values:
            yield "|".join(f'"{command.name} {flag}"' for flag in option.flags), " ".join(option.values)


def _bash(commands: list[_Completed]) -> Iterator[str]:
    yield "_lbrx() {"
    yield "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}"
    yield "    local command=${COMP_WORDS[1]} choices="
    yield "    COMPREPLY=()"
    yield "    if [[ $COMP_CWORD == 1 ]]; then"
    yield f"        choices='{' '.join(command.name for command in commands)} --help --version'"
    yield "    else"
    yield from _cases(commands)
    yield "    fi"
    yield '    [[ -n $choices ]] && COMPREPLY=($(compgen -W "$choices" -- "$word"))'
    yield "}"
    yield "complete -o default -F _lbrx lbrx"


def _zsh(commands: list[_Completed]) -> Iterator[str]:
    yield "#compdef lbrx"
    yield "_lbrx() {"
    yield "    local word=${words[CURRENT]} before=${words[CURRENT-1]} command=${words[2]}"
    yield "    local -a listed=(" + " ".join(f"'{c.name}:{_quoted(c.summary)}'" for c in commands) + ")"
    yield "    if (( CURRENT == 2 )); then"
    yield "        _describe command listed"
    yield "        return"
    yield "    fi"
    yield "    local choices="
    yield from _cases(commands)
    yield "    if [[ -n $choices ]]; then compadd -- ${=choices}; else _files; fi"
    yield "}"
    yield "if [[ $funcstack[1] == _lbrx ]]; then _lbrx; else compdef _lbrx lbrx; fi"


def _cases(commands: list[_Completed]) -> Iterator[str]:
    """Yield lines for bash and zsh that set ``choices`` from the command, the previous word and the current word."""
    yield '        case "$command $before" in'
    for command in commands:
        for pattern, values in _valued(command):
            yield f"            {pattern}) choices='{values}';;"
    yield "            *)"
    yield '                case "$command $word" in'
    for command in commands:
        yield f"                    \"{command.name} -\"*) choices='{_flags(command)}';;"
    for command in commands:
        if command.values:
            yield f"                    \"{command.name} \"*) choices='{' '.join(command.values)}';;"
    yield "                esac;;"
    yield "        esac"


def _fish(commands: list[_Completed]) -> Iterator[str]:
    yield "function __lbrx_runs"
    yield "    set -l before (commandline -opc)"
    yield '    test "$before[2]" = "$argv[1]"'
    yield "end"
    for command in commands:
        yield f"complete -c lbrx -n '__lbrx_runs \"\"' -f -a {command.name} -d '{_quoted(command.summary)}'"
    for command in commands:
        seen = f"complete -c lbrx -n '__lbrx_runs {command.name}'"
        if command.values:
            yield f"{seen} -f -a '{' '.join(command.values)}'"
        for option in command.options:
            for flag in option.flags:
                name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                values = f" -x -a '{' '.join(option.values)}'" if option.values else "" if option.is_flag else " -r"
                yield f"{seen} {name}{values} -d '{_quoted(option.help)}'"


def _quoted(text: str) -> str:
    """Return text without the characters that would end or break a single-quoted shell string.

    >>> _quoted("a 'b': c")
    'a b c'
    """
    return text.replace("'", "").replace(":", "").replace("\\", "")
