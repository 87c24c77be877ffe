"""`lbrx chat`: talk to one or several models."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.options import Device, Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.errors import LbrxError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lbrx.models.inference import Speed
    from lbrx.models.inference.chat import Chat

_HELP = """\
/reset        begin a new conversation
/system TEXT  change or remove the system message, and begin a new conversation
/exit         end (or Ctrl-D); Ctrl-C stops an answer, and ends the chat if pressed twice at the prompt
A line that ends with \\ is continued on the next line. A message that begins with // begins with one /."""
_COMMAND = re.compile(r"/[a-z]+(\s|$)")


def chat(
    models: Annotated[list[Path], Argument("Model directories or .gguf files.", "MODEL...")],
    system: Annotated[str | None, Option(help="System message: how the model should behave.")] = None,
    max_tokens: Annotated[
        int, Option("--max-tokens", "-n", min=1, help="Maximum number of tokens of an answer.")
    ] = 512,
    temperature: Annotated[float, Option(help="0 always picks the most likely token.")] = 0.7,
    top_k: Annotated[int, Option(help="Sample from this many tokens; 0 means all.")] = 0,
    top_p: Annotated[float, Option(help="Sample from the top tokens with this total probability.")] = 0.95,
    min_p: Annotated[float, Option(help="Drop tokens less likely than this part of the most likely one.")] = 0.0,
    repetition_penalty: Annotated[float, Option(help="Above 1 avoids tokens of the text so far.")] = 1.0,
    seed: Annotated[int, Option(help="Random seed for sampling.")] = 0,
    context: Annotated[
        int | None,
        Option(min=2, help="Tokens that a model sees at a time (default: the model's limit, at most 8192)."),
    ] = None,
    template: Annotated[
        str | None, Option(metavar="NAME|FILE", help="Chat template instead of the model's own, such as chatml.")
    ] = None,
    threads: Threads = None,
    device: Device = "cpu",
    kv_type: Annotated[str, Option("--kv-type", help="Type of the KV cache: f32, f16 or bf16.")] = "f32",
    stats: Annotated[bool, Option("--stats", help="Print the speed after each answer.")] = False,
) -> None:
    """Talk to a model, or to several side by side.

    Messages are read from the terminal, or one per line from a pipe. Type /help for commands. The model's chat template
    is rendered in a sandbox. Keys and values of earlier turns are kept, so that long conversations stay fast. If a
    conversation exceeds the context, the model no longer sees its oldest turns.

    Examples:

      lbrx chat model.gguf

      lbrx chat model-a model-b --system "Answer in one sentence."

      echo "What is the capital of France?" | lbrx chat model.gguf --seed 7
    """
    for model in models:
        check_model(model)
    from lbrx.cli.generate import plain_warnings
    from lbrx.engine.key_values import check_kv_type
    from lbrx.models.inference.chat import Chat

    check_kv_type(kv_type)
    if temperature == 0:
        top_k, top_p, min_p = 0, 1.0, 0.0
    with ExitStack() as stack, plain_warnings():
        chats = [
            stack.enter_context(
                Chat(
                    model,
                    system=system,
                    template=template,
                    max_tokens=max_tokens,
                    context=context,
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    repetition_penalty=repetition_penalty,
                    seed=seed,
                    kv_type=kv_type,
                    threads=threads,
                    device=device,
                )
            )
            for model in models
        ]
        _Conversation(chats, with_stats=stats).run()


