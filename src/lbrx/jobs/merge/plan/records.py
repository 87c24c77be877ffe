"""What a merge will do, decided before any weight is read: frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.header import FileHeader
from lbrx.jobs.merge.methods import Method, TensorParameters
from lbrx.jobs.merge.recipe import ModelRef, Recipe
from lbrx.models.architectures import Family, ModelHeader
from lbrx.tensors.dtype import DType
from lbrx.tensors.tensor import Tensor

if TYPE_CHECKING:
    from lbrx.files.checkpoint.quantized.weights import QuantizedWeights
    from lbrx.jobs.merge.plan.inputs import StageInputs
    from lbrx.jobs.merge.vocabulary import VocabularyPlan


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of a tensor; ``dtype`` is None if it is quantized. ``index`` orders tensors as files do."""

    shape: tuple[int, ...]
    dtype: DType | None
    type_name: str
    nbytes: int
    index: int


@dataclass(frozen=True, eq=False)
class InputModel:
    """A model that is merged: an opened checkpoint, or an earlier stage of the recipe whose tensors are expressions."""

    ref: ModelRef
    tensors: Mapping[str, Tensor]
    infos: Mapping[str, TensorInfo]
    config: Mapping[str, Any]
    architecture: Family
    directory: Path | None = None  # where its config and tokenizer files are
    files: tuple[FileHeader, ...] = ()
    adapters: tuple[Path, ...] = ()  # LoRA adapters that its tensors carry
    repository: str | None = None  # of the hub, if it was downloaded
    stage: StagePlan | None = None
    quantized: QuantizedWeights | None = None  # if its weights are decoded

    @property
    def label(self) -> str:
        """How messages name the model."""
        return str(self.ref)

    @cached_property
    def header(self) -> ModelHeader:
        return ModelHeader(self.label, self.config, {name: info.shape for name, info in self.infos.items()})

    @cached_property
    def layer_count(self) -> int:
        return self.architecture.layer_count(self.config)

    @cached_property
    def prediction_count(self) -> int:
        """The number of layers after those, which predict further tokens."""
        return self.architecture.prediction_count(self.config, self.infos)

    def find(self, name: str) -> str | None:
        """The name under which this model holds a tensor of the output, or None."""
        return self.architecture.source_name(name, self.config, self.infos)


@dataclass(frozen=True, slots=True)
class JobInput:
    """A tensor of one of the stage's models, by the model's index."""

    model: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Job:
    """One tensor of the output and what it is made from.

    Without ``parameters`` it is a copy of its only input: buffers and integers are not merged.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    inputs: tuple[JobInput, ...]
    parameters: TensorParameters | None = None
    base_index: int | None = None  # among the inputs
    is_vocabulary: bool = False

    @property
    def is_copy(self) -> bool:
        return self.parameters is None


@dataclass(frozen=True, eq=False)
class StagePlan:
    """One recipe of the file: its models and its tensors in the order in which they are made."""

    recipe: Recipe
    method: Method
    models: tuple[InputModel, ...]
    jobs: tuple[Job, ...]
    config: Mapping[str, Any] | None
    is_last: bool
    tokenizer_model: InputModel  # whose tokenizer files the output has, perhaps with the vocabulary's tokens
    vocabulary: VocabularyPlan | None = None
    warnings: tuple[str, ...] = ()
    inputs: StageInputs | None = None  # of the models, if the method needs them

    @cached_property
    def by_name(self) -> dict[str, Job]:
        return {job.name: job for job in self.jobs}

    def stream_name(self, tensor: str) -> str:
        """The name that random numbers of a tensor are drawn under."""
        return tensor if self.is_last else f"{self.recipe.name}/{tensor}"
