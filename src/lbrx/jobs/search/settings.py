"""What a search measures and how: everything that its result depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.output.plan import digest, file_state
from lbrx.jobs.merge.plan.models import ModelOpener
from lbrx.jobs.merge.plan.plan import TEXTS_KEY
from lbrx.jobs.score.choices import read_questions
from lbrx.jobs.search.candidate import Candidate, HiddenCache
from lbrx.jobs.search.objectives import Measure, Objectives, load_function, pieces_of
from lbrx.jobs.search.space import Space, read_space
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.tokenizers.text import TextTokenizer, open_tokenizer

Goal = Literal["mean", "worst", "pareto"]

_CACHE_BYTES = 192 << 20
_LOGITS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The settings that figures depend on. ``texts`` are contents by name."""

    recipe: str
    source: str
    directory: Path
    texts: tuple[tuple[str, str], ...] = ()
    choices: Path | None = None
    function: str | None = None
    measure: Measure = "loss"
    reference: Path | None = None
    goal: Goal = "mean"
    limits: tuple[tuple[str, float], ...] = ()
    optimizer: str = "auto"
    seed: int = 0
    context: int = 256
    max_tokens: int = 2048
    rungs: int = 3
    eta: int = 4
    allow_code: bool = False
    root: Path | None = None  # where inputs of models are stored, for methods that need them

    def as_json(self) -> dict[str, Any]:
        """Return the settings for the journal; long texts by their digest."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["recipe"] = digest(self.recipe.encode())
        values["texts"] = [[name, digest(content.encode())] for name, content in self.texts]
        del values["directory"], values["source"], values["root"]  # the journal has the absolute paths of the models
        values |= {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        return values


class Measurer:
    """Measures candidates of a search. Models, texts and the reference are opened once."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self.space: Space = read_space(settings.recipe, settings.source)
        if not self.space.documents:
            raise UsageError(f"{settings.source}: the file is empty; expected a recipe")
        self._opener = ModelOpener((Path(), settings.directory), rounds=False)
        middle = [dimension.at(0.5) for dimension in self.space.dimensions]
        try:
            first = self.candidate(self.space.recipe(middle))
        except UsageError as error:
            raise UsageError(f"{settings.source}: with the middle of all ranges: {error}") from error
        self._plan = first.plan
        where = first.donor.directory
        if where is None:
            raise UsageError("the first model has no tokenizer; expected a directory or a GGUF file with one")
        self.tokenizer: TextTokenizer = open_tokenizer(where)
        self.context = min(settings.context, first.model.spec.context_length)
        ids = [self.ids_of(name, content) for name, content in settings.texts]
        self.objectives = Objectives(
            [name for name, _ in settings.texts],
            pieces_of(ids, self.context, settings.max_tokens),
            measure=settings.measure,
            reference=None
            if settings.reference is None
            else self._reference(settings.reference, first.model.spec.vocabulary, ids),
            questions=[] if settings.choices is None else read_questions(settings.choices),
            tokenizer=self.tokenizer,
            function=None if settings.function is None else load_function(settings.function),
            cache=HiddenCache(_CACHE_BYTES),
        )

    def candidate(self, recipe: str) -> Candidate:
        """Return the merged model of a recipe without searched values."""
        settings = self.settings
        return Candidate(
            recipe,
            settings.directory,
            self._opener,
            seed=settings.seed,
            allow_code=settings.allow_code,
            root=settings.root,
        )

    @property
    def candidate_bytes(self) -> int:
        """About the memory that measuring a candidate takes: embedding, output matrix, a layer and logits."""
        return 2 * max(job.dtype.nbytes(math.prod(job.shape)) for job in self._plan.stage.jobs) + _LOGITS_BYTES

    @property
    def inputs_bytes(self) -> int:
        """The bytes of the tensors of all models that are merged."""
        return sum(info.nbytes for model in self._opener.opened for info in model.infos.values())

    def figures(self, recipe: str, share: float = 1.0) -> dict[str, float]:
        """Measure a recipe on a share of the texts."""
        return self.objectives.measured(self.candidate(recipe), share)

    def identity(self) -> dict[str, Any]:
        """Return what figures depend on besides the settings: version, models, adapters and the files that are read."""
        settings = self.settings
        function = None if settings.function is None else Path(settings.function.rpartition(":")[0])
        read = [path for path in (settings.choices, function) if path is not None]
        headers = () if settings.reference is None else open_checkpoint(settings.reference).files
        return {
            "merge": self._plan.identity({}),
            "alternatives": self._alternatives(),
            "files": {str(path): digest(path.read_bytes()) for path in read},
            "reference": {str(header.path): file_state(header.path) for header in headers},
        }

    def _alternatives(self) -> dict[str, Any]:
        """Return the states of the files that any alternative of a choice reads, by path or name."""
        files: dict[str, Any] = {}
        for values in self.space.alternatives():
            try:
                identity = self.candidate(self.space.recipe(values)).plan.identity({})
            except UsageError:
                continue  # it may be valid with other values; if not, this is reported when it is measured
            files |= (
                identity["input file"]
                | identity["adapter file"]
                | identity["method file"]
                | identity.get(TEXTS_KEY, {})
            )
        return files

    def labels(self) -> Mapping[str, Path]:
        """The directories or files of the models that were opened, by name."""
        return {model.label: model.directory for model in self._opener.opened if model.directory is not None}

    def _reference(self, path: Path, vocabulary: int, ids: list[list[int]]) -> LanguageModel:
        """Open the reference, which must have the tokens of the merge."""
        model, tokenizer = open_model(path), open_tokenizer(path)
        others = [self._encoded(tokenizer, content) for _, content in self.settings.texts]
        if others != ids or model.spec.vocabulary != vocabulary:
            raise UsageError(f"{path}: has another tokenizer or vocabulary than the merge; expected the same")
        return model

    def _encoded(self, tokenizer: TextTokenizer, content: str) -> list[int]:
        return tokenizer.encode(content[: 16 * self.settings.max_tokens])

    def ids_of(self, name: str, content: str) -> list[int]:
        """Return the tokens of a text; one without a token to predict is an error."""
        ids = self._encoded(self.tokenizer, content)
        if len(ids) < 2:
            raise UsageError(f"{name}: has {len(ids)} tokens; expected at least 2")
        return ids
