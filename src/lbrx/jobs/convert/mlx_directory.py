"""MLX directories: like those of Hugging Face, with weights that can be coded as weight, scales and biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, FormatError, UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.header import quoted
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.mlx_repack import repacked
from lbrx.jobs.convert.mlx_units import LOSSLESS
from lbrx.jobs.convert.reading import side_files
from lbrx.models.architectures.mlx_config import mlx_config, tied_embeddings
from lbrx.models.architectures.mlx_experts import separate_experts, stack_experts
from lbrx.models.architectures.mlx_modes import SETTING_KEYS, mode_of, settings_of, weight_parts, without_settings
from lbrx.ops.difference import Sums, compare
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.codecs.mlx import WORD_BITS, MlxMode, MlxWeight, dequantize, quantize
from lbrx.tensors.dtype import DTYPES, dtype
from lbrx.tensors.expr import Blocks
from lbrx.tensors.tensor import Tensor

FORMAT_METADATA = {"format": "mlx"}
_WEIGHT = ".weight"
_BUFFERS = (".rotary_emb.inv_freq",)
_HEAD = "lm_head.weight"
_PLAIN_TYPES = {"f64": "f32", "f8_e4m3": "bf16", "f8_e5m2": "bf16"}  # what MLX's files do not have
_RECODED_VALUES = "f16"  # whose scales are f16 as well
_SAMPLED_ROWS = 64
_BITS_FOR_8, _BITS_FOR_6 = 4.5, 3.5  # types of more bits than these are coded again with 8 or 6 bits, others with 4


def read_mlx(directory: Path) -> Contents:
    """The model in an MLX directory, as it is: headers, config and small files; no weights.

    >>> import lbrx, tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> lbrx.save(place / "model.safetensors", {"model.norm.weight": lbrx.full((4,), 1.0, "bf16")}, {"format": "mlx"})
    >>> read_mlx(place).format
    'mlx'
    """
    checkpoint = open_checkpoint(directory)
    if checkpoint.format != "huggingface":
        raise FormatError(f"{directory}: is of the format {checkpoint.format}, expected a directory of MLX")
    tensors = tuple(PlannedTensor.of(name, tensor) for name, tensor in checkpoint.items())
    return Contents(
        "mlx",
        tensors,
        dict(checkpoint.metadata),
        checkpoint.config,
        side_files(directory),
        checkpoint.files,
        directory,
    )


# -- from MLX ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight of a model and the tensors that MLX keeps of it."""

    name: str
    mode: MlxMode
    weight: PlannedTensor
    scales: PlannedTensor
    biases: PlannedTensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.weight.shape[:-1], self.weight.shape[-1] * WORD_BITS // self.mode.bits)

    def parts(self) -> MlxWeight:
        return MlxWeight(self.weight.make(), self.scales.make(), None if self.biases is None else self.biases.make())

    def decoded(self, kind: str) -> PlannedTensor:
        """The values in a dtype."""

        def make() -> Tensor:
            parts = self.parts()
            return dequantize(parts.weight, parts.scales, parts.biases, self.mode).to(kind)

        return PlannedTensor(self.name, kind, self.shape, make)


def mlx_to_hf(contents: Contents, *, type_name: str | None = None) -> Contents:
    """The Hugging Face form of an MLX model: weights decoded into the dtype of their scales, or into ``type_name``;
    experts one by one."""
    value_type = _value_type(contents.config)

    def plain(part: PlannedTensor | CodedWeight) -> PlannedTensor:
        if isinstance(part, PlannedTensor):
            return part
        return part.decoded(type_name or (part.scales.type_name if part.mode.mode == "affine" else value_type))

    tensors = separate_experts([plain(part) for part in coded_weights(contents)])
    return as_hf(contents, tensors)


def as_hf(contents: Contents, tensors: tuple[PlannedTensor, ...]) -> Contents:
    """An MLX model with other tensors, none of which is coded in its way any more."""
    config = None if contents.config is None else without_settings(contents.config)
    return replace(contents, format="safetensors", tensors=tensors, metadata={"format": "pt"}, config=config)


