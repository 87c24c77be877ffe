"""``lbrx.search``: find the values of a recipe whose merge scores best."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import remove_tree
from lbrx.errors import FileError, UsageError
from lbrx.files.formats.source import read_text
from lbrx.jobs.merge.plan.models import ModelOpener
from lbrx.jobs.merge.plan.plan import inputs_root
from lbrx.jobs.merge.recipe import ModelRef
from lbrx.jobs.search.genome import recipe_of_genome
from lbrx.jobs.search.held_out import Texts, losses_of_candidate, losses_of_model
from lbrx.jobs.search.journal import JOURNAL_NAME, Journal
from lbrx.jobs.search.local_runner import inputs_stay_mapped, local_runner
from lbrx.jobs.search.loop import Run, SearchLoop, Trial, pareto_front
from lbrx.jobs.search.objectives import Measure
from lbrx.jobs.search.optimizers import make_optimizer
from lbrx.jobs.search.report import MIDDLE, importances, write_report
from lbrx.jobs.search.settings import Goal, Measurer, SearchSettings
from lbrx.registry import RUNNERS, load
from lbrx.settings import settings as process_settings
from lbrx.settings import using

BEST_NAME = "best.yml"

SearchProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search: the best recipe and its figures on all texts.

    ``history`` has the number and the score of every candidate that was measured on all texts, ``front`` the values and
    figures of the Pareto front, ``importances`` the share of the variance of scores that each value explains.
    ``exceeded`` are limits that the best candidate does not keep, because none keeps all.
    """

    out: Path
    recipe: str
    values: Mapping[str, Any]
    figures: Mapping[str, float]
    score: float
    candidates: int
    is_complete: bool
    history: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    importances: Mapping[str, float] = field(default_factory=dict, repr=False)
    front: tuple[tuple[Mapping[str, Any], Mapping[str, float]], ...] = ()
    held_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    exceeded: Mapping[str, float] = field(default_factory=dict)


def search(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    texts: Sequence[str | os.PathLike[str]] = (),
    choices: str | os.PathLike[str] | None = None,
    function: str | None = None,
    measure: Measure = "loss",
    reference: str | os.PathLike[str] | None = None,
    goal: Goal = "mean",
    limits: Mapping[str, float] | None = None,
    held_out: Sequence[str | os.PathLike[str]] = (),
    optimizer: str = "auto",
    candidates: int = 100,
    budget_seconds: float | None = None,
    seed: int = 0,
    context: int = 256,
    max_tokens: int = 2048,
    rungs: int = 3,
    eta: int = 4,
    allow_code: bool = False,
    restart: bool = False,
    threads: int | None = None,
    cluster: str | None = None,
    progress: SearchProgress | None = None,
) -> SearchResult:
    """Try many values for the ranges and choices of a recipe, and write the best recipe to ``out``.

    A range is ``{search: [0, 1]}``, a choice ``{choose: [ties, linear]}``. ``texts`` are files to predict; figures are
    named after them. ``goal`` is the ``mean`` of all figures, the ``worst``, or ``pareto``. ``limits`` are figures that
    must not be exceeded, by name. Nothing but the journal is written until the end; call it again with the same
    arguments to resume.

    >>> import tempfile
    >>> from lbrx.demo.models import demo_models
    >>> shipped, folder = demo_models(), tempfile.mkdtemp()
    >>> recipe = f'''
    ... merge_method: linear
    ... models:
    ...   - {{model: {shipped.prose}, parameters: {{weight: {{search: [0, 1]}}}}}}
    ...   - {{model: {shipped.code}, parameters: {{weight: 0.5}}}}
    ... '''
    >>> found = search(recipe, folder + "/found", texts=[shipped.prose_text], candidates=6, optimizer="coordinate",
    ...     max_tokens=256, context=128)
    >>> found.values["prose.weight"] > 0.7
    True
    """
    directory, text, source = _read_recipe(recipe)
    settings = SearchSettings(
        recipe=text,
        source=source,
        directory=directory.resolve(),
        texts=_named_texts(texts),
        choices=None if choices is None else Path(choices).resolve(),
        function=function,
        measure=measure,
        reference=None if reference is None else Path(reference).resolve(),
        goal=goal,
        limits=tuple(sorted((limits or {}).items())),
        optimizer=optimizer,
        seed=seed,
        context=context,
        max_tokens=max_tokens,
        rungs=rungs,
        eta=eta,
        allow_code=allow_code,
        root=inputs_root(Path(out).resolve()),
    )
    _check(settings, candidates)
    others = _named_texts(held_out)
    with using(threads=threads):
        result = _searched(settings, Path(out), others, candidates, budget_seconds, restart, cluster, progress)
    if result.is_complete:
        remove_tree(inputs_root(result.out.resolve()))
    return result


