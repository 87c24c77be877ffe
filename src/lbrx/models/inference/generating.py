"""``lbrx.generate``: generate text from a prompt."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from lbrx.engine.device import computing_on
from lbrx.errors import UsageError
from lbrx.models.inference.chat import Prompter
from lbrx.models.inference.opening import open_model
from lbrx.models.inference.sampling import Sampling
from lbrx.models.inference.speed import Speed
from lbrx.models.inference.streaming import text_pieces
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.settings import using


def generate(
    model: str | os.PathLike[str],
    prompt: str,
    *,
    max_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    chat: bool = False,
    system: str | None = None,
    template: str | None = None,
    kv_type: str = "f32",
    threads: int | None = None,
    device: str | None = None,
    speed: Speed | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> str:
    """Generate text that continues a prompt.

    A temperature of 0 takes the most likely token. ``top_k``, ``top_p`` and ``min_p`` limit sampling, and
    ``repetition_penalty`` above 1 avoids tokens of the text so far. With ``chat``, the prompt is a message in the
    model's chat template, after an optional ``system`` message, and the text is the answer; ``template`` is a file, a
    known name or a template to use instead. See also ``lbrx.Chat``. ``kv_type`` is the type of
    the KV cache: f32, f16 or bf16. ``speed`` is filled in. ``progress`` is called with the number of tokens so far,
    ``max_tokens`` and the next piece of text. ``device`` is where products and attention are computed;
    None means the device of the settings.

    >>> from lbrx.demo.models import demo_models
    >>> len(generate(demo_models().base, "Once", max_tokens=3)) > 0
    True
    """
    sampling = Sampling(temperature, top_k, top_p, seed, min_p, repetition_penalty)
    if not chat and (system is not None or template is not None):
        raise UsageError("`system` and `template` need chat=True")
    opened, tokenizer = open_model(Path(model)), open_tokenizer(Path(model))
    stop_ids = tokenizer.stop_ids
    if chat:
        prompter = Prompter(Path(model), tokenizer, template)
        messages = [{"role": "user", "content": prompt}]
        try:
            ids = prompter.ids(messages if system is None else [{"role": "system", "content": system}, *messages])
        finally:
            prompter.close()
        stop_ids = prompter.stop_ids
    else:
        ids = tokenizer.encode(prompt)
    if not ids and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id]
    if not ids:
        raise UsageError("the prompt is empty; expected some text")
    context = opened.spec.context_length
    if len(ids) + max_tokens > context:
        warnings.warn(f"{model} was made for {context:,} tokens; later text makes little sense", stacklevel=2)
    new: list[int] = []

    def drawn(token: int) -> int:
        new.append(token)
        return token

    pieces = []
    with computing_on(device), using(threads=threads):
        drawn_tokens = opened.generate(ids, max_tokens, sampling, stop_ids=stop_ids, kv_type=kv_type)
        tokens = map(drawn, (speed or Speed()).measured(len(ids), drawn_tokens))
        for piece in text_pieces(tokenizer.decode, tokens, before=ids):
            pieces.append(piece)
            if progress is not None:
                progress(len(new), max_tokens, piece)
    return "".join(pieces)
