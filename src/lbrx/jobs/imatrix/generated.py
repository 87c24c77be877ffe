"""A text for calibration that the model writes by itself: its inputs of layers are like those of later use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lbrx.base.atomic_write import write_atomically
from lbrx.base.system import remove_file
from lbrx.errors import FileError
from lbrx.files.output.options import CountCallback
from lbrx.files.output.plan import model_state
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.models.inference import open_model
from lbrx.models.inference.sampled_texts import sampled_texts
from lbrx.models.tokenizers.text import TextTokenizer, open_tokenizer
from lbrx.settings import arithmetic_version

GENERATED = "generated"
"""The name to give instead of a text."""
GENERATED_ENDING = ".generated.txt"

_TEXTS, _TOKENS, _PROMPT_TOKENS = 32, 512, 4


def written_texts(source: Path, out: Path, texts: Sequence[Path], progress: CountCallback | None = None) -> list[Path]:
    """Return texts; the name ``GENERATED``, if no file has it, stands for one that the model writes beside an output.

    >>> written_texts(Path("model"), Path("model.gguf"), [Path("a.txt")])
    [PosixPath('a.txt')]
    """
    own = generated_text(source, out, progress) if any(map(is_generated, texts)) else None
    return [own if own and is_generated(text) else text for text in texts]


def is_generated(text: Path) -> bool:
    """Whether a path stands for a text that the model writes."""
    return str(text) == GENERATED and not text.exists()


def generated_text(source: Path, out: Path, progress: CountCallback | None = None) -> Path:
    """Write a text of a model beside an output, unless it is there already; returns its path.

    Pieces of the text of this package are continued with the probabilities of the model, and that text follows.
    """
    path = out.with_name(f"{out.name.removesuffix('.gguf')}{GENERATED_ENDING}")
    identity_path = path.with_name(f".{path.name}.json")
    given = [arithmetic_version(), str(source.resolve()), model_state(source), _TEXTS, _TOKENS, _PROMPT_TOKENS]
    identity = hashlib.sha256(json.dumps(given).encode()).hexdigest()
    known = _known(identity_path)
    if path.exists():
        if known is None:
            raise FileError(f"{path}: was not written by lbrx for this model; move it, or give it with --calibrate")
        if known == identity:
            return path
        remove_file(path)
    written = _written(source, progress).encode()
    write_atomically(identity_path, json.dumps(identity).encode())  # a text without it is not ours
    write_atomically(path, written, sync=False)
    return path


def _known(identity_path: Path) -> object:
    """The identity of a text from an earlier run, or None."""
    try:
        return json.loads(identity_path.read_text())
    except (OSError, ValueError):
        return None


def _written(source: Path, progress: CountCallback | None) -> str:
    model, tokenizer = open_model(source), open_tokenizer(source)
    tokens = min(_TOKENS, model.spec.context_length)

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(done * _TEXTS, total * _TEXTS, "text")

    texts = sampled_texts(model, _prompts(tokenizer), tokens, forbidden=tokenizer.stop_ids, progress=report)
    return "\n\n".join([*(tokenizer.decode(ids.tolist()) for ids in texts), calibration_text()])


def _prompts(tokenizer: TextTokenizer) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The first tokens of each text: pieces of the text of this package."""
    ids = tokenizer.encode(calibration_text(), add_special=False)
    first = [] if tokenizer.bos_id is None or not tokenizer.special.add_bos else [tokenizer.bos_id]
    starts = [number * (len(ids) - _PROMPT_TOKENS) // _TEXTS for number in range(_TEXTS)]
    return np.array([[*first, *ids[start : start + _PROMPT_TOKENS]] for start in starts], np.int64)