def coded_weights(contents: Contents) -> Iterator[PlannedTensor | CodedWeight]:
    """The tensors of an MLX model in their order, those that belong together as one; wrong shapes are a FormatError."""
    where = "the model" if contents.directory is None else str(contents.directory)
    by_name = contents.by_name
    modules = [name.removesuffix(".scales") for name in by_name if name.endswith(".scales")]
    coded = {module for module in modules if module + _WEIGHT in by_name}
    parts = {f"{module}.{part}" for module in coded for part in ("scales", "biases")}
    settings = (contents.config or {}).get("quantization")
    for tensor in contents.tensors:
        module = tensor.name.removesuffix(_WEIGHT)
        if tensor.name in parts:
            continue
        if module not in coded or tensor.name == module:
            if tensor.type_name == "u32":
                raise FormatError(f"{where}: tensor {quoted(tensor.name)} is coded, but has no '.scales' beside it")
            yield tensor
            continue
        if f"{module}.global_scale" in by_name:
            raise FormatError(f"{where}: tensor {quoted(tensor.name)} has a global scale, which cannot be decoded")
        found = CodedWeight(
            tensor.name,
            mode_of(settings, module, where),
            tensor,
            by_name[f"{module}.scales"],
            by_name.get(f"{module}.biases"),
        )
        _check_parts(found, where)
        yield found