class _Conversation:
    """Reads messages and commands, and prints the answers of the models."""

    def __init__(self, chats: Sequence[Chat], *, with_stats: bool) -> None:
        self._chats = chats
        self._names = _names([chat.path for chat in chats])
        self._with_stats = with_stats
        self._is_terminal = sys.stdin.isatty()

    def run(self) -> None:
        if self._is_terminal:
            sys.stderr.write(f"{', '.join(self._names)}: type a message, /help or /exit\n")
        for text in self._messages():
            if text in ("/exit", "/quit"):
                return
            if text == "/help":
                print(_HELP)
            elif text in ("/reset", "/system") or text.startswith("/system "):
                self._restart(None if text == "/reset" else text.removeprefix("/system").strip())
            elif _COMMAND.match(text):
                sys.stderr.write(
                    f"unknown command {text.split()[0]}; /help lists all, and // begins a message with /\n"
                )
            elif text:
                self._answer(text[1:] if text.startswith("//") else text)

    def _messages(self) -> Iterator[str]:
        was_interrupted = False
        while True:
            try:
                line = self._line("> ")
                while line.endswith("\\"):
                    line = f"{line[:-1]}\n{self._line('  ')}"
            except EOFError:
                if self._is_terminal:
                    print()
                return
            except KeyboardInterrupt:
                if was_interrupted or not self._is_terminal:
                    raise
                was_interrupted = True
                sys.stderr.write("\npress Ctrl-C again, or Ctrl-D, to end\n")
                continue
            was_interrupted = was_interrupted and not line.strip()
            yield line.strip()

    def _line(self, prompt: str) -> str:
        if self._is_terminal:
            import readline  # noqa: F401 - input() then has a history and line editing

            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def _restart(self, system: str | None) -> None:
        for chat in self._chats:
            chat.system = chat.system if system is None else system or None
            chat.reset()

    def _answer(self, text: str) -> None:
        left_out = [chat.left_out for chat in self._chats]
        try:
            if len(self._chats) > 1 and sys.stdout.isatty():
                self._side_by_side(text)
            else:
                self._one_by_one(text)
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            print()
        except LbrxError as error:
            if not self._is_terminal:
                raise
            sys.stderr.write(f"error: {error}\n")
        for chat, name, before in zip(self._chats, self._names, left_out, strict=True):
            if chat.cut_after is not None:
                sys.stderr.write(f"note: {name}: {_cut_text(chat.cut_after, chat.max_tokens)}\n")
            if chat.left_out > before:
                sys.stderr.write(f"note: {name} no longer sees the first {chat.left_out} messages\n")

    def _one_by_one(self, text: str) -> None:
        from lbrx.models.inference import Speed

        for chat, name in zip(self._chats, self._names, strict=True):
            if len(self._chats) > 1:
                print(f"{name}:")
            speed = Speed()
            for piece in chat.reply(text, speed=speed):
                sys.stdout.write(_visible(piece))
                sys.stdout.flush()
            print()
            self._print_stats(speed)

    def _side_by_side(self, text: str) -> None:
        """Show the answers in columns, a token of each model in turn."""
        from rich.live import Live

        from lbrx.cli.console import output_console
        from lbrx.models.inference import Speed

        console, written = output_console(), [""] * len(self._chats)
        speeds = [Speed() for _ in self._chats]
        answers = {number: chat.reply(text, speed=speeds[number]) for number, chat in enumerate(self._chats)}
        try:
            with Live(console=console, refresh_per_second=8, transient=True, vertical_overflow="crop") as live:
                while answers:
                    for number, answer in list(answers.items()):
                        piece = next(answer, None)
                        if piece is None:
                            del answers[number]
                        else:
                            written[number] += _visible(piece)
                    live.update(_columns(self._names, _ends(written, console)))
        finally:
            console.print(_columns(self._names, written))
        for name, speed in zip(self._names, speeds, strict=True):
            self._print_stats(speed, f"{name}: ")

    def _print_stats(self, speed: Speed, before: str = "") -> None:
        if self._with_stats:
            sys.stderr.write(
                f"{before}{speed.prompt_tokens} tokens read at {speed.prompt_tokens_per_second:.1f} tokens/s, "
                f"{speed.tokens} written at {speed.decode_tokens_per_second:.1f} tokens/s\n"
            )


def _cut_text(tokens: int, max_tokens: int) -> str:
    """Say which limit ended an answer.

    >>> _cut_text(512, 512)
    'the answer was cut after 512 tokens; --max-tokens allows more'
    """
    limit = "--max-tokens allows more" if tokens == max_tokens else "the context is full, /reset begins a new one"
    return f"the answer was cut after {tokens:,} token{'s' * (tokens != 1)}; {limit}"


def _ends(texts: Sequence[str], console: Console) -> list[str]:
    """The last lines of texts in columns, as many as the terminal has."""
    from rich.text import Text

    width = max((console.width + 3) // len(texts) - 3, 1)
    lines = max(console.height - 4, 1)
    return ["\n".join(line.plain for line in Text(text).wrap(console, width)[-lines:]) for text in texts]


def _columns(names: Sequence[str], texts: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=True, show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(Text(name), ratio=1)
    table.add_row(*(Text(text) for text in texts))
    return table


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the names of files and directories, or whole paths if these are not different."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _visible(piece: str) -> str:
    """Return a piece of text without control characters, which could change the terminal.

    >>> _visible("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\n'
    """
    if piece.isprintable():
        return piece
    return "".join(
        each if each.isprintable() or each in "\n\t" or ord(each) > 0x9F else repr(each)[1:-1] for each in piece
    )
