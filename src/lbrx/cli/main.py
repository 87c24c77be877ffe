"""The ``lbrx`` entry point: run a command, and turn errors into one line and an exit code.

Exit codes: 0 success, 1 error, 2 unknown or missing arguments or options, 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import click

from lbrx.cli.parameters import HELP_OPTIONS, command
from lbrx.errors import LbrxError, UsageError


class Command(NamedTuple):
    """The ``"module:function"`` of a command, and its one-line summary."""

    target: str
    summary: str


COMMANDS: dict[str, Command] = {
    "inspect": Command("lbrx.cli.inspect:inspect", "Show what a model file or directory contains."),
    "merge": Command("lbrx.cli.merge:merge", "Merge models according to a recipe."),
    "convert": Command("lbrx.cli.convert:convert", "Convert a model to another format."),
    "quantize": Command(
        "lbrx.cli.quantize:quantize", "Quantize a model to GGUF, to MLX, or for vLLM and transformers."
    ),
    "imatrix": Command("lbrx.cli.imatrix:imatrix", "Measure which columns of the weights matter for a text."),
    "moe": Command("lbrx.cli.moe:moe", "Build a mixture of experts from dense models."),
    "shuffle": Command("lbrx.cli.shuffle:shuffle", "Combine layers of several models at random."),
    "transplant": Command("lbrx.cli.transplant:transplant", "Give a model the tokenizer of another model."),
    "insert": Command("lbrx.cli.insert:insert", "Put a language model into a vision-language model."),
    "edit": Command("lbrx.cli.edit:edit", "Change the metadata of a GGUF file."),
    "split": Command("lbrx.cli.split:split", "Split a GGUF model into shards."),
    "join": Command("lbrx.cli.split:join", "Join the shards of a GGUF model into one file."),
    "hash": Command("lbrx.cli.hash:hash", "Print SHA-256 hashes of tensors."),
    "upload": Command("lbrx.cli.upload:upload", "Upload a model to the Hugging Face hub."),
    "verify": Command("lbrx.cli.verify:verify", "Check a model for damage and inconsistencies."),
    "compare": Command("lbrx.cli.compare:compare", "Measure what a conversion or quantization changed."),
    "diff": Command("lbrx.cli.diff:diff", "Compare two models layer by layer."),
    "lora": Command("lbrx.cli.lora:lora", "Extract, merge, combine or convert LoRA adapters."),
    "score": Command("lbrx.cli.score:score", "Measure how well models predict a text."),
    "search": Command("lbrx.cli.search:search", "Find the values of a recipe whose merge scores best."),
    "generate": Command("lbrx.cli.generate:generate", "Generate text from a prompt."),
    "chat": Command("lbrx.cli.chat:chat", "Talk to a model, or to several side by side."),
    "methods": Command("lbrx.cli.methods:methods", "List merge methods, or the parameters of one."),
    "types": Command("lbrx.cli.types:types", "List quantization types."),
    "bench": Command("lbrx.cli.bench:bench", "Compare the speed of CPU and GPU."),
    "doctor": Command("lbrx.cli.doctor:doctor", "Describe this machine and test its GPU."),
    "demo": Command("lbrx.cli.demo:demo", "Merge, quantize and score small language models."),
    "completion": Command("lbrx.cli.completion:completion", "Print a shell script for tab completion."),
}
"""Commands in the order of ``lbrx --help``. The summary is the first line of the function's docstring."""


READS_WEIGHTS = (
    "merge",
    "convert",
    "quantize",
    "moe",
    "shuffle",
    "transplant",
    "insert",
    "verify",
    "compare",
    "diff",
    "lora",
    "score",
    "search",
    "generate",
    "chat",
)
"""Commands with the option ``--raw``."""

RUNS_MODELS = ("generate", "chat", "score", "search", "imatrix", "quantize")
"""Commands with the option ``--activation-bits``."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "LBRX_DEBUG"
BLAS_THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"  # lbrx calls BLAS from its own threads; idle OpenBLAS threads spin
_NO_THREAD = "can't start new thread"
_PROBE_BYTES = 256 << 20  # a system that refuses them is short of memory
_NO_LIBRARY = ("failed to map segment", "annot allocate memory", "oo many open files")  # from the dynamic loader
GC_THRESHOLD = 100_000  # objects; importing and planning create many long-lived objects and few cycles

# \b makes click keep the line breaks.
_EXAMPLES = """\b
Examples:
  lbrx inspect model.gguf
  lbrx merge recipe.yml merged
  lbrx merge recipe.yml merged.gguf --quantize q4_k_m
  lbrx convert model.gguf model-mlx --format mlx
  lbrx score model merged.gguf --text held-out.txt --reference model

