"""Run the models of a merge on their texts, for methods that need what matrices are multiplied with.

A model is run layer by layer. Memory holds the hidden states of its text, one layer, and the Gram matrices of the
inputs of that layer, which are stored before the next one runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.file_lock import file_lock
from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.files.output.options import CountCallback
from lbrx.jobs.imatrix.imatrix import DEFAULT_CONTEXT, calibration_chunks
from lbrx.jobs.merge.plan.gram_files import GramFolder, MeasuredInput
from lbrx.jobs.merge.plan.inputs import TextRun
from lbrx.jobs.merge.plan.plan import Plan, stages_of
from lbrx.jobs.merge.plan.records import InputModel, StagePlan
from lbrx.models.inference import LanguageModel
from lbrx.models.inference.grams import Gram, LayerGrams
from lbrx.models.inference.layerwise import model_on_demand, shares_between_layers
from lbrx.models.inference.opening import source_of_parts
from lbrx.models.inference.spec import ModelSpec, spec_of_config
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.tensors.tensor import Tensor


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A model that will be run, and the tokens of its text."""

    label: str
    model: LanguageModel
    chunks: Sequence[npt.NDArray[np.int64]]
    folder: GramFolder
    matrices: frozenset[str]  # names of all matrices

    @property
    def layers(self) -> int:
        return len(self.model.spec.layers)


def measure_inputs(plan: Plan, progress: CountCallback | None = None) -> None:
    """Measure the inputs of all models of a plan that were not measured before. A stopped run is resumed."""
    wanted = [(stage, run) for stage in stages_of(plan.stage) for run in _missing(stage)]
    prepared = check_inputs(plan)
    total, done = sum(stage.models[run.model].layer_count for stage, run in wanted), 0
    for stage, run in wanted:
        folder = _folder(stage, run)
        with file_lock(folder.path.with_name(f"{folder.path.name}.lock")):
            folder.reload()
            if not folder.is_complete:
                each = prepared.get(folder.path) or _prepared(stage, run)
                _measure(each, partial(_report, progress, done, total, each.label))
        done += stage.models[run.model].layer_count


def check_inputs(plan: Plan) -> dict[Path, _Prepared]:
    """Open the models that have to be run and read their texts, so that mistakes are reported before the long part.

    Earlier stages are left out: their weights may depend on inputs that are not measured yet.
    """
    found = {}
    for stage in stages_of(plan.stage):
        for run in _missing(stage):
            if stage.models[run.model].stage is None:
                found[_folder(stage, run).path] = _prepared(stage, run)
    return found


def _missing(stage: StagePlan) -> list[TextRun]:
    if stage.inputs is None:
        return []
    return [run for run in stage.inputs.runs(stage) if not stage.inputs.folder(stage, run).is_complete]


def _folder(stage: StagePlan, run: TextRun) -> GramFolder:
    assert stage.inputs is not None
    return stage.inputs.folder(stage, run)


def _report(progress: CountCallback | None, done: int, total: int, label: str, layer: int) -> None:
    if progress is not None:
        progress(done + layer, total, f"{label}, layer {layer}")


def _prepared(stage: StagePlan, run: TextRun) -> _Prepared:
    model, method = stage.models[run.model], stage.method.name
    if model.directory is None or not model.config:
        raise UsageError(
            f"{method} runs its models on texts, but {model.label} has no config.json and no tokenizer; "
            "expected the directory of a model, or a GGUF file"
        )
    try:
        spec = spec_of_config(model.config, f"{model.label}/config.json", frozenset(model.infos))
    except UsageError as error:
        raise UsageError(f"{method} runs its models on texts: {error}") from error
    language_model, tokenizer = _language_model(model, spec), open_tokenizer(model.directory)
    context = min(DEFAULT_CONTEXT, spec.context_length, run.max_tokens)
    try:
        chunks = calibration_chunks(language_model, tokenizer, [run.text], context, run.max_tokens // context)
    except UsageError as error:
        raise UsageError(f"{run.text}: {error}") from error
    matrices = frozenset(name for name, info in model.infos.items() if len(info.shape) == 2)
    return _Prepared(model.label, language_model, chunks, _folder(stage, run), matrices)


def _measure(given: _Prepared, report: partial[None]) -> None:
    before = given.folder.begun()
    if before is None or shares_between_layers(given.model):
        before = None
        given.folder.forget()
    axes = _axes(given.model.spec, given.matrices)
    grams = LayerGrams(given.model, given.chunks, lambda matrix: matrix.weight.name, before)
    for number in range(0 if before is None else before[0], given.layers):
        report(number)
        inputs = [_measured(gram, axes, given.label) for gram in grams.next_layer(given.matrices)]
        given.folder.add_layer(inputs, grams.hidden, is_last=number == given.layers - 1)


def _measured(gram: Gram, axes: Mapping[str, int], label: str) -> MeasuredInput:
    if not np.isfinite(gram.total).all():
        raise UsageError(f"{label}: the inputs of {gram.names[0]!r} are not finite")
    return MeasuredInput(gram.total, gram.count, {name: axes[name] for name in gram.names})


def _axes(spec: ModelSpec, names: frozenset[str]) -> dict[str, int]:
    """The axis of each matrix along which it is multiplied: 0 if files have one column for each output."""
    naming = spec.family.naming(names)
    transposed = {
        naming.expand(weight.name, number)
        for weight in spec.family.layer
        if weight.is_transposed
        for number in range(len(spec.layers))
    }
    return {name: 0 if name in transposed else 1 for name in names}


def _language_model(model: InputModel, spec: ModelSpec) -> LanguageModel:
    """The model, whose layers are read or computed when they run."""
    planned = [
        PlannedTensor(name, info.type_name, info.shape, partial(_stored, model, name))
        for name, info in model.infos.items()
    ]
    return model_on_demand(Path(model.label), spec, source_of_parts(planned, spec, model.label))


def _stored(model: InputModel, name: str) -> Tensor:
    """A tensor of a file, or one that is computed now: those of stages and of models with adapters."""
    tensor = model.tensors[name]
    return tensor if tensor.storage is not None else tensor.realize()
