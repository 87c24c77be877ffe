"""The tower and the projector of a vision-language model as a GGUF file, which llama.cpp reads beside the language
model (``mmproj``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lbrx.errors import UsageError, nearest
from lbrx.files.formats.gguf_encode import typed_metadata
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.formats.strict_json import read_json
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FILE_TYPES, FLOAT_TYPES, QUANTIZATION_VERSION
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.gguf_metadata import main_type
from lbrx.models.architectures.projectors import (
    PROJECTORS,
    Projector,
    ProjectorWeight,
    deepstack_blocks,
    find_projector,
    sizes,
)
from lbrx.models.architectures.value_changes import pair_rows, picked_rows
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LISTED_NAMES = 3


def hf_to_mmproj(contents: Contents, *, type_name: str | None = None) -> Contents:
    """Return the GGUF file with the tower and projector of a vision-language model; no weights are read.

    ``type_name`` (f32, f16 or bf16) is the type of matrices, by default their own. Vectors and what llama.cpp wants so
    are f32. The mean and standard deviation of pixels come from preprocessor_config.json.

    >>> import lbrx
    >>> hf_to_mmproj(Contents("safetensors", (), config={"model_type": "llama"}))
    Traceback (most recent call last):
    lbrx.errors.UsageError: the model: the model_type of config.json is 'llama', which has no projector; expected ...
    """
    where = "the model" if contents.directory is None else str(contents.directory)
    if contents.format != "safetensors" or contents.config is None:
        raise UsageError(f"{where}: has no tower to convert; expected the directory of a vision-language model")
    projector = find_projector(contents.config)
    if projector is None:
        known = [name for each in PROJECTORS for name in each.model_types]
        given = contents.config.get("model_type")
        raise UsageError(
            f"{where}: the model_type of config.json is {given!r}, which has no projector; "
            f"expected one of {', '.join(known)}{nearest(str(given), known)}"
        )
    config = Config(contents.config, projector.defaults, f"{where}: config.json")
    processor_values = _processor(contents)
    processor = Config(processor_values, where=f"{where}: {_PROCESSOR_FILES[0]}")
    tensors = list(_tensors(contents, projector, config, type_name, where))
    main = main_type(tensors)
    metadata = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": where.rstrip("/").rpartition("/")[2],
        "general.file_type": FILE_TYPES[main if main in FLOAT_TYPES else "f16"].number,
        "general.quantization_version": QUANTIZATION_VERSION,
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector.name,
        **sizes(projector, config),
        **{f"clip.vision.{key}": _pixel_values(processor, key) for key in ("image_mean", "image_std")},
        **projector.keys(config, processor_values),
    }
    return replace(
        contents,
        format="gguf",
        tensors=tuple(tensors),
        metadata=GgufMetadata(typed_metadata(metadata)),
        config=None,
        side_files=(),
    )


def _processor(contents: Contents) -> dict[str, Any]:
    """Return the settings of the image processor, of all files that have some."""
    values: dict[str, Any] = {}
    for name in _PROCESSOR_FILES:
        path = None if contents.directory is None else contents.directory / name
        if path is not None and path.is_file():
            given = read_json(path)
            inner = given.get("image_processor")
            values |= {**given, **(inner if isinstance(inner, Mapping) else {})}
    return values


def _pixel_values(processor: Config, key: str) -> list[float]:
    """Return the mean or the standard deviation of pixels, one number for each color."""
    values = processor.get(key)
    if not isinstance(values, list) or not values or any(type(each) not in (int, float) for each in values):
        raise processor.wrong(f"{key!r} is {values!r:.60}; expected a list of numbers")
    return [float(each) for each in values]


def _tensors(
    contents: Contents, projector: Projector, config: Config, type_name: str | None, where: str
) -> Iterator[PlannedTensor]:
    known = {weight.name: weight for weight in projector.weights}
    missing = {weight.name for weight in projector.weights if not weight.optional}
    unknown: list[str] = []
    for tensor in contents.tensors:
        prefix, own = next((pair for pair in projector.prefixes if tensor.name.startswith(pair[0])), ("", ""))
        if not prefix:
            continue
        name = own + tensor.name.removeprefix(prefix).replace("_weight", ".weight")
        if name.startswith(projector.left_out):
            continue
        module, _, part = name.rpartition(".")
        found = _NUMBER.search(f"{module}.")
        template, number = module, None
        if module not in known and found is not None:
            word = "{deepstack}" if "deepstack" in module else "{layer}"
            template, number = f"{module[: found.start()]}{word}{module[found.end() :]}", int(found[0])
        weight = known.get(template)
        if weight is None or part not in ("weight", "bias"):
            unknown.append(tensor.name)
            continue
        missing.discard(template)
        if "{deepstack}" in template and number is not None:
            number = _deepstack_block(config, number, tensor.name)
        gguf = weight.gguf.replace("{layer}", str(number))
        yield from _changed(tensor, weight, f"{gguf}.{part}", config, type_name)
    if unknown or missing:
        raise UsageError(f"{where}: the tower cannot be converted: {_problems(unknown, missing)}")


def _problems(unknown: list[str], missing: set[str]) -> str:
    texts = [f"tensor {name!r} is not known to llama.cpp" for name in unknown[:_LISTED_NAMES]]
    texts += [f"there are no tensors {name!r}" for name in sorted(missing)[:_LISTED_NAMES]]
    return "; ".join(texts)


def _deepstack_block(config: Config, number: int, name: str) -> int:
    blocks = deepstack_blocks(config)
    if number >= len(blocks):
        raise config.wrong(f"'deepstack_visual_indexes' has {len(blocks)} numbers, but there is a tensor {name!r}")
    return blocks[number]


def _changed(
    tensor: PlannedTensor, weight: ProjectorWeight, gguf: str, config: Config, type_name: str | None
) -> Iterator[PlannedTensor]:
    """Yield the tensors that llama.cpp has for one of the tower."""
    is_vector = len(tensor.shape) == 1
    own = tensor.type_name if tensor.type_name in FLOAT_TYPES else "f32"
    if tensor.type_name not in DTYPES:
        raise UsageError(f"tensor {tensor.name!r} is {tensor.type_name}; expected floating-point weights")
    wanted = "f32" if is_vector else weight.type_name or type_name or own

    def planned(name: str, change: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> PlannedTensor:
        def make(values: Tensor) -> Tensor:
            result = change(values)
            return result if result.type_name == wanted else result.to(wanted)

        return tensor.renamed(name).mapped(make, shape=shape, type_name=wanted)

    shape = tensor.shape
    if weight.change == "adds_one":
        yield planned(gguf, lambda values: values.to("f32") + 1, shape)
    elif weight.change == "paired":
        numbers = pair_rows(shape[0], config.count("vision_num_attention_heads"))
        yield planned(gguf, lambda values: picked_rows(values, numbers), shape)
    elif weight.change == "thirds":
        if shape[0] % 3:
            raise UsageError(f"tensor {tensor.name!r} has {shape[0]} rows; expected those of queries, keys and values")
        rows = shape[0] // 3
        for third, letter in enumerate("qkv"):
            part = partial(_rows, first=third * rows, count=rows)
            yield planned(gguf.replace("{third}", letter), part, (rows, *shape[1:]))
    elif weight.change == "frames" and not is_vector:
        if len(shape) != 5 or shape[2] != 2:
            raise UsageError(f"tensor {tensor.name!r} has shape {shape}; expected five axes, the third for two frames")
        for frame in range(2):
            part = partial(_frame, number=frame)
            yield planned(f"{gguf}.1" if frame else gguf, part, (*shape[:2], *shape[3:]))
    else:
        yield planned(gguf, lambda values: values, shape)


def _rows(values: Tensor, first: int, count: int) -> Tensor:
    return values[first : first + count]


def _frame(values: Tensor, number: int) -> Tensor:
    return values[:, :, number]
