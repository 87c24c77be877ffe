"""How good a model is at a text: loss and perplexity, and how far it is from a reference."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.device import computing_on
from lbrx.errors import UsageError
from lbrx.files.formats.source import read_text
from lbrx.files.output.options import CountCallback
from lbrx.jobs.score.records import Score
from lbrx.jobs.score.statistics import mean_estimate
from lbrx.jobs.score.tally import Tally, score_window
from lbrx.jobs.score.windows import Window, WindowLayout, windows_of, with_first_tokens
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.tokenizers.text import TextTokenizer, open_tokenizer
from lbrx.registry import RUNNERS, load
from lbrx.settings import using

DEFAULT_CONTEXT = 512
_WARM_UP_TOKENS = 16
_LONGEST_NAME = 1024


def score(
    models: str | PathLike[str] | Sequence[str | PathLike[str]],
    text: str | PathLike[str],
    *,
    reference: str | PathLike[str] | None = None,
    context: int | None = None,
    stride: int | None = None,
    windows: WindowLayout = "overlapping",
    max_tokens: int | None = None,
    progress: CountCallback | None = None,
    threads: int | None = None,
    cluster: str | None = None,
    device: str | None = None,
) -> list[Score]:
    """Score one or more models on a text: a string, or the ``Path`` of a file. A string that names a file is an error.

    With a ``reference`` all models must have its vocabulary and tokenizer; the reference is scored as well, and comes
    first. ``context`` is 512, or the context length of the models if that is less; ``stride`` is half of it.
    ``windows`` are "overlapping": each begins ``stride`` tokens after the one before, and every token but the first is
    scored once, in the first window that contains it. "llama.cpp" are those of llama-perplexity: they do not overlap,
    and only their second halves are scored, so that figures can be compared with those of llama.cpp.
    ``progress`` is called with the windows done, the total, and the current model.

    ``cluster`` is the address of a Ray cluster, or "auto" for the one of this machine: its workers take some windows
    each, with ``threads`` processors for a task. The results are equal to those of one machine if the nodes have the
    same kind of processor. ``seconds`` is then the sum over all workers. ``device`` is
    where this machine computes.

    >>> from lbrx.demo.models import demo_models
    >>> shipped = demo_models()
    >>> prose, code = score([shipped.prose, shipped.code], "And the king said unto him, Go in peace.", context=64)
    >>> prose.loss < code.loss
    True
    """
    paths = [Path(one) for one in ([models] if isinstance(models, str | PathLike) else models)]
    if not paths:
        raise UsageError("no model to score; expected at least one")
    content = _plain_text(text) if isinstance(text, str) else read_text(Path(text))
    if reference is not None:
        origin = Path(reference)
        groups = [[origin, *(path for path in paths if path != origin)]]
    else:
        groups = [[path] for path in paths]
    with computing_on(device, cluster):
        run: ScoreRunner = _run_here if cluster is None else load(RUNNERS["score"])(cluster)
        jobs = [_job(group, content, context, stride, windows, max_tokens, reference is not None) for group in groups]
        report = _Reporter(progress, sum(len(job.windows) for job in jobs))
        tallies = run(jobs, threads, report.step)
    return [one for job, tally in zip(jobs, tallies, strict=True) for one in _finished_job(job, tally)]


# -- one group of models that share their tokens -----------------------------------------------------------------------


@dataclass(slots=True)
class _Reporter:
    callback: CountCallback | None
    windows: int
    done_windows: int = 0

    def step(self, windows: int, name: str) -> None:
        self.done_windows += windows
        if self.callback is not None:
            self.callback(self.done_windows, self.windows, name)


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """Models that go through the same windows of the same tokens; with a reference, that is the first."""

    models: tuple[LanguageModel, ...]
    ids: list[int]
    windows: tuple[Window, ...]
    scored_bytes: int
    has_reference: bool
    is_rounded: bool  # compare with the reference as llama-perplexity does


def _job(
    paths: Sequence[Path],
    text: str,
    context: int | None,
    stride: int | None,
    layout: WindowLayout,
    max_tokens: int | None,
    has_reference: bool,
) -> ScoreJob:
    models = tuple(open_model(path) for path in paths)
    tokenizers = [open_tokenizer(path) for path in paths]
    ids, ends = _tokens(models, tokenizers, text, max_tokens)
    longest = min(model.spec.context_length for model in models)
    width = context or min(DEFAULT_CONTEXT, longest)
    windows = windows_of(layout, len(ids), width, stride)
    if min(width, len(ids)) > longest:
        short = next(model for model in models if model.spec.context_length == longest)
        warnings.warn(
            f"{short.path} was made for {longest:,} tokens; windows of {width:,} score it beyond that", stacklevel=4
        )
    bos = tokenizers[0].bos_id
    if layout == "llama.cpp" and tokenizers[0].special.add_bos and bos is not None:
        ids = with_first_tokens(ids, windows, bos)
    scored_bytes = sum(int(ends[stop - 1] - ends[first - 1]) for _, stop, first in windows)
    return ScoreJob(models, ids, windows, scored_bytes, has_reference, layout == "llama.cpp")


ScoreRunner = Callable[[Sequence[ScoreJob], int | None, Callable[[int, str], None]], list[list[Tally]]]
"""Computes the tallies of each job's models with so many threads, and reports windows that are done, with a model."""


