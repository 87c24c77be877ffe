"""Merges into another format or quantization in one pass, without an intermediate file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lbrx.errors import FileError, FormatError, UsageError
from lbrx.files.checkpoint.quantized.weights import QuantizedWeights
from lbrx.files.formats.model_files import CONFIG_NAME, INDEX_NAME
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.plan import DEFAULT_SHARD_BYTES, NO_LIMIT_BYTES, shard_limit
from lbrx.jobs.convert.convert import in_format, output_format
from lbrx.jobs.merge.plan import Plan
from lbrx.jobs.merge.plan.plan import TEXTS_KEY
from lbrx.jobs.merge.plan.records import Job
from lbrx.jobs.quantize.options import QuantizeOptions, parse_options
from lbrx.jobs.quantize.quantize import plan_contents
from lbrx.jobs.quantize.same_scheme import SAME, in_same_scheme

# Of a merge, besides the files.
_OWN_IDENTITY = ("recipe", "seed", "adapter file", "method file", "vocabulary", TEXTS_KEY)


def is_plain_merge(out: Path, format: str | None, quantize: str | None) -> bool:
    """Whether a merge is written as it comes: a directory of SafeTensors."""
    return quantize is None and output_format(out, format) == "safetensors"


def plan_in_format(
    plan: Plan,
    *,
    format: str | None = None,
    quantize: str | None = None,
    max_shard_bytes: int | str | None = None,
) -> ModelPlan:
    """The plan of a merge with another output: ``format`` as in ``lbrx.convert``, ``quantize`` as in
    ``lbrx.quantize``. The values are those of a merge into SafeTensors that is converted afterwards."""
    is_same = quantize == SAME
    options = None if quantize is None or is_same else parse_options(quantize)
    model = quantized_input(plan) if is_same else None
    if is_same and output_format(plan.out, format) != "safetensors":
        raise UsageError(f"{plan.out}: 'same' keeps the quantization of the inputs; expected the name of a directory")
    with tempfile.TemporaryDirectory(prefix="lbrx-") as folder:
        directory = Path(folder) / plan.out.stem  # a conversion names the model after its directory
        directory.mkdir()
        with _named_after_model(directory, plan.stage.tokenizer_model.label):
            contents = merged_contents(plan, directory)
            if model is not None:
                contents = in_same_scheme(contents, model)
            else:
                contents = _converted(contents, plan, format, options)
    limit_bytes = shard_limit(max_shard_bytes, NO_LIMIT_BYTES if contents.format == "gguf" else DEFAULT_SHARD_BYTES)
    merge_identity = plan.identity({})
    identity = {key: merge_identity[key] for key in _OWN_IDENTITY if key in merge_identity}
    if options is not None:
        identity |= options.identity()
    if model is not None:
        identity["quantization"] = SAME
    warnings = (*plan.warnings, *contents.warnings)
    return plan_output(
        replace(contents, warnings=warnings), plan.out, max_shard_bytes=limit_bytes, settings_identity=identity
    )


def quantized_input(plan: Plan) -> QuantizedWeights:
    """The model whose quantization the output of a merge has: the base model, else the first that is quantized."""
    models = plan.stage.models
    first = [model for model in models if plan.stage.recipe.base_model == model.ref]
    found = next((each.quantized for each in (*first, *models, *plan.models) if each.quantized is not None), None)
    if found is None:
        labels = ", ".join(model.label for model in models)
        raise UsageError(f"quantize is 'same', but none of the models is quantized as for transformers: {labels}")
    return found


@contextmanager
def _named_after_model(directory: Path, label: str) -> Iterator[None]:
    """Let errors name the model that the files of a temporary directory come from."""
    try:
        yield
    except (FileError, FormatError, UsageError) as error:
        if str(directory) not in str(error):
            raise
        raise type(error)(str(error).replace(str(directory), label)) from error


def _converted(contents: Contents, plan: Plan, format: str | None, options: QuantizeOptions | None) -> Contents:
    if options is not None:
        return plan_contents(contents, options).contents
    return in_format(contents, output_format(plan.out, format))


def merged_contents(plan: Plan, directory: Path) -> Contents:
    """What a merge makes, as a model that is not written yet; its tokenizer's files are put into ``directory``."""
    for file in plan.side_files:
        (directory / file.name).write_bytes(file.read())
    return Contents(
        "safetensors",
        tuple(_planned(plan, job) for job in plan.jobs),
        config=plan.stage.config,
        side_files=tuple(file for file in plan.side_files if file.name not in (CONFIG_NAME, INDEX_NAME)),
        sources=plan.sources,
        directory=directory,
    )


def _planned(plan: Plan, job: Job) -> PlannedTensor:
    return PlannedTensor(job.name, job.dtype.name, job.shape, lambda: plan.tensor(job.name))
