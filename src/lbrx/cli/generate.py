"""`lbrx generate`: generate text from a prompt."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.options import Device, Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.errors import UsageError

if TYPE_CHECKING:
    from lbrx.models.inference import Speed


def generate(
    model: Annotated[Path, Argument("A model directory or a .gguf file.")],
    prompt: Annotated[str, Option("--prompt", "-p", help="The prompt; '-' reads standard input.")],
    max_tokens: Annotated[int, Option("--max-tokens", "-n", min=1, help="Maximum number of new tokens.")] = 100,
    temperature: Annotated[float, Option(help="0 always picks the most likely token.")] = 0.0,
    top_k: Annotated[int, Option(help="Sample from this many tokens; 0 means all.")] = 0,
    top_p: Annotated[float, Option(help="Sample from the top tokens with this total probability.")] = 1.0,
    min_p: Annotated[float, Option(help="Drop tokens less likely than this part of the most likely one.")] = 0.0,
    repetition_penalty: Annotated[float, Option(help="Above 1 avoids tokens of the text so far.")] = 1.0,
    seed: Annotated[int, Option(help="Random seed for sampling.")] = 0,
    chat: Annotated[
        bool, Option("--chat", help="Answer the prompt as a message, with the model's chat template.")
    ] = False,
    system: Annotated[str | None, Option(help="System message for --chat.")] = None,
    template: Annotated[
        str | None, Option(metavar="NAME|FILE", help="Chat template for --chat instead of the model's own.")
    ] = None,
    threads: Threads = None,
    device: Device = "cpu",
    kv_type: Annotated[str, Option("--kv-type", help="Type of the KV cache: f32, f16 or bf16.")] = "f32",
    stats: Annotated[bool, Option("--stats", help="Print the speed of prompt and new tokens when done.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print prompt, text and speed as JSON when done.")] = False,
) -> None:
    """Generate text from a prompt.

    Prints tokens as they are generated. Quantized weights are used directly, without converting the model first.

    Examples:

      lbrx generate model --prompt "In the beginning"

      lbrx generate model.gguf -p "def main():" --temperature 0.8 --top-p 0.95 --seed 7

      lbrx generate model -p "Once" --json

      lbrx generate model.gguf --chat -p "What is the capital of France?" --system "Answer in one word."
    """
    from lbrx.engine.key_values import check_kv_type
    from lbrx.models.inference import Sampling, Speed
    from lbrx.models.inference.generating import generate as generate_text

    check_model(model)
    Sampling(temperature, top_k, top_p, seed, min_p, repetition_penalty)  # check the values first
    check_kv_type(kv_type)
    if temperature == 0 and (top_k != 0 or top_p != 1 or min_p != 0):
        raise UsageError("--top-k, --top-p and --min-p have no effect at temperature 0; add a --temperature above 0")
    if not chat and (system is not None or template is not None):
        raise UsageError("--system and --template need --chat")
    text = sys.stdin.read() if prompt == "-" else prompt
    written, speed = _Written(None if json_output else "" if chat else text), Speed()
    with plain_warnings():
        continuation = generate_text(
            model,
            text,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            chat=chat,
            system=system,
            template=template,
            kv_type=kv_type,
            threads=threads,
            device=device,
            speed=speed,
            progress=written,
        )
    if json_output:
        print(json.dumps({"model": str(model), "prompt": text, "text": continuation, **_numbers(speed, written)}))
        return
    written.done()
    if stats:
        sys.stderr.write(
            f"prompt: {speed.prompt_tokens} tokens in {speed.prompt_seconds:.2f} s, "
            f"{speed.prompt_tokens_per_second:.1f} tokens/s\n"
            f"text: {speed.tokens} tokens in {speed.seconds:.2f} s, {speed.decode_tokens_per_second:.1f} tokens/s\n"
        )


def _numbers(speed: Speed, written: _Written) -> dict[str, float]:
    seconds = written.seconds
    return {
        "tokens": speed.tokens,
        "seconds": seconds,
        "tokens_per_second": speed.tokens / max(seconds, 1e-9),
        "prompt_tokens": speed.prompt_tokens,
        "prompt_seconds": speed.prompt_seconds,
        "prompt_tokens_per_second": speed.prompt_tokens_per_second,
        "decode_seconds": speed.seconds,
        "decode_tokens_per_second": speed.decode_tokens_per_second,
    }


class _Written:
    """Write the generated text after ``prompt``, unless that is None, and count seconds."""

    def __init__(self, prompt: str | None) -> None:
        self._unwritten = prompt
        self._start = perf_counter()

    def __call__(self, _tokens: int, _max_tokens: int, piece: str) -> None:
        if self._unwritten is not None:
            sys.stdout.write(self._unwritten + piece)
            sys.stdout.flush()
            self._unwritten = ""

    @property
    def seconds(self) -> float:
        return perf_counter() - self._start

    def done(self) -> None:
        sys.stdout.write((self._unwritten or "") + "\n")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the source location."""

    def show(message: Warning | str, *_where: Any, **_more: Any) -> None:
        sys.stderr.write(f"warning: {message}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
