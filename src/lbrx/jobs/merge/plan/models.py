"""Opening the models of a recipe: headers, configs and architectures; no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.errors import FileError, LbrxError, UsageError, nearest
from lbrx.files.checkpoint.hub import local_path
from lbrx.files.checkpoint.locating import locate, refuse_adapter
from lbrx.files.checkpoint.opening import Checkpoint, contents_format, open_checkpoint
from lbrx.files.formats.model_files import TOKENIZER_CONFIG_NAME
from lbrx.files.formats.strict_json import reading
from lbrx.jobs.merge.plan.expressions import StageTensors
from lbrx.jobs.merge.plan.records import InputModel, StagePlan, TensorInfo
from lbrx.jobs.merge.recipe import ModelRef
from lbrx.models.architectures import Family, automatic, known_family
from lbrx.models.architectures.table import family_of_type
from lbrx.registry import FAMILIES
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor

if TYPE_CHECKING:
    from lbrx.jobs.lora.adapter import PatchedTensors


class ModelOpener:
    """Opens each model once, from the first directory that has it, or from the hub.

    ``rounds`` is whether tensors with adapters have the model's type, or f32 for those that compute with them.
    """

    def __init__(self, directories: Sequence[Path], *, rounds: bool = True) -> None:
        self._directories = tuple(directories)
        self._rounds = rounds
        self._opened: dict[ModelRef, InputModel] = {}

    @property
    def opened(self) -> tuple[InputModel, ...]:
        """The models that were opened so far, in that order."""
        return tuple(self._opened.values())

    def open(self, ref: ModelRef) -> InputModel:
        """The model of a reference."""
        model = self._opened.get(ref)
        if model is None:
            model = self._opened[ref] = open_model(ref, self._directories, rounds=self._rounds)
        return model


def open_model(ref: ModelRef, directories: Sequence[Path] = (Path(),), *, rounds: bool = True) -> InputModel:
    """The model of a reference: its tensors by name, and what its headers say.

    >>> import lbrx, tempfile
    >>> path = tempfile.mkdtemp() + "/a.safetensors"
    >>> lbrx.save(path, {"w": lbrx.tensor([1.0, 2.0], "f32")})
    >>> open_model(ModelRef(path)).infos["w"].shape
    (2,)
    """
    path = locate(ref.path, ref.revision, directories)
    refuse_adapter(ref.path, path)
    with reading(path):
        return _opened(ref, path, directories, rounds)


def _opened(ref: ModelRef, path: Path, directories: Sequence[Path], rounds: bool) -> InputModel:
    checkpoint = open_checkpoint(path)
    if not len(checkpoint):
        raise FileError(f"{path}: has no tensors; expected a model")
    tensors: Mapping[str, Tensor] = checkpoint
    config: Mapping[str, Any] = checkpoint.config or {}
    infos, directory = _infos(checkpoint), path if path.is_dir() else path.parent
    if contents_format(checkpoint) != "safetensors":
        from lbrx.jobs.merge.plan.foreign_inputs import PlannedTensors, hugging_face_form, kept_side_files, tensor_infos

        converted = hugging_face_form(checkpoint)
        if converted is not None:
            tensors, infos, config = PlannedTensors(converted), tensor_infos(converted), converted.config or {}
            directory = kept_side_files(converted) or directory
    adapters = tuple(locate(lora.path, lora.revision, directories) for lora in ref.loras)
    architecture = _architecture(ref, config, infos)
    if adapters:
        tensors = patched = _with_adapters(tensors, adapters, config, architecture, rounds)
        grown = patched.new_shapes()
        if grown:
            infos, config = _with_new_rows(infos, config, grown)
            directory = next((each for each in adapters if (each / TOKENIZER_CONFIG_NAME).is_file()), directory)
    return InputModel(
        ref,
        tensors,
        infos,
        config,
        architecture,
        directory,
        checkpoint.files,
        adapters,
        repository=ref.path if local_path(ref.path, directories) is None else None,
        quantized=None if settings.raw else checkpoint.quantized_weights(),
    )


def _with_adapters(
    tensors: Mapping[str, Tensor],
    adapters: Sequence[Path],
    config: Mapping[str, Any],
    architecture: Family,
    rounds: bool,
) -> PatchedTensors:
    from lbrx.jobs.lora.adapter import open_with_adapters

    naming = architecture.naming(tensors)

    def find(name: str) -> str | None:
        return next((each for each in (name, architecture.translate(name, naming)) if each in tensors), None)

    return open_with_adapters(tensors, adapters, config, rounds=rounds, find=find)


def _with_new_rows(
    infos: dict[str, TensorInfo], config: Mapping[str, Any], grown: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, TensorInfo], Mapping[str, Any]]:
    """What headers and config say of a model to which an adapter adds tokens."""
    changed = {name: replace(infos[name], shape=shape) for name, shape in grown.items()}
    sizes = {"vocab_size": next(iter(grown.values()))[0]}
    text = config.get("text_config")
    nested = {"text_config": {**text, **sizes}} if isinstance(text, Mapping) and "vocab_size" in text else {}
    return infos | changed, {**config, **sizes, **nested}


def stage_model(ref: ModelRef, stage: StagePlan, seed: int) -> InputModel:
    """The result of an earlier stage as a model: its tensors are expressions, and nothing is written for it."""
    infos = {
        job.name: TensorInfo(job.shape, job.dtype, job.dtype.name, 0, index) for index, job in enumerate(stage.jobs)
    }
    config = stage.config or {}
    return InputModel(
        ref,
        StageTensors(stage, seed),
        infos,
        config,
        _architecture(ref, config, infos),
        stage.tokenizer_model.directory,
        stage=stage,
    )


def _infos(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    return {
        entry.name: TensorInfo(entry.shape, entry.dtype, entry.type_name, entry.nbytes, index)
        for index, entry in enumerate(checkpoint.weights)
    }


def _architecture(ref: ModelRef, config: Mapping[str, Any], names: Mapping[str, TensorInfo]) -> Family:
    """The architecture that the reference or the config names, or what the tensors' names tell."""
    if ref.architecture is not None:
        named = family_of_type(ref.architecture) or known_family({"architectures": [ref.architecture]})
        if named is None:
            hint = nearest(ref.architecture, FAMILIES) or f"; expected one of {', '.join(FAMILIES)}"
            raise UsageError(f"{ref}: unknown architecture {ref.architecture!r}{hint}")
        return named
    architecture = known_family(config)
    if architecture is None:
        return automatic(names, config)
    try:
        architecture.layer_count(config, names)
    except LbrxError as error:
        raise UsageError(f"{ref}: {error}") from error
    return architecture