def _check_parts(coded: CodedWeight, where: str) -> None:
    mode, scales, biases = coded.mode, coded.scales, coded.biases
    is_affine = mode.mode == "affine"
    expected = (*coded.shape[:-1], coded.shape[-1] // mode.group_size)
    if scales.shape != expected or coded.shape[-1] % mode.group_size:
        raise FormatError(
            f"{where}: tensor {quoted(scales.name)} has shape {scales.shape}, expected {expected} for "
            f"{mode.bits} bits in groups of {mode.group_size}"
        )
    if (biases is not None) != is_affine or (biases is not None and biases.shape != expected):
        found = "none" if biases is None else f"those of shape {biases.shape}"
        raise FormatError(f"{where}: tensor {quoted(coded.name)} is coded as {mode.mode} with {found} as biases")
    for number in (scales, *([] if biases is None else [biases])):
        kind = DTYPES.get(number.type_name)
        if kind is None or kind.is_float != is_affine or kind.bits == 64:
            raise FormatError(
                f"{where}: tensor {quoted(number.name)} is {number.type_name}, expected "
                f"{'f32, f16 or bf16' if is_affine else 'u8'} for {mode.mode}"
            )


def _value_type(config: Mapping[str, Any] | None) -> str:
    """The dtype of values that no scale tells: what config.json names, else bf16."""
    for key in ("dtype", "torch_dtype"):
        name = (config or {}).get(key)
        if isinstance(name, str):
            try:
                return dtype(name).name
            except DTypeError as error:
                raise FormatError(f"config.json: {key!r}: {error}") from error
    return "bf16"


# -- to MLX -----------------------------------------------------------------------------------------------------------


def hf_to_mlx(contents: Contents) -> Contents:
    """The MLX form of a model with Hugging Face names, ready to be written.

    Experts are stacked, what transformers assumes is written into config.json, and buffers are left out. Blocks of
    ggml become MLX's codes: exactly where its codings can hold them, else decoded and coded again, in which case a
    warning tells the error.
    """
    config = contents.config
    if config is not None and any(config.get(key) for key in SETTING_KEYS):
        raise UsageError(
            "config.json says that the weights are quantized in a way of their own; expected a model that is not"
        )
    is_tied = tied_embeddings(config)
    kept = [t for t in contents.tensors if not t.name.endswith(_BUFFERS) and not (is_tied and t.name == _HEAD)]
    modes: dict[str, MlxMode] = {}
    recoded: list[PlannedTensor] = []
    tensors: list[PlannedTensor] = []
    for tensor in stack_experts(kept):
        if tensor.type_name not in CODECS:
            tensors.append(_plain(tensor))
            continue
        mode = coding_of(tensor)
        if mode is None or not tensor.name.endswith(_WEIGHT):
            tensors.append(_decoded(tensor))
            continue
        modes[tensor.name.removesuffix(_WEIGHT)] = mode
        if tensor.type_name in LOSSLESS:
            numbers = "f32" if mode.mode == "affine" else "u8"
            tensors += weight_parts(tensor, mode, _repacked, numbers)
        else:
            tensors += weight_parts(tensor, mode, partial(_recoded, mode=mode), _RECODED_VALUES)
            recoded.append(tensor)
    warnings = (*contents.warnings, *_recoding_warnings(recoded))
    if config is not None:
        config = mlx_config(config)
        if modes:
            config |= dict.fromkeys(SETTING_KEYS, settings_of(modes))
    return replace(
        contents, format="mlx", tensors=tuple(tensors), metadata=FORMAT_METADATA, config=config, warnings=warnings
    )


def _plain(tensor: PlannedTensor) -> PlannedTensor:
    kind = _PLAIN_TYPES.get(tensor.type_name)
    if kind is not None:
        return tensor.mapped(lambda values: values.to(kind), type_name=kind)
    return tensor if tensor.type_name in DTYPES else _decoded(tensor)


def _decoded(tensor: PlannedTensor) -> PlannedTensor:
    return tensor.mapped(lambda values: values.dequantize().to(_RECODED_VALUES), type_name=_RECODED_VALUES)


def coding_of(tensor: PlannedTensor) -> MlxMode | None:
    """The coding for a tensor in blocks of ggml: an exact one where there is one; None if its rows fit none.

    >>> import lbrx
    >>> coding_of(PlannedTensor.of("w", lbrx.full((2, 256), 1.0, "f32").quantize("q6_k")))
    MlxMode(mode='affine', bits=8, group_size=64)
    """
    if tensor.type_name in LOSSLESS:
        return LOSSLESS[tensor.type_name].mode
    source_bits = codec(tensor.type_name).bits
    bits = 8 if source_bits > _BITS_FOR_8 else 6 if source_bits > _BITS_FOR_6 else 4
    group_size = next((size for size in (64, 32) if tensor.shape[-1] % size == 0), None)
    return None if group_size is None or len(tensor.shape) < 2 else MlxMode("affine", bits, group_size)


def _repacked(values: Tensor) -> MlxWeight:
    assert isinstance(values.expr, Blocks)
    found = repacked(values.expr)
    assert found is not None
    return found


def _recoded(values: Tensor, mode: MlxMode) -> MlxWeight:
    return quantize(values.dequantize().to(_RECODED_VALUES), mode)


def _recoding_warnings(tensors: list[PlannedTensor]) -> Iterator[str]:
    """One for each type and coding, with the error of a sample of rows of every tensor."""
    groups: dict[tuple[str, MlxMode], list[PlannedTensor]] = {}
    for tensor in tensors:
        mode = coding_of(tensor)
        assert mode is not None
        groups.setdefault((tensor.type_name, mode), []).append(tensor)
    for (type_name, mode), group in groups.items():
        error = sum((sampled_error(tensor, mode) for tensor in group), Sums()).relative_change
        yield (
            f"{len(group)} tensor{'s' * (len(group) != 1)} of {type_name} coded again as MLX {mode.mode} with "
            f"{mode.bits} bits in groups of {mode.group_size}: relative error {error:.2%}"
        )


def sampled_error(tensor: PlannedTensor, mode: MlxMode) -> Sums:
    """What coding again changes, summed up over some rows that are spread over the tensor."""
    values = tensor.make().dequantize()
    matrix = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
    rows = np.unique(np.linspace(0, matrix.shape[0] - 1, _SAMPLED_ROWS).round().astype(np.int64))
    sample = matrix.rows(rows).realize()
    parts = _recoded(sample, mode)
    return compare(sample, dequantize(parts.weight, parts.scales, parts.biases, mode))
