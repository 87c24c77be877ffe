"""A candidate: a merge that is planned, but exists only layer by layer while texts run through it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.merge.measuring import measure_inputs
from lbrx.jobs.merge.methods import method_lookup
from lbrx.jobs.merge.plan import plan_merge
from lbrx.jobs.merge.plan.models import ModelOpener
from lbrx.jobs.merge.plan.plan import Plan
from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.plan.vocabularies import row_digest_parts
from lbrx.jobs.merge.recipe import parse_recipes
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.layerwise import LayerwiseRun, model_on_demand, shares_between_layers
from lbrx.models.inference.opening import source_of_parts
from lbrx.models.inference.spec import spec_of_config
from lbrx.models.inference.weights import Floats
from lbrx.tensors.tensor import Tensor

_KEPT_TENSORS = 4  # experts and their biases


class Candidate:
    """The merged model of a recipe without searched values. Its weights are computed when they are used.

    Inputs that its method needs are measured now, into ``root``, unless an earlier candidate needed the same.
    """

    def __init__(
        self,
        recipe: str,
        directory: Path,
        opener: ModelOpener,
        *,
        seed: int = 0,
        allow_code: bool = False,
        root: Path | None = None,
    ) -> None:
        lookup = method_lookup(directory, allow_code=allow_code)
        recipes = parse_recipes(recipe, source="candidate.yml", lookup=lookup)
        self.plan: Plan = plan_merge(
            recipes, "candidate", directory=directory, seed=seed, allow_code=allow_code, opener=opener, root=root
        )
        stage = self.plan.stage
        if stage.vocabulary is not None:
            raise UsageError("a search cannot change the vocabulary; expected a recipe without 'tokenizer_source'")
        if stage.config is None:
            raise UsageError("the merged model has no config.json, so it cannot be run; expected Hugging Face models")
        measure_inputs(self.plan)

    @property
    def donor(self) -> InputModel:
        """The model whose tokenizer the output has."""
        return self.plan.stage.tokenizer_model

    @cached_property
    def model(self) -> LanguageModel:
        """The merged model; each layer is merged when it runs."""
        stage = self.plan.stage
        spec = spec_of_config(dict(stage.config or {}), "config.json", frozenset(stage.by_name))
        # The parts of joined tensors are taken one by one.
        take = lru_cache(_KEPT_TENSORS)(partial(_realized, self.plan))
        planned = [
            PlannedTensor(job.name, job.dtype.name, job.shape, partial(take, job.name))
            for job in stage.by_name.values()
        ]
        source = source_of_parts(planned, spec, "the merged model")
        return model_on_demand(Path("candidate"), spec, source)

    @cached_property
    def layer_keys(self) -> tuple[bytes, ...]:
        """A digest for the input of every layer: of all weights before it, given the same models."""
        stage = self.plan.stage
        family = stage.models[0].architecture
        tensors = _TensorKeys()
        count = len(self.model.spec.layers)
        parts: list[list[bytes]] = [[] for _ in range(count + 1)]
        for job in sorted(stage.jobs, key=lambda each: each.name):
            layer = family.layer_of(job.name)
            place = 0 if layer is None else layer + 1
            if place <= count:
                parts[place].append(tensors.of(stage, job))
        keys: list[bytes] = []
        running = blake2b(json.dumps(stage.config, default=dict, sort_keys=True).encode())
        running.update(b"".join(row_digest_parts(stage)))
        for own in parts:
            for part in own:
                running.update(part)
            keys.append(running.digest())
        return tuple(keys)

    def run(self, texts: Sequence[Sequence[int]], cache: HiddenCache | None = None) -> LayerwiseRun:
        """Run texts through all layers. Hidden states that ``cache`` knows from other candidates are not recomputed."""
        run = LayerwiseRun(self.model, texts)
        if cache is None or shares_between_layers(self.model):
            run.start()
            run.run_layers()
            return run
        label = blake2b(repr([tuple(text) for text in texts]).encode()).digest()
        keys = [label + key for key in self.layer_keys]
        known = cache.deepest(keys)
        if known is None:
            run.start()
        else:
            run.resume(*known)
        run.run_layers(lambda number, hidden: cache.store(keys[number + 1], hidden))
        return run


class _TensorKeys:
    """Digests of merged tensors: of the method, the parameters and the inputs, also those of earlier stages."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], bytes] = {}
        self._parameters: dict[int, bytes] = {}

    def of(self, stage: StagePlan, job: Job) -> bytes:
        """Return the digest of a tensor of a stage."""
        key = id(stage), job.name
        if key not in self._known:
            inputs = [self._input(stage.models[each.model], each.tensor) for each in job.inputs]
            own = (stage.method.name, stage.stream_name(job.name), job.name, job.dtype.name, job.base_index, inputs)
            self._known[key] = blake2b(repr(own).encode() + self._of_parameters(job)).digest()
        return self._known[key]

    def _input(self, model: InputModel, tensor: str) -> tuple[str, str | bytes]:
        if model.stage is None:
            return repr(model.ref), tensor
        return "stage", self.of(model.stage, model.stage.by_name[tensor])

    def _of_parameters(self, job: Job) -> bytes:
        """Return the text of the parameters, which many tensors share."""
        key = id(job.parameters)
        if key not in self._parameters:
            self._parameters[key] = repr(job.parameters).encode()
        return self._parameters[key]


def _realized(plan: Plan, name: str) -> Tensor:
    """The merged tensor. No reference to the candidate, which would keep its embedding until a garbage collection."""
    return plan.tensor(name).realize()


class HiddenCache:
    """Hidden states behind layers, of the candidates that were run last.

    A candidate whose first layers equal those of an earlier one starts behind them. ``limit_bytes`` bounds the memory;
    the states of the latest candidate are kept, and older ones as far as they fit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.layers_reused = 0
        self.layers_run = 0
        self._states: dict[bytes, list[Floats]] = {}
        self._nbytes = 0
        self._lock = Lock()

    def deepest(self, keys: Sequence[bytes]) -> tuple[int, list[Floats]] | None:
        """Return the last layer whose input is known, with that input; ``keys[n]`` is the key for layer n."""
        with self._lock:
            for layer in range(len(keys) - 1, 0, -1):
                states = self._states.pop(keys[layer], None)
                if states is not None:
                    self._states[keys[layer]] = states  # used last
                    self.layers_reused += layer
                    return layer, states
        return None

    def store(self, key: bytes, states: Sequence[Floats]) -> None:
        """Remember hidden states, and forget the oldest ones if there are too many."""
        nbytes = sum(each.nbytes for each in states)
        with self._lock:
            self.layers_run += 1
            if key in self._states or nbytes > self.limit_bytes:
                return
            self._states[key] = list(states)
            self._nbytes += nbytes
            for old in self._oldest(self._nbytes - self.limit_bytes):
                self._nbytes -= sum(each.nbytes for each in self._states.pop(old))

    def _oldest(self, excess_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        iterator: Iterator[bytes] = iter(self._states)
        while excess_bytes > 0:
            key = next(iterator)
            excess_bytes -= sum(each.nbytes for each in self._states[key])
            found.append(key)
        return found
