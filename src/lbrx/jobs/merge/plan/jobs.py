"""From the outline of an output to jobs: types, shapes and parameters of every tensor, and all that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.merge.methods import Method
from lbrx.jobs.merge.methods.parameters import TensorParameters
from lbrx.jobs.merge.plan.outline import Outline, OutputTensor
from lbrx.jobs.merge.plan.records import InputModel, Job, JobInput, TensorInfo
from lbrx.jobs.merge.recipe import ModelRef, Recipe, base_index, filters, resolve_tensor
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap
from lbrx.tensors.dtype import DType, promote

SELECTIONS = ("union", "intersection")
"""What happens to tensors that not all models have: they are merged from those that have them, or left out."""


@dataclass(frozen=True, slots=True)
class _Input:
    index: int  # of the model
    model: InputModel
    name: str
    is_base: bool

    @property
    def info(self) -> TensorInfo:
        return self.model.infos[self.name]


@dataclass
class JobPlanner:
    """Makes the jobs of a recipe; ``problems`` collects what keeps the models from being merged."""

    recipe: Recipe
    method: Method
    models: Mapping[ModelRef, InputModel]
    resizes_vocabulary: bool = False
    selection: str | None = None  # of tensors that not all models have, see `SELECTIONS`
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._index = {ref: index for index, ref in enumerate(self.models)}
        self._donor, self._is_whole = self.recipe.donor, self.recipe.whole_model
        self._filters = filters(self.recipe)
        self._parameters: dict[tuple[Any, ...], TensorParameters] = {}
        self._extra: list[_Input] = []  # tensors that only some models have
        self._left_out: list[str] = []
        self._parts: dict[tuple[int, ...], JobPlanner] = {}  # for tensors that only these sources have

    def jobs(self, outline: Outline) -> list[Job]:
        """The jobs in the order in which the donor's files hold their tensors, so that they are read in order."""
        planned = [(self._order(tensor), job) for tensor in outline.tensors() if (job := self._job(tensor))]
        self._check_vocabulary(outline, [job for _, job in planned])
        self._warn_of_extra_tensors()
        for part in self._parts.values():
            self.problems += part.problems
        return [job for _, job in sorted(planned, key=lambda pair: pair[0])]

    def _order(self, tensor: OutputTensor) -> tuple[int, int, int]:
        named = zip(tensor.part.sources, tensor.names, strict=True)
        indices = [
            (source.model != self._donor, self.models[source.model].infos[name].index)
            for source, name in named
            if name is not None
        ]
        index = min(indices)[1] if indices else 0
        if self._is_whole:
            return 0, 0, index
        part = {"pre": 0, "layer": 1, "post": 2}[tensor.role.part]
        return part, tensor.role.layer or 0, index

    def _job(self, tensor: OutputTensor) -> Job | None:
        base = self.recipe.base_of(tensor.part)
        inputs = [
            _Input(self._index[source.model], self.models[source.model], name, source.model == base)
            for source, name in zip(tensor.part.sources, tensor.names, strict=True)
            if name is not None
        ]
        if not inputs:
            return None  # optional, or a problem of its own that the checks of the models report
        # The base speaks for buffers and types, else the first model.
        speaker = next((given for given in inputs if given.is_base), inputs[0])
        dtype = speaker.info.dtype
        if len(inputs) < len(tensor.names) and self.selection is not None:
            if self.selection == "union":
                return self._job_of_present(tensor, inputs, speaker)
            self._left_out.append(tensor.role.name)
            return None
        if dtype is not None and (tensor.role.is_buffer or not dtype.is_float):
            return _copy_job(tensor, speaker, dtype)
        if dtype is not None and len(inputs) < len(tensor.names) and _is_beside_model(tensor, speaker.model):
            self._extra.append(speaker)
            return _copy_job(tensor, speaker, dtype)
        if self._has_problem(tensor, inputs, speaker) or dtype is None:
            return None
        return self._merge_job(tensor, inputs, self.recipe.output_dtype or _common_dtype(inputs, dtype))

    def _job_of_present(self, tensor: OutputTensor, inputs: Sequence[_Input], speaker: _Input) -> Job | None:
        """The job of a tensor that not all sources have: a merge of those that have it, or a copy of the only one."""
        spec, dtype = self.method.spec, speaker.info.dtype
        has_base = any(given.is_base for given in inputs)
        count = len(inputs) - (has_base and spec.needs_base != "ignored")
        least, most = spec.model_count
        fits = least <= count and (most is None or count <= most) and (has_base or spec.needs_base != "required")
        if not fits:
            if len(inputs) > 1 or dtype is None:
                self.problems.append(
                    f"tensor {tensor.role.name!r} is in {len(inputs)} of {len(tensor.names)} models, "
                    f"which {spec.name!r} cannot merge without the others"
                )
                return None
            self._extra.append(speaker)
            return _copy_job(tensor, speaker, dtype)
        places = tuple(place for place, name in enumerate(tensor.names) if name is not None)
        sources = tuple(tensor.part.sources[place] for place in places)
        part = replace(tensor.part, sources=sources)
        planner = self._parts.get(places)
        if planner is None:
            module = replace(self.recipe.module(tensor.module), slices=(part,))
            recipe = replace(self.recipe, modules=FrozenMap({tensor.module: module}))
            planner = self._parts[places] = JobPlanner(recipe, self.method, self.models)
        names = tuple(name for name in tensor.names if name is not None)
        return planner._job(replace(tensor, part=part, names=names))

    def _merge_job(self, tensor: OutputTensor, inputs: Sequence[_Input], dtype: DType) -> Job:
        return Job(
            tensor.role.name,
            inputs[0].info.shape,
            dtype,
            tuple(JobInput(given.index, given.name) for given in inputs),
            self._resolved(tensor, [given.name for given in inputs]),
            base_index(self.recipe, self.method.spec, tensor.part),
            tensor.role.is_vocabulary,
        )

    def _resolved(self, tensor: OutputTensor, names: list[str]) -> TensorParameters:
        """The parameters of a tensor, looked up once for all tensors to which the same filters apply."""
        matching = [text in name for name in (*names, tensor.role.name) for text in self._filters]
        key = (tensor.module, tensor.slice_index, tensor.t, *matching)
        parameters = self._parameters.get(key)
        if parameters is None:
            parameters = self._parameters[key] = resolve_tensor(
                self.recipe,
                self.method.spec,
                module=tensor.module,
                slice_index=tensor.slice_index,
                input_names=names,
                output_name=tensor.role.name,
                t=tensor.t,
            )
        return parameters

    def _has_problem(self, tensor: OutputTensor, inputs: Sequence[_Input], speaker: _Input) -> bool:
        before = len(self.problems)
        self._check_presence(tensor, inputs)
        for given in inputs:
            self._check_type(given, speaker)
            self._check_shape(tensor, given, speaker)
        return len(self.problems) > before

    def _check_presence(self, tensor: OutputTensor, inputs: Sequence[_Input]) -> None:
        for source, name in zip(tensor.part.sources, tensor.names, strict=True):
            if name is None:
                self.problems.append(
                    f"tensor {inputs[0].name!r} is in {inputs[0].model.label}, but not in {source.model}"
                )

    def _check_type(self, given: _Input, speaker: _Input) -> None:
        if given.info.dtype is None:
            self.problems.append(
                f"tensor {given.name!r} of {given.model.label} is quantized as {given.info.type_name}; "
                f"expected a floating type: only such tensors can be merged"
            )
        elif not given.info.dtype.is_float:
            self.problems.append(
                f"tensor {given.name!r} is {given.info.type_name} in {given.model.label}, "
                f"but {speaker.info.type_name} in {speaker.model.label}"
            )

    def _check_shape(self, tensor: OutputTensor, given: _Input, speaker: _Input) -> None:
        shape, expected = given.info.shape, speaker.info.shape
        if shape == expected:
            return
        if not (tensor.role.is_vocabulary and shape[1:] == expected[1:]):
            self.problems.append(
                f"tensor {given.name!r} has shape {shape} in {given.model.label}, "
                f"but {expected} in {speaker.model.label}"
            )
        elif not self.resizes_vocabulary:
            self.problems.append(
                f"the vocabularies differ: {given.name!r} has {shape[0]} rows in {given.model.label}, "
                f"but {expected[0]} in {speaker.model.label}; expected models with one vocabulary"
            )

    def _check_vocabulary(self, outline: Outline, jobs: Sequence[Job]) -> None:
        """The embedding and the head come from different slices, and must have rows for the same tokens."""
        slices = outline.language_module.slices
        if self.resizes_vocabulary or len(slices) == 1:
            return
        models = {
            source.model: self.models[source.model] for part in (slices[0], slices[-1]) for source in part.sources
        }
        for job in jobs if len(models) > 1 else ():
            if not job.is_vocabulary:
                continue
            found = [(model, name) for model in models.values() if (name := model.find(job.name)) is not None]
            rows = {model.infos[name].shape[0]: model.label for model, name in found}
            if len(rows) > 1:
                listed = " and ".join(f"{count} rows in {label}" for count, label in rows.items())
                self.problems.append(
                    f"the vocabularies of the first and the last slice differ: {job.name!r} has {listed}"
                )

    def _warn_of_extra_tensors(self) -> None:
        if self._left_out:
            self.warnings.append(
                f"{len(self._left_out)} tensors are not in all models and are left out, such as {self._left_out[0]!r}"
            )
        if self._extra:
            first = self._extra[0]
            self.warnings.append(
                f"{len(self._extra)} tensors are not in all models and are copied, such as {first.name!r} from "
                f"{first.model.label}"
            )


def _copy_job(tensor: OutputTensor, given: _Input, dtype: DType) -> Job:
    return Job(tensor.role.name, given.info.shape, dtype, (JobInput(given.index, given.name),))


def _common_dtype(inputs: Sequence[_Input], dtype: DType) -> DType:
    """The dtype of a result without a dtype in the recipe: that of all inputs, or the one that holds all of them."""
    for given in inputs:
        own = given.info.dtype
        if own is not None and own is not dtype:
            dtype = promote(dtype, own)
    return dtype


def _is_beside_model(tensor: OutputTensor, model: InputModel) -> bool:
    """Whether a tensor is an addition to the language model: layers that predict further tokens, or a module beside it.

    Tools leave these out when they save a model.
    """
    role = tensor.role
    if role.layer is not None:
        return role.layer >= model.layer_count and tensor.part.layers is None
    first, dot, _ = role.name.partition(".")
    own = model.architecture.naming(model.infos).base.partition(".")[0]
    return bool(dot) and first not in (own, "model", "transformer") and not role.is_vocabulary