Run 'lbrx help COMMAND' for details. LBRX_DEBUG=1 shows the traceback of an error.
"""


def main() -> None:
    """Run the command line with ``sys.argv`` and exit."""
    gc.set_threshold(GC_THRESHOLD)
    os.environ.setdefault(BLAS_THREADS_VARIABLE, "1")
    code = run(sys.argv[1:])
    gc.freeze()  # skips a final garbage collection at exit
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line with these arguments and return the exit code.

    >>> run(["--version"])  # doctest: +ELLIPSIS
    lbrx ...
    0
    """
    _never_fail_to_print()
    try:
        _refuse_empty(arguments)
        return _run_command(arguments)
    except BrokenPipeError:  # the reader closed the pipe
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it at exit
        return EXIT_ERROR
    except Exception as error:
        if not is_expected(error):
            raise
        if os.environ.get(DEBUG_VARIABLE, "0") != "0":
            raise
        _print_error(error)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run_command(arguments: Sequence[str]) -> int:
    code: object = 0
    try:
        with _Root().make_context("lbrx", list(arguments)) as context:
            context.command.invoke(context)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    return code if isinstance(code, int) else int(code is not None)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments. As a path, one would mean the current directory; usually a shell variable is unset."""
    for before, argument in pairwise(("", *arguments)):
        if not argument and not before.startswith("-"):
            raise UsageError("an argument is empty; expected a path or a name (is a shell variable unset?)")


class _Root(click.Group):
    """The group of all commands. Imports a command only when it is called."""

    def __init__(self) -> None:
        version = click.Option(
            ["-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        )
        super().__init__(
            commands={name: click.Command(name, short_help=each.summary) for name, each in COMMANDS.items()},
            params=[version],
            help="Merge, quantize, convert, check and compute with model weights larger than memory.",
            epilog=_EXAMPLES,
            context_settings=dict(HELP_OPTIONS),
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(EXIT_USAGE)
        if args[0] == "help":
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - signature of click
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        assert name is not None
        if sys.stderr.isatty():
            from lbrx.cli.status import announce_compiling

            announce_compiling()
        return name, command_of(name), rest


def command_of(name: str) -> click.Command:
    """Return a command with its options."""
    chosen = command(name, _function(COMMANDS[name].target))
    if name in READS_WEIGHTS:
        chosen.params.append(_raw_option())
    if name in RUNS_MODELS:
        chosen.params.append(_activation_bits_option())
    return chosen


def _raw_option() -> click.Option:
    return click.Option(
        ["--raw"],
        is_flag=True,
        expose_value=False,
        callback=_allow_raw_codes,
        help="Use raw codes as values if lbrx cannot decode the model's quantization.",
    )


def _allow_raw_codes(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from lbrx.settings import using

        context.with_resource(using(raw=True))


def _activation_bits_option() -> click.Option:
    return click.Option(
        ["--activation-bits"],
        type=click.Choice(["16", "8"]),
        expose_value=False,
        callback=_use_activation_bits,
        help="Round activations to so many bits to multiply quantized weights; 8 is faster and coarser (default: 16).",
    )


def _use_activation_bits(context: click.Context, _option: click.Parameter, bits: str | None) -> None:
    if bits is not None:
        from lbrx.settings import using

        context.with_resource(using(activation_bits=int(bits)))


def _function(target: str) -> Callable[..., None]:
    from lbrx.registry import load

    function: Callable[..., None] = load(target)
    return function


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from lbrx.version import __version__

        print(f"lbrx {__version__}")
        context.exit()


def _never_fail_to_print() -> None:
    """Escape characters that the terminal's encoding lacks, such as those in file and tensor names."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_expected(error: Exception) -> bool:
    """Whether to print an error as one line: errors of lbrx and the system, and lack of memory or threads."""
    if isinstance(error, LbrxError | OSError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return True
    if isinstance(error, ImportError) and any(text in str(error) for text in _NO_LIBRARY):
        return True
    return _follows_from_no_memory(error)


def _follows_from_no_memory(error: BaseException | None) -> bool:
    """Whether an allocation was refused. Python then fails in many ways, such as with half of a module imported."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    try:
        mmap.mmap(-1, _PROBE_BYTES).close()
    except (OSError, MemoryError):
        return True
    return False


def _print_error(error: Exception) -> None:
    message, *more = _text_of(error).split("\n", 1)
    hint = f" (set {DEBUG_VARIABLE}=1 for details)" if more else ""
    try:
        from lbrx.cli.console import error_console, printable

        console = error_console()
    except Exception as second:
        if not is_expected(second) and not isinstance(second, ImportError):
            raise
        print(f"error: {message!a:.2000}{hint}", file=sys.stderr)  # too few descriptors or too little memory to import
        return
    console.print("error: ", style="bold red", end="")
    console.print(printable(message) + hint)


def _text_of(error: Exception) -> str:
    if isinstance(error, MemoryError) and not isinstance(error, LbrxError):
        return f"out of memory: the system refused an allocation{f' ({error})' if str(error) else ''}"
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return f"{error}: the system refused to start a thread; use a smaller --threads"
    if isinstance(error, ImportError) and any(text in str(error) for text in _NO_LIBRARY):
        return f"a library cannot be loaded: {str(error).strip().splitlines()[-1]}"
    if not isinstance(error, LbrxError | OSError):
        return f"out of memory: the system refused an allocation ({type(error).__name__}: {error})"
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
