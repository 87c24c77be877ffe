"""Open a model for inference: the spec from its config, the weights by their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.checkpoint.opening import Checkpoint, contents_format, open_checkpoint
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.gguf_config import config_of_metadata
from lbrx.models.architectures.gguf_metadata import gguf_of
from lbrx.models.architectures.layouts import layout_of, separated
from lbrx.models.architectures.rope import LONG_FACTORS, ROPE_FREQUENCIES
from lbrx.models.architectures.table import all_families, family_of_gguf
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.spec import ModelSpec, spec_of_config
from lbrx.models.inference.weights import TensorSource, read_weights
from lbrx.tensors.tensor import Tensor

_SCALING_TYPES = ("none", "linear", "yarn")


def open_model(path: str | Path) -> LanguageModel:
    """Open a model for inference: a Hugging Face or MLX directory, or a GGUF file. Reads headers and small vectors.

    >>> from lbrx.demo.models import demo_models
    >>> model = open_model(demo_models().base)
    >>> model.logits([1, 2, 3]).shape
    (3, 1024)
    """
    model_path = Path(path)
    with reading(model_path):
        return _open(model_path)


def _open(model_path: Path) -> LanguageModel:
    checkpoint = open_checkpoint(model_path)
    model = _model_of(model_path, checkpoint)
    model.keep_mapped(checkpoint.nbytes)
    return model


def _model_of(model_path: Path, checkpoint: Checkpoint) -> LanguageModel:
    if checkpoint.format.startswith("gguf"):
        return _open_gguf(model_path, checkpoint)
    if checkpoint.config is None:
        raise FormatError(
            f"{model_path}: has no config.json next to it; expected the directory of a model, or a GGUF file"
        )
    spec = spec_of_config(checkpoint.config, str(model_path / "config.json"), frozenset(checkpoint))
    if contents_format(checkpoint) == "mlx":
        return _open_mlx(model_path, spec)
    return _opened(model_path, checkpoint, spec)


def _opened(model_path: Path, tensors: Mapping[str, Tensor], spec: ModelSpec) -> LanguageModel:
    source = TensorSource(str(model_path), frozenset(tensors), tensors.__getitem__)
    if not spec.is_gguf and layout_of(tensors, spec.family, spec.config):
        source = source_of_parts([PlannedTensor.of(name, tensor) for name, tensor in tensors.items()], spec, model_path)
    return LanguageModel(model_path, spec, read_weights(source, spec))


def source_of_parts(tensors: Sequence[PlannedTensor], spec: ModelSpec, where: str | Path) -> TensorSource:
    """Return the weights of a Hugging Face model, of which some are joined in one tensor."""
    keep = [each for each in spec.family.joined if each.groups]  # results are split instead: rows stay in order
    parts = {each.name: each for each in separated(tensors, spec.family, spec.config, keep)}
    return TensorSource(str(where), frozenset(parts), lambda name: parts[name].make())


def _open_gguf(model_path: Path, checkpoint: Checkpoint) -> LanguageModel:
    return _opened(model_path, checkpoint, spec_of_gguf(checkpoint.metadata, checkpoint, str(model_path)))


def spec_of_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> ModelSpec:
    """Return the spec that the key-values of a GGUF file describe."""
    family, name = family_of_gguf(metadata), metadata.get("general.architecture")
    if family is None or family.decoder is None:
        known = dict.fromkeys(gguf_of(each).name for each in all_families() if each.gguf and each.decoder)
        raise UsageError(f"{where}: models of architecture {name!r} cannot be run; expected one of {', '.join(known)}")
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    known_scalings = (*_SCALING_TYPES, *(("longrope",) if LONG_FACTORS in tensors else ()))
    if scaling not in known_scalings:
        known_types = ", ".join(known_scalings)
        raise UsageError(f"{where}: positions of type {scaling!r} are not known; expected one of {known_types}")
    head_sizes = {metadata.get(f"{name}.attention.{part}_length") for part in ("key", "value")} - {None}
    if len(head_sizes) > 1 and f"{name}.attention.kv_lora_rank" not in metadata:
        raise UsageError(f"{where}: keys and values have heads of different sizes; expected one size for both")
    planned = {each: PlannedTensor.of(each, tensor) for each, tensor in tensors.items()}
    config, _ = config_of_metadata(family, metadata, planned, where)
    if ROPE_FREQUENCIES in tensors:
        config["rope_scaling"] = None  # the factors are in the file
    return spec_of_config(config, where, planned.keys(), is_gguf=True)


def _open_mlx(model_path: Path, spec: ModelSpec) -> LanguageModel:
    from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx

    # Coded weights are decoded when they are used.
    contents = mlx_to_hf(read_mlx(model_path), type_name="f32", keep_separate=True)
    source = TensorSource(str(model_path), frozenset(contents.by_name), lambda name: contents.by_name[name].make())
    return LanguageModel(model_path, spec, read_weights(source, spec))
