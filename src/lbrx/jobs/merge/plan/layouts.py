"""Models of one family whose weights are joined differently, such as experts in one tensor per layer or in one each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.merge.plan.foreign_inputs import PlannedTensors, tensor_infos
from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.merge.recipe import ModelRef
from lbrx.models.architectures.layouts import joined, layout_of, separated


def with_common_layout(models: Mapping[ModelRef, InputModel]) -> dict[ModelRef, InputModel]:
    """The models. If some have other joined tensors than others, all are read in the usual layout of the family."""
    layouts = {_layout(model) for model in models.values()}
    return {ref: model if len(layouts) == 1 else _in_usual_layout(model) for ref, model in models.items()}


def _layout(model: InputModel) -> frozenset[str]:
    family = model.architecture
    return layout_of(model.infos, family, family.config(model.config)) if family.joined else frozenset()


def _in_usual_layout(model: InputModel) -> InputModel:
    family = model.architecture
    config = family.config(model.config)
    planned = [
        PlannedTensor(name, info.type_name, info.shape, partial(model.tensors.__getitem__, name))
        for name, info in model.infos.items()
    ]
    contents = Contents("safetensors", joined(separated(planned, family, config), family, config))
    return replace(model, tensors=PlannedTensors(contents), infos=tensor_infos(contents), quantized=None)
