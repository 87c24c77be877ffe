"""Run the models of a merge on their texts, for methods that need what matrices are multiplied with.

A model is run layer by layer. Memory holds the hidden states of its text, one layer, and the Gram matrices of the
inputs of that layer, which are stored before the next one runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

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


def measure_inputs(plan: Plan, progress: CountCallback | None = None) -> None:
    """Measure the inputs of all models of a plan that were not measured before. A stopped run is resumed."""
    given = [(stage, run) for stage in stages_of(plan.stage) if stage.inputs for run in stage.inputs.runs(stage)]
    specs = [_checked_spec(stage, run) for stage, run in given]
    total, done = sum(len(spec.layers) for spec in specs), 0
    for (stage, run), spec in zip(given, specs, strict=True):
        assert stage.inputs is not None
        folder, model = stage.inputs.folder(stage, run), stage.models[run.model]
        if not folder.is_complete:
            with file_lock(folder.path.with_name(f"{folder.path.name}.lock")):
                folder.reload()
                if not folder.is_complete:
                    _measure(model, spec, run, folder, partial(_report, progress, done, total, model.label))
        done += len(spec.layers)


def _report(progress: CountCallback | None, done: int, total: int, label: str, layer: int) -> None:
    if progress is not None:
        progress(done + layer, total, f"{label}, layer {layer}")


def _checked_spec(stage: StagePlan, run: TextRun) -> ModelSpec:
    model = stage.models[run.model]
    if model.directory is None or not model.config:
        raise UsageError(
            f"{stage.method.name} runs its models on texts, but {model.label} has no config.json and no tokenizer; "
            "expected the directory of a model, or a GGUF file"
        )
    try:
        return spec_of_config(model.config, f"{model.label}/config.json", frozenset(model.infos))
    except UsageError as error:
        raise UsageError(f"{stage.method.name} runs its models on texts: {error}") from error


def _measure(model: InputModel, spec: ModelSpec, run: TextRun, folder: GramFolder, report: partial[None]) -> None:
    assert model.directory is not None
    language_model = _language_model(model, spec)
    context = min(DEFAULT_CONTEXT, spec.context_length, run.max_tokens)
    texts = calibration_chunks(
        language_model, open_tokenizer(model.directory), [run.text], context, run.max_tokens // context
    )
    before = folder.begun()
    if before is None or shares_between_layers(language_model):
        before = None
        folder.forget()
    wanted = frozenset(name for name, info in model.infos.items() if len(info.shape) == 2)
    axes = _axes(spec, wanted)
    grams = LayerGrams(language_model, texts, lambda matrix: matrix.weight.name, before)
    for number in range(0 if before is None else before[0], len(spec.layers)):
        report(number)
        inputs = [_measured(gram, axes, model) for gram in grams.next_layer(wanted)]
        folder.add_layer(inputs, grams.hidden, is_last=number == len(spec.layers) - 1)


def _measured(gram: Gram, axes: Mapping[str, int], model: InputModel) -> MeasuredInput:
    if not np.isfinite(gram.total).all():
        raise UsageError(f"{model.label}: the inputs of {gram.names[0]!r} are not finite")
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