def _precision() -> dict[str, int]:
    """Return the precision of activations, if it is not the usual one."""
    bits = process_settings.activation_bits
    return {} if bits == 16 else {"activation_bits": bits}


def _searched(
    settings: SearchSettings,
    out: Path,
    held_out: Texts,
    candidates: int,
    budget_seconds: float | None,
    restart: bool,
    cluster: str | None,
    progress: SearchProgress | None,
) -> SearchResult:
    deadline = math.inf if budget_seconds is None else time.monotonic() + budget_seconds
    _check_directory(out)
    measurer = Measurer(settings)
    for name, content in held_out:  # mistakes are reported before the search
        measurer.ids_of(name, content)
    space = measurer.space
    if not space.dimensions:
        raise UsageError(f"{settings.source}: nothing to search; expected a value such as {{search: [0, 1]}}")
    middle = tuple(dimension.share(dimension.at(0.5)) for dimension in space.dimensions)
    has_choices = any(dimension.choices for dimension in space.dimensions)
    name, count = settings.optimizer, len(space.dimensions)
    if settings.goal == "pareto" and name == "auto":
        name = "cma"
    optimizer = make_optimizer(name, count, middle, settings.seed, has_choices=has_choices)
    run: Run = local_runner(measurer) if cluster is None else load(RUNNERS["search"])(cluster, settings)
    given = {**settings.as_json(), **measurer.identity(), **_precision()}
    journal = Journal(out / JOURNAL_NAME, given, restart=restart)
    loop = SearchLoop(settings, space, optimizer, journal, run)
    if progress is not None:
        loop.on_measured = lambda state: progress(len(state.trials), candidates, _line(state))
    is_complete = True
    try:
        with inputs_stay_mapped(measurer):
            loop.search(candidates, deadline)
    except KeyboardInterrupt:
        is_complete = False
        if loop.best is None:
            raise
    finally:
        journal.close()
    return _finish(loop, measurer, out, held_out, is_complete)


def _finish(loop: SearchLoop, measurer: Measurer, out: Path, held_out: Texts, is_complete: bool) -> SearchResult:
    if loop.best is None:
        raise UsageError(f"{out}: no candidate was measured on all texts; allow more time")
    recipe = loop.space.recipe(loop.best.values)
    write_atomically(out / BEST_NAME, recipe.encode())
    front = pareto_front(loop.finished) if loop.settings.goal == "pareto" else []
    for number, trial in enumerate(front, start=1):
        write_atomically(out / f"front-{number}.yml", loop.space.recipe(trial.values).encode())
    named = [_named(loop, trial) for trial in front]
    result = SearchResult(
        out=out,
        recipe=recipe,
        values=_named(loop, loop.best),
        figures=dict(loop.best.figures),
        score=loop.score(loop.best.figures),
        candidates=len(loop.trials),
        is_complete=is_complete,
        history=tuple((trial.number, loop.score(trial.figures)) for trial in loop.finished),
        importances=importances(loop),
        front=tuple((values, dict(trial.figures)) for values, trial in zip(named, front, strict=True)),
        held_out=_held_out(loop, measurer, held_out),
        exceeded=loop.exceeded(loop.best.figures),
    )
    write_report(out, loop, result.held_out)
    return result