def _run_here(jobs: Sequence[ScoreJob], threads: int | None, step: Callable[[int, str], None]) -> list[list[Tally]]:
    with using(threads=threads):
        return [_tallies(job, step) for job in jobs]


def _tallies(job: ScoreJob, step: Callable[[int, str], None]) -> list[Tally]:
    warm_up(job.models, job.ids)
    tallies = [Tally() for _ in job.models]
    for window in job.windows:
        score_window(job.models, tallies, job.ids, window, job.has_reference, job.is_rounded)
        step(1, str(job.models[0].path))
    return tallies


def warm_up(models: Sequence[LanguageModel], ids: Sequence[int]) -> None:
    """Let kernels be compiled or loaded, which they are when they are first used, and which is not to be timed."""
    for model in models:
        model.logits(ids[:_WARM_UP_TOKENS])


def _finished_job(job: ScoreJob, tallies: Sequence[Tally]) -> list[Score]:
    processed = sum(window.stop - window.start for window in job.windows)
    return [_finished(model.path, tally, job, processed) for model, tally in zip(job.models, tallies, strict=True)]


def _tokens(
    models: Sequence[LanguageModel], tokenizers: Sequence[TextTokenizer], text: str, max_tokens: int | None
) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the tokens of the text, which all models share, and the byte of the text behind each."""
    first = models[0]
    if not text:
        raise UsageError("the text is empty; expected some to score")
    ids, ends = tokenizers[0].encode_with_ends(text)
    for model, tokenizer in zip(models[1:], tokenizers[1:], strict=True):
        if tokenizer.encode(text) != ids or model.spec.vocabulary != first.spec.vocabulary:
            raise UsageError(
                f"{model.path}: has another tokenizer or vocabulary than {first.path}; "
                "expected the same, so that their predictions can be compared"
            )
    ids = ids[:max_tokens]
    if len(ids) < 2:
        raise UsageError(
            f"the text has {len(ids)} token{'s' * (len(ids) != 1)}; expected at least 2, the second is scored"
        )
    first.checked_ids(ids)
    return ids, ends


def _plain_text(text: str) -> str:
    """Return the text, which must not be the name of a file by mistake."""
    if len(text) <= _LONGEST_NAME and "\n" not in text and os.path.isfile(text):
        raise UsageError(f"the text {text!r} is the name of a file; to score the file, give pathlib.Path({text!r})")
    return text


def _finished(path: Path, tally: Tally, job: ScoreJob, processed: int) -> Score:
    losses = tally.token_losses
    deviation = float(losses.std(ddof=1)) if losses.size > 1 else math.nan
    return Score(
        model=path,
        tokens=losses.size,
        loss=float(losses.mean()),
        loss_error=deviation / math.sqrt(losses.size),
        loss_interval=mean_estimate(losses),
        bits_per_byte=float(losses.sum()) / math.log(2) / max(job.scored_bytes, 1),
        seconds=tally.seconds,
        processed_tokens=processed,
        divergence=tally.divergence() if tally.divergences else None,
        scored_bytes=job.scored_bytes,
        ids=tuple(job.ids),
        token_losses=losses,
    )
