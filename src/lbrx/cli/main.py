"""The entry point ``lbrx``: finds the command, and turns errors into one line and an exit code.

Exit codes: 0 success, 1 an error of lbrx, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer

from lbrx.cli.commands import COMMANDS
from lbrx.errors import LbrxError, UsageError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "LBRX_DEBUG"
BLAS_THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"  # lbrx calls BLAS on threads of its own; idle ones of OpenBLAS spin
GC_THRESHOLD = 100_000  # objects: importing and planning make many that stay, and few cycles

# The mark keeps the lines of a paragraph apart.
_EXAMPLES = """\b
Examples:
  lbrx inspect model.gguf
  lbrx merge recipe.yml merged
  lbrx merge recipe.yml merged.gguf --quantize q4_k_m
  lbrx convert model.gguf model-mlx --format mlx
  lbrx score model merged.gguf --text held-out.txt --reference model

'lbrx COMMAND --help' tells more. LBRX_DEBUG=1 shows the traceback of an error.
"""


def main() -> None:
    """Run the command line on the arguments of this process, and exit."""
    gc.set_threshold(GC_THRESHOLD)
    os.environ.setdefault(BLAS_THREADS_VARIABLE, "1")
    code = run(sys.argv[1:])
    gc.freeze()  # else Python looks for cycles among all objects once more before it ends
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line on these arguments and return its exit code.

    >>> run(["--version"])  # doctest: +ELLIPSIS
    lbrx ...
    0
    """
    _never_fail_to_print()
    try:
        _refuse_empty(arguments)
        return _run_command(arguments)
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for what Python writes at its end
        return EXIT_ERROR
    except (LbrxError, OSError) as error:
        if os.environ.get(DEBUG_VARIABLE, "0") != "0":
            raise
        _print_error(error)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run_command(arguments: Sequence[str]) -> int:
    code: object = 0
    try:
        application(arguments)(args=list(arguments), prog_name="lbrx")
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    return code if isinstance(code, int) else int(code is not None)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An empty path would mean the current directory; it comes from a variable of the shell that is not set."""
    for before, argument in pairwise(("", *arguments)):
        if not argument and not before.startswith("-"):
            raise UsageError("an argument is empty; expected a path or a name (is a variable of the shell not set?)")


def application(arguments: Sequence[str]) -> typer.Typer:
    """The command that the arguments begin with, or all of them, of which only the one that is called is imported."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, without the time that importing the other kind takes
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog=_EXAMPLES)(_root)
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    first = arguments[0] if arguments else None
    for name in [first] if first in COMMANDS else COMMANDS:  # before a command stands what may ask for a list of all
        if name == called:
            app.command(name)(_function(COMMANDS[name].target))
        else:
            app.command(name, help=COMMANDS[name].summary)(_not_called)
    return app


def _function(target: str) -> Callable[..., Any]:
    from lbrx.registry import load

    function: Callable[..., Any] = load(target)
    return function


def _not_called() -> None:
    """Stands for a command in ``lbrx --help``."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from lbrx.version import VERSION

        typer.echo(f"lbrx {VERSION}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Merge, quantize, convert, check and compute with model weights larger than memory."""


def _never_fail_to_print() -> None:
    """Names in files and paths can hold what the terminal's encoding cannot: print it escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _print_error(error: LbrxError | OSError) -> None:
    from lbrx.cli.console import error_console, printable

    message, *more = _text_of(error).split("\n", 1)
    hint = f" ({DEBUG_VARIABLE}=1 shows more)" if more else ""
    console = error_console()
    console.print("error: ", style="bold red", end="")
    console.print(printable(message) + hint)


def _text_of(error: LbrxError | OSError) -> str:
    if isinstance(error, LbrxError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
