"""Tensors against the architecture: which are missing, too many, or of another shape than the settings say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbrx.errors import FormatError, LbrxError, UsageError
from lbrx.files.checkpoint.opening import Checkpoint
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.gguf_to_hf import GGUF_EMBEDDING, find_gguf_family
from lbrx.jobs.convert.matching import tensor_pairs, without_ones
from lbrx.jobs.verify.records import Finding, NotPossible, error, failure, note, warning
from lbrx.models.architectures import Family, check_names, check_shapes, known_family
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.gguf_config import config_of_metadata
from lbrx.models.architectures.gguf_metadata import gguf_of
from lbrx.models.architectures.rope import ROPE_TENSORS

Shapes = Mapping[str, tuple[int, ...]]


def model_shapes(model: Checkpoint) -> Shapes:
    """The tensors of a model by the names that its architecture gives them; those of MLX as if they were decoded."""
    from lbrx.files.checkpoint.opening import contents_format
    from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx

    if not model.format.startswith("gguf") and contents_format(model) == "mlx":
        return {tensor.name: tensor.shape for tensor in mlx_to_hf(read_mlx(model.path)).tensors}
    return {name: model[name].shape for name in model}


def check_config(model: Checkpoint, shapes: Shapes) -> Iterator[Finding]:
    """A directory's tensors against its config.json."""
    where = str(model.path)
    if model.config is None:
        yield note(where, "has no config.json: names and shapes are not checked")
        return
    architecture = known_family(model.config)
    if architecture is None:
        yield note(where, f"model_type is {model.config.get('model_type')!r:.60}: names and shapes are not checked")
        return
    config = model.config
    try:
        problems = [*check_names(architecture, config, shapes.keys()), *check_shapes(architecture, config, shapes)]
        extra = architecture.unclaimed(config, shapes.keys())
    except LbrxError as broken:
        yield failure("config.json", broken)
        raise NotPossible("config.json cannot be used") from broken
    for problem in problems:
        yield error(where, problem)
    for role in extra:
        if architecture.layer_of(role.name) is None or role.layer is not None:
            yield warning(role.name, f"is not a tensor that the architecture {architecture.name!r} knows")


def check_gguf(model: Checkpoint, shapes: Shapes) -> Iterator[Finding]:
    """A GGUF file's tensors against its key-values."""
    where = str(model.path)
    try:
        family = find_gguf_family(model.metadata, where)
    except UsageError as unknown:
        yield note(where, f"names and shapes are not checked: {unknown}")
        return
    if gguf_of(family).is_encoder:
        yield note(where, f"names and shapes of {family.name} are not checked in GGUF files")
        return
    try:
        config = _config(model, family, where)
    except (FormatError, UsageError) as broken:
        yield failure(where, broken)
        raise NotPossible("the key-values cannot be used") from broken
    unused = dict.fromkeys(name for name in shapes if name not in ROPE_TENSORS)
    name = gguf_of(family).name
    for pair in tensor_pairs(family, config):
        stored_shape = shapes.get(pair.gguf_name)
        unused.pop(pair.gguf_name, None)
        if stored_shape is None and pair.is_required:
            yield error(where, f"tensor {pair.gguf_name!r} is missing; the architecture {name!r} needs it")
        elif stored_shape is not None and without_ones(stored_shape) != without_ones(pair.gguf_shape):
            expected = f"expected {pair.gguf_shape} from the file's key-values"
            yield error(pair.gguf_name, f"has shape {stored_shape}, {expected}")
    for extra in unused:
        yield warning(extra, f"is not a tensor that the architecture {name!r} knows")


def _config(model: Checkpoint, family: Family, where: str) -> Config:
    tensors = {name: PlannedTensor.of(name, tensor) for name, tensor in model.items()}
    values, _ = config_of_metadata(family, model.metadata, tensors, where)
    return family.whole_config(values, tensors.keys(), where)


def check_vocabulary(model: Checkpoint, shapes: Shapes) -> Iterator[Finding]:
    """Tokens against rows of the embedding."""
    if model.format.startswith("gguf"):
        yield from _check_gguf_vocabulary(model.metadata, shapes)
    elif model.config is None:
        raise NotPossible("has no config.json")
    else:
        yield from _check_tokenizer(model, model.config, shapes)


def _check_gguf_vocabulary(metadata: Mapping[str, Any], shapes: Shapes) -> Iterator[Finding]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    rows = shapes[GGUF_EMBEDDING][0] if shapes.get(GGUF_EMBEDDING) else None
    if tokens is None or rows is None:
        yield note("tokenizer", "the file has no tokens or no embedding: they are not compared")
    elif len(tokens) != rows:
        yield error("tokenizer", f"has {len(tokens)} tokens, but {GGUF_EMBEDDING!r} has {rows} rows")
    for key in ("scores", "token_type"):
        values = metadata.get(f"tokenizer.ggml.{key}")
        if tokens is not None and values is not None and len(values) != len(tokens):
            yield error("tokenizer", f"has {len(tokens)} tokens, but {len(values)} of {key}")


def _check_tokenizer(model: Checkpoint, config: Mapping[str, Any], shapes: Shapes) -> Iterator[Finding]:
    from lbrx.models.tokenizers.tokenizer_file import TOKENIZER_NAME, read_tokenizer

    architecture = known_family(config)
    if architecture is None:
        raise NotPossible("the architecture is not known")
    directory = model.path if model.path.is_dir() else model.path.parent
    if not (directory / TOKENIZER_NAME).is_file():
        yield note(
            "tokenizer", f"{directory} has no {TOKENIZER_NAME}: tokens are not compared with rows of the embedding"
        )
        return
    try:
        names = [name for name in architecture.vocabulary_rows(config, shapes.keys()) if name in shapes]
    except LbrxError as broken:  # which `check_config` reports
        raise NotPossible("config.json cannot be used") from broken
    try:
        tokenizer = read_tokenizer(directory)
    except LbrxError as broken:
        yield failure("tokenizer", broken)
        raise NotPossible("the tokenizer cannot be read") from broken
    assert tokenizer is not None
    for name in names:
        rows = shapes[name][0] if shapes[name] else 0
        if tokenizer.end > rows:
            yield error("tokenizer", f"has ids up to {tokenizer.end - 1}, but {name!r} has {rows} rows")
