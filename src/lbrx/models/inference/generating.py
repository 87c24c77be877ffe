"""``lbrx.generate``: text from a prompt."""

from __future__ import annotations

import os
from pathlib import Path

from lbrx.errors import UsageError
from lbrx.models.inference.opening import open_model
from lbrx.models.inference.sampling import Sampling
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
    seed: int = 0,
    threads: int | None = None,
) -> str:
    """The text with which a model continues a prompt.

    A temperature of 0 takes the likeliest token. ``top_k`` and ``top_p`` limit what is sampled from.

    >>> from lbrx.demo.models import demo_models
    >>> len(generate(demo_models().base, "Once", max_tokens=3)) > 0
    True
    """
    opened, tokenizer = open_model(Path(model)), open_tokenizer(Path(model))
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids = tokenizer.encode(prompt) or start
    if not ids:
        raise UsageError("the prompt is empty; expected some text")
    sampling = Sampling(temperature, top_k, top_p, seed)
    with using(threads=threads):
        new = list(opened.generate(ids, max_tokens, sampling, stop_ids=tokenizer.stop_ids))
    return tokenizer.decode([*ids, *new])[len(tokenizer.decode(ids)) :]
