"""`lbrx generate`: generate text from a prompt."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from lbrx.cli.options import Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.errors import UsageError


def generate(
    model: Annotated[Path, Argument("A model directory or a .gguf file.")],
    prompt: Annotated[str, Option("--prompt", "-p", help="The prompt; '-' reads standard input.")],
    max_tokens: Annotated[int, Option("--max-tokens", "-n", min=1, help="Maximum number of new tokens.")] = 100,
    temperature: Annotated[float, Option(help="0 always picks the most likely token.")] = 0.0,
    top_k: Annotated[int, Option(help="Sample from this many tokens; 0 means all.")] = 0,
    top_p: Annotated[float, Option(help="Sample from the top tokens with this total probability.")] = 1.0,
    seed: Annotated[int, Option(help="Random seed for sampling.")] = 0,
    threads: Threads = None,
    stats: Annotated[bool, Option("--stats", help="Print tokens per second when done.")] = False,
) -> None:
    """Generate text from a prompt.

    Prints tokens as they are generated. Quantized weights are used directly, without converting the model first.

    Examples:

      lbrx generate model --prompt "In the beginning"

      lbrx generate model.gguf -p "def main():" --temperature 0.8 --top-p 0.95 --seed 7
    """
    from lbrx.models.inference import Sampling
    from lbrx.models.inference.generating import generate as generate_text

    check_model(model)
    Sampling(temperature, top_k, top_p, seed)  # check the values first
    if temperature == 0 and (top_k != 0 or top_p != 1):
        raise UsageError("--top-k and --top-p have no effect at temperature 0; add a --temperature above 0")
    text = sys.stdin.read() if prompt == "-" else prompt
    written = _Written(text)
    with _plain_warnings():
        generate_text(
            model,
            text,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            threads=threads,
            progress=written,
        )
    written.done(with_stats=stats)


class _Written:
    """Write the prompt and the generated text, and count tokens and seconds."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._tokens = 0
        self._start = perf_counter()

    def __call__(self, tokens: int, _max_tokens: int, piece: str) -> None:
        sys.stdout.write(self._prompt + piece)
        sys.stdout.flush()
        self._prompt = ""
        self._tokens = tokens

    def done(self, *, with_stats: bool) -> None:
        seconds = perf_counter() - self._start
        sys.stdout.write(self._prompt + "\n")
        if with_stats:
            rate = self._tokens / max(seconds, 1e-9)
            sys.stderr.write(f"{self._tokens} tokens in {seconds:.2f} s, {rate:.1f} tokens/s\n")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the source location."""

    def show(message: Warning | str, *_where: Any, **_more: Any) -> None:
        sys.stderr.write(f"warning: {message}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
