"""Opening a model so that it runs: the spec from its config, the weights by their roles."""

from __future__ import annotations

from pathlib import Path

from lbrx.errors import FormatError
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.models.inference.gguf_config import spec_of_metadata
from lbrx.models.inference.hf_config import spec_of_config
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.names import GGUF_NAMES, hf_names
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import TensorSource, read_weights

_LONG_FACTORS = "rope_factors_long.weight"


def open_model(path: str | Path) -> LanguageModel:
    """Open a model so that it runs: a Hugging Face or MLX directory, or a GGUF file. Reads headers and small vectors.

    >>> from lbrx.demo.models import demo_models
    >>> model = open_model(demo_models().base)
    >>> model.logits([1, 2, 3]).shape
    (3, 1024)
    """
    model_path = Path(path)
    checkpoint = open_checkpoint(model_path)
    if checkpoint.format.startswith("gguf"):
        return _open_gguf(model_path, checkpoint)
    if checkpoint.config is None:
        raise FormatError(
            f"{model_path}: has no config.json beside it; expected the directory of a model, or a GGUF file"
        )
    spec = spec_of_config(checkpoint.config, str(model_path / "config.json"))
    if "quantization" in checkpoint.config:
        return _open_mlx(model_path, spec)
    source = TensorSource(str(model_path), frozenset(checkpoint), checkpoint.__getitem__)
    return _opened(model_path, source, spec)


def _opened(model_path: Path, source: TensorSource, spec: ModelSpec) -> LanguageModel:
    names = hf_names(sorted(source.names), spec.family.norms_after_blocks)
    return LanguageModel(model_path, spec, read_weights(source, names, spec))


def _open_gguf(model_path: Path, checkpoint: Checkpoint) -> LanguageModel:
    source = TensorSource(str(model_path), frozenset(checkpoint), checkpoint.__getitem__)
    if source.has(_LONG_FACTORS):
        raise FormatError(f"{model_path}: has positions for long texts ({_LONG_FACTORS}), which cannot be run")
    rows = checkpoint[GGUF_NAMES.embedding].shape[0] if source.has(GGUF_NAMES.embedding) else None
    spec = spec_of_metadata(checkpoint.metadata, str(model_path), rows)
    return LanguageModel(model_path, spec, read_weights(source, GGUF_NAMES, spec))


def _open_mlx(model_path: Path, spec: ModelSpec) -> LanguageModel:
    from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx

    contents = mlx_to_hf(read_mlx(model_path))
    source = TensorSource(str(model_path), frozenset(contents.by_name), lambda name: contents.by_name[name].make())
    return _opened(model_path, source, spec)
