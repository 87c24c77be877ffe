"""``lbrx.merge_lora``: a base model with a LoRA adapter added."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Unpack

from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.run import RunResult
from lbrx.jobs.merge.inline import inline_recipe
from lbrx.jobs.merge.merge import merge


@takes_run_options
def merge_lora(
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Add a LoRA adapter, or several, to the base model: the counterpart of `lbrx.extract_lora`.

    Adapters of PEFT, MLX and llama.cpp can be added. The options are those of `merge`.

    >>> import lbrx, tempfile
    >>> from lbrx.demo.models import demo_models
    >>> models, folder = demo_models(), tempfile.mkdtemp()
    >>> _ = lbrx.extract_lora(models.code, models.base, f"{folder}/adapter", rank=2, modules="q_proj")
    >>> merge_lora(models.base, f"{folder}/adapter", f"{folder}/merged").tensors
    29
    """
    return merge(lora_recipe(base, adapter), out, **options)


def lora_recipe(
    base: str | os.PathLike[str], adapter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
) -> str:
    """Return the recipe of a model with adapters.

    >>> lora_recipe("base", ["a", "b"]).splitlines()[2]
    '  - model: base+a+b'
    """
    listed = [adapter] if isinstance(adapter, str | os.PathLike) else adapter
    model = "+".join(os.fspath(path) for path in (base, *listed))
    return inline_recipe([model], "passthrough", None, {})
