"""`lbrx generate`: generate text from a prompt."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

from lbrx.cli.options import Device, Threads
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
    device: Device = "cpu",
    stats: Annotated[bool, Option("--stats", help="Print tokens per second when done.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print prompt, text and speed as JSON when done.")] = False,
) -> None:
    """Generate text from a prompt.

    Prints tokens as they are generated. Quantized weights are used directly, without converting the model first.

    Examples:

      lbrx generate model --prompt "In the beginning"

      lbrx generate model.gguf -p "def main():" --temperature 0.8 --top-p 0.95 --seed 7

      lbrx generate model -p "Once" --json
    """
    from lbrx.models.inference import Sampling
    from lbrx.models.inference.generating import generate as generate_text

    check_model(model)
    Sampling(temperature, top_k, top_p, seed)  # check the values first
    if temperature == 0 and (top_k != 0 or top_p != 1):
        raise UsageError("--top-k and --top-p have no effect at temperature 0; add a --temperature above 0")
    text = sys.stdin.read() if prompt == "-" else prompt
    written = _Written(None if json_output else text)
    with _plain_warnings():
        continuation = generate_text(
            model,
            text,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            threads=threads,
            device=device,
            progress=written,
        )
    if json_output:
        print(json.dumps({"model": str(model), "prompt": text, "text": continuation, **written.speed()}))
    else:
        written.done(with_stats=stats)


class _Written:
    """Count tokens and seconds, and write the generated text after ``prompt``, unless that is None."""

    def __init__(self, prompt: str | None) -> None:
        self._unwritten = prompt
        self._tokens = 0
        self._start = perf_counter()

    def __call__(self, tokens: int, _max_tokens: int, piece: str) -> None:
        self._tokens = tokens
        if self._unwritten is not None:
            sys.stdout.write(self._unwritten + piece)
            sys.stdout.flush()
            self._unwritten = ""

    def speed(self) -> dict[str, float]:
        seconds = perf_counter() - self._start
        return {"tokens": self._tokens, "seconds": seconds, "tokens_per_second": self._tokens / max(seconds, 1e-9)}

    def done(self, *, with_stats: bool) -> None:
        speed = self.speed()
        sys.stdout.write((self._unwritten or "") + "\n")
        if with_stats:
            sys.stderr.write("{tokens} tokens in {seconds:.2f} s, {tokens_per_second:.1f} tokens/s\n".format(**speed))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the source location."""

    def show(message: Warning | str, *_where: Any, **_more: Any) -> None:
        sys.stderr.write(f"warning: {message}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
