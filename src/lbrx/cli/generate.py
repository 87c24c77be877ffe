"""`lbrx generate`: a text goes on as a model would write it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Annotated

from lbrx.cli.options import Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.errors import UsageError


def generate(
    model: Annotated[Path, Argument("The directory of a model, or a .gguf file.")],
    prompt: Annotated[str, Option("--prompt", "-p", help="How the text begins; '-' reads standard input.")],
    max_tokens: Annotated[int, Option("--max-tokens", "-n", min=1, help="The most tokens to write.")] = 100,
    temperature: Annotated[float, Option(help="0 takes the likeliest token; higher values surprise more.")] = 0.0,
    top_k: Annotated[int, Option(help="Draw from this many tokens; 0 from all.")] = 0,
    top_p: Annotated[float, Option(help="Draw from the likeliest tokens that make up this share.")] = 1.0,
    seed: Annotated[int, Option(help="The same seed draws the same text.")] = 0,
    threads: Threads = None,
    stats: Annotated[bool, Option("--stats", help="Print tokens per second when done.")] = False,
) -> None:
    """Generate text from a prompt.

    Words appear as they are drawn. Weights are read from the file as they are, quantized or not.

    Examples:

      lbrx generate model --prompt "In the beginning"

      lbrx generate model.gguf -p "def main():" --temperature 0.8 --top-p 0.95 --seed 7
    """
    from lbrx.models.inference import Sampling, open_model
    from lbrx.models.inference.streaming import text_pieces
    from lbrx.models.tokenizers.text import open_tokenizer
    from lbrx.settings import using

    check_model(model)
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = Sampling(temperature, top_k, top_p, seed)
    if temperature == 0 and (top_k != 0 or top_p != 1):
        raise UsageError("--top-k and --top-p choose what is drawn from; expected a --temperature above 0 as well")
    opened, tokenizer = open_model(model), open_tokenizer(model)
    ids = tokenizer.encode(text)
    if not ids and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id]
    if not ids:
        raise UsageError("the prompt is empty; expected some text")
    context = opened.spec.context_length
    if len(ids) + max_tokens > context:
        sys.stderr.write(
            f"warning: {model} was made for {context:,} tokens; what comes after them makes little sense\n"
        )
    with using(threads=threads):
        start = perf_counter()
        new = opened.generate(ids, max_tokens, sampling, stop_ids=tokenizer.stop_ids)
        counted = _Counted(new)
        sys.stdout.write(text)
        sys.stdout.flush()
        for piece in text_pieces(tokenizer.decode, counted, before=ids):
            sys.stdout.write(piece)
            sys.stdout.flush()
        seconds = perf_counter() - start
    sys.stdout.write("\n")
    if stats:
        rate = counted.count / max(seconds, 1e-9)
        sys.stderr.write(f"{counted.count} tokens in {seconds:.2f} s, {rate:.1f} tokens/s\n")


class _Counted:
    """Tokens, counted as they go by."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = iter(tokens)
        self.count = 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> int:
        token = next(self._tokens)
        self.count += 1
        return token