def _held_out(loop: SearchLoop, measurer: Measurer, texts: Texts) -> dict[str, dict[str, float]]:
    """Figures of the best candidate, the middle of all ranges and the inputs on texts that were not searched on."""
    if not texts:
        return {}
    assert loop.best is not None
    middle = loop.space.recipe([dimension.at(0.5) for dimension in loop.space.dimensions])
    found = {
        "best": losses_of_candidate(measurer, loop.space.recipe(loop.best.values), texts),
        MIDDLE: losses_of_candidate(measurer, middle, texts),
    }
    for label, path in measurer.labels().items():
        found[label] = losses_of_model(measurer, path, texts)
    return found


def _named(loop: SearchLoop, trial: Trial) -> dict[str, Any]:
    space = loop.space
    return {each.name: space.chosen(number, trial.values) for number, each in enumerate(space.dimensions)}


def _line(loop: SearchLoop) -> str:
    if loop.best is None:
        return "measuring the first candidate"
    figures = ", ".join(f"{name} {value:.4f}" for name, value in loop.best.figures.items())
    return f"best so far: candidate {loop.best.number + 1}, {figures}"


def _check_directory(out: Path) -> None:
    """Raise if the output is not one for a search; models may be run on texts after this."""
    if out.exists() and not out.is_dir():
        raise FileError(f"{out}: is a file; expected a directory for the search")
    if out.is_dir() and any(out.iterdir()) and not (out / JOURNAL_NAME).exists():
        raise UsageError(f"{out}: exists and is not the directory of a search; expected a new or empty one")


def _read_recipe(recipe: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Path, str, str]:
    """Return the directory that models are relative to, the text of the recipe, and its name for messages."""
    if isinstance(recipe, Mapping):
        return Path(), json.dumps(recipe, default=os.fspath), "<recipe>"
    if isinstance(recipe, str) and any(mark in recipe for mark in "\n{"):
        return Path(), recipe_of_genome(recipe, "<recipe>", _layer_counter(Path())), "<recipe>"
    path = Path(recipe)
    return path.parent, recipe_of_genome(read_text(path), str(path), _layer_counter(path.parent)), str(path)


def _layer_counter(directory: Path) -> Callable[[str], int]:
    opener = ModelOpener((Path(), directory))
    return lambda model: opener.open(ModelRef(model)).layer_count


def _named_texts(paths: Sequence[str | os.PathLike[str]]) -> tuple[tuple[str, str], ...]:
    """Read texts by the names of their files, which must differ."""
    texts = tuple((Path(path).name, read_text(Path(path))) for path in paths)
    if len({name for name, _ in texts}) < len(texts):
        raise UsageError("two texts have the same name; expected different names")
    empty = next((name for name, content in texts if not content.strip()), None)
    if empty is not None:
        raise UsageError(f"{empty}: has no text; expected some to predict")
    return texts


def _check(settings: SearchSettings, candidates: int) -> None:
    if not settings.texts and settings.choices is None and settings.function is None:
        raise UsageError("nothing to measure; expected a text, questions or a function")
    if settings.reference is not None and settings.measure != "kl":
        raise UsageError("a reference is only compared with if the measure is 'kl'")
    known = {name for name, _ in settings.texts}
    known |= {name for name in ("choices", "function") if getattr(settings, name) is not None}
    for name, _ in settings.limits:
        if name not in known:
            raise UsageError(f"unknown figure {name!r} to limit; expected one of {', '.join(sorted(known))}")
    if settings.function is not None and not settings.allow_code:
        file = settings.function.rpartition(":")[0]
        raise UsageError(f"the search would run the Python file {file}; pass --allow-code to allow it")
    for label, value, least in (("candidates", candidates, 1), ("context", settings.context, 2)):
        if value < least:
            raise UsageError(f"{label} is {value}; expected at least {least}")
    if not 1 <= settings.rungs <= 6 or not 2 <= settings.eta <= 16:
        raise UsageError(f"{settings.rungs} rungs and eta {settings.eta}; expected 1 to 6 rungs and eta 2 to 16")
    if settings.goal == "pareto" and settings.optimizer not in ("auto", "cma", "random"):
        raise UsageError("a Pareto front needs the optimizer 'cma' or 'random'")
