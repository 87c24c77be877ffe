"""How sensitive a model is to the quantization of each tensor: the divergence of its predictions on a text.

Each tensor is quantized on its own, to a type of about four bits, and the model is run on some chunks of the text. The
divergence with another type follows from the ratio of the weighted errors of both types. Results are kept in a file,
for other sizes and to resume.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.output.options import CountCallback
from lbrx.files.output.plan import model_state
from lbrx.jobs.imatrix.imatrix import calibration_chunks
from lbrx.jobs.quantize.samples import spread
from lbrx.models.architectures.gguf_roles import OUTPUT_NAME, layer_of
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.inference.divergence import DivergenceRun
from lbrx.models.inference.language_model import TokenIds
from lbrx.models.inference.watching import gguf_names, matrices_by_name
from lbrx.models.inference.weights import Matrix
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.settings import arithmetic_version
from lbrx.tensors.tensor import Tensor

_CONTEXT = 512
_CHUNKS = 2
_EMBEDDING_NAME = "token_embd.weight"

_MOST_DIVERGENCE = 0.1  # of a trial: above, divergence does not grow with the error any more
_TRIED_BITS = 4.5

Encode = Callable[[str, Tensor, int], Tensor]
"""A type, a matrix, and its number in its tensor; returns its values after quantization."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A tensor by its name in GGUF or MLX, the types to try in their order, and what they make of its matrices."""

    tensor: str
    types: tuple[str, ...]
    encode: Encode

    @classmethod
    def of(cls, tensor: str, elements: int, nbytes: Mapping[str, int], encode: Encode) -> Trial:
        """Try the type that is nearest to four and a half bits, then larger ones, given the bytes of each.

        >>> Trial.of("w", 100, {"q8_0": 106, "q4_0": 56, "q2_k": 32}, lambda type_name, values, item: values).types
        ('q4_0', 'q8_0')
        """
        ordered = sorted(nbytes, key=lambda name: (nbytes[name], name))
        first = min(ordered, key=lambda name: abs(nbytes[name] - _TRIED_BITS / 8 * elements))
        return cls(tensor, tuple(ordered[ordered.index(first) :]), encode)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The divergence of a model in nats per token if one tensor has a type."""

    type_name: str
    divergence: float


def sensitivity_path(out: Path, model: str) -> Path:
    """The file of measurements, which outputs of one model in a directory share."""
    return out.parent / f"{model}.sensitivity.json"


def read_sensitivities(path: Path) -> dict[str, Sensitivity]:
    """The measurements in a file, by the names of tensors."""
    return _stored(json.loads(path.read_bytes()))


def identity_of(path: Path) -> str:
    """What the measurements in a file depend on."""
    return str(json.loads(path.read_bytes())["identity"])


def weights_by_divergence(
    names: Sequence[str],
    errors: Sequence[Mapping[str, float]],
    weights: Sequence[float],
    sensitivities: Mapping[str, Sensitivity],
) -> list[float]:
    """The divergence for each unit of a tensor's error. One that was not measured has its weight times the usual one.

    >>> measured = {"a": Sensitivity("q4_0", 0.01)}
    >>> weights_by_divergence(["a", "b"], [{"q4_0": 0.5}, {"q4_0": 0.1}], [1.0, 2.0], measured)
    [0.02, 0.04]
    """
    found: list[float | None] = []
    for name, own in zip(names, errors, strict=True):
        known = sensitivities.get(name)
        error = 0.0 if known is None else own[known.type_name]
        found.append(known.divergence / error if known is not None and error > 0.0 else None)
    ratios = [value / weight for value, weight in zip(found, weights, strict=True) if value is not None]
    usual = median(ratios) if ratios else 1.0
    return [weight * usual if value is None else value for value, weight in zip(found, weights, strict=True)]


def _stored(content: Any) -> dict[str, Sensitivity]:
    return {name: Sensitivity(*row) for name, row in content["divergences"].items()}


def measure_sensitivities(
    source: Path, path: Path, trials: Sequence[Trial], texts: Sequence[Path], progress: CountCallback | None = None
) -> None:
    """Measure what is not in the file yet. It is saved after each tensor."""
    model, tokenizer = open_model(source), open_tokenizer(source)
    context = min(_CONTEXT, model.spec.context_length)
    chunks = calibration_chunks(model, tokenizer, texts, context, None)
    picked = [chunks[number] for number in spread(len(chunks), _CHUNKS)]
    digest = hashlib.sha256(json.dumps([arithmetic_version(), str(source.resolve()), model_state(source)]).encode())
    for chunk in picked:
        digest.update(chunk.tobytes())
    identity = digest.hexdigest()
    known = _known(path, identity)
    waiting = {trial.tensor: trial for trial in trials if trial.tensor not in known}
    if waiting:
        for name, found in _measured(model, picked, waiting, progress):
            known[name] = found
            _save(path, identity, known)


def _measured(
    model: LanguageModel,
    chunks: Sequence[TokenIds],
    trials: Mapping[str, Trial],
    progress: CountCallback | None,
) -> Iterator[tuple[str, Sensitivity]]:
    run, matrices = DivergenceRun(model, chunks), matrices_by_name(model.spec, model.weights)
    other_names = gguf_names(model.spec, trials)
    known = {name: gguf for name in trials if (gguf := other_names.get(name, name)) in (*matrices, _EMBEDDING_NAME)}
    last = max((layer_of(gguf) or 0 for gguf in known.values()), default=0)
    done = 0
    for layer in (None, *range(last + 1)):
        for name, gguf in known.items():
            if layer_of(gguf) != layer:
                continue
            if progress is not None:
                progress(done, len(known), name)
            yield name, _tried(trials[name], model, partial(_divergence, run, model, gguf, matrices.get(gguf, [])))
            done += 1
        if layer is not None and layer < last:
            run.advance()


def _tried(trial: Trial, model: LanguageModel, divergence_of: Callable[[Callable[..., Tensor]], float]) -> Sensitivity:
    """Try types until one does not change the predictions too much."""
    found = Sensitivity("", math.inf)
    for type_name in trial.types:
        found = Sensitivity(type_name, divergence_of(partial(trial.encode, type_name)))
        if not math.isfinite(found.divergence):
            raise UsageError(f"{model.path}: predictions with {trial.tensor!r} as {type_name} are not finite")
        if found.divergence <= _MOST_DIVERGENCE:
            break
    return found


def _divergence(
    run: DivergenceRun,
    model: LanguageModel,
    name: str,
    matrices: Sequence[tuple[Matrix, int]],
    encode: Callable[[Tensor, int], Tensor],
) -> float:
    if name == _EMBEDDING_NAME:
        return run.with_embedding(encode(model.weights.embedding, 0))
    changed = {id(each): Matrix(encode(each.weight, item), each.bias) for each, item in matrices}
    if name == OUTPUT_NAME:
        return run.with_output(changed[id(model.weights.output)])
    return run.with_matrices(changed)


def _known(path: Path, identity: str) -> dict[str, Sensitivity]:
    try:
        content = json.loads(path.read_bytes())
        return _stored(content) if content["identity"] == identity else {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _save(path: Path, identity: str, known: Mapping[str, Sensitivity]) -> None:
    rows = {name: [each.type_name, each.divergence] for name, each in sorted(known.items())}
    text = json.dumps({"identity": identity, "divergences": rows}, indent=1) + "\n"
    write_atomically(path, text.encode(), sync=False)
