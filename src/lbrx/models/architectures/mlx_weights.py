"""Read MLX directories: like those of Hugging Face, with weights encoded as weight, scales and biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, FormatError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.header import quoted
from lbrx.files.output.contents import Contents, PlannedTensor, side_files
from lbrx.models.architectures.mlx_experts import separate_experts, with_usual_tensors
from lbrx.models.architectures.mlx_forms import from_mlx_forms
from lbrx.models.architectures.mlx_modes import mode_of, without_settings
from lbrx.tensors.codecs.mlx import WORD_BITS, MlxMode, MlxWeight, dequantize
from lbrx.tensors.dtype import DTYPES, dtype
from lbrx.tensors.tensor import Tensor

_WEIGHT = ".weight"


def read_mlx(directory: Path) -> Contents:
    """Open an MLX directory unchanged: headers, config and small files, but no weights.

    >>> import lbrx, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> lbrx.save(folder / "model.safetensors", {"model.norm.weight": lbrx.full((4,), 1.0, "bf16")}, {"format": "mlx"})
    >>> read_mlx(folder).format
    'mlx'
    """
    checkpoint = open_checkpoint(directory)
    if checkpoint.format != "huggingface":
        raise FormatError(f"{directory}: has the format {checkpoint.format}, expected an MLX directory")
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


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight of a model and the MLX tensors that encode it."""

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

    def decoded(self, dtype_name: str) -> PlannedTensor:
        """Decode the values to a dtype."""

        def make() -> Tensor:
            parts = self.parts()
            return dequantize(parts.weight, parts.scales, parts.biases, self.mode).to(dtype_name)

        return PlannedTensor(self.name, dtype_name, self.shape, make)


def mlx_to_hf(contents: Contents, *, type_name: str | None = None, keep_separate: bool = False) -> Contents:
    """Convert an MLX model to the Hugging Face form: weights decoded to the dtype of their scales, or to
    ``type_name``; experts are separate, or joined if checkpoints of the family have them so. With ``keep_separate``,
    nothing is joined.
    """
    value_type = _value_type(contents.config)

    def plain(part: PlannedTensor | CodedWeight) -> PlannedTensor:
        if isinstance(part, PlannedTensor):
            return part
        return part.decoded(type_name or (part.scales.type_name if part.mode.mode == "affine" else value_type))

    decoded = from_mlx_forms([plain(part) for part in coded_weights(contents)], contents.config, contents.tensors)
    tensors = separate_experts(decoded, contents.config)
    return as_hf(contents, tensors if keep_separate else with_usual_tensors(tensors, contents.config))


def as_hf(contents: Contents, tensors: tuple[PlannedTensor, ...]) -> Contents:
    """Return an MLX model with other tensors, none of which is MLX-encoded."""
    config = None if contents.config is None else without_settings(contents.config)
    return replace(contents, format="safetensors", tensors=tensors, metadata={"format": "pt"}, config=config)


def coded_weights(contents: Contents) -> Iterator[PlannedTensor | CodedWeight]:
    """Yield the tensors of an MLX model in order, grouping parts of one weight; wrong shapes are a
    FormatError.
    """
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
                raise FormatError(f"{where}: tensor {quoted(tensor.name)} is coded, but has no '.scales' tensor")
            yield tensor
            continue
        if f"{module}.global_scale" in by_name:
            raise FormatError(f"{where}: tensor {quoted(tensor.name)} has a global scale, which cannot be decoded")
        weight = CodedWeight(
            tensor.name,
            mode_of(settings, module, where),
            tensor,
            by_name[f"{module}.scales"],
            by_name.get(f"{module}.biases"),
        )
        _check_parts(weight, where)
        yield weight


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
        given = "none" if biases is None else f"those of shape {biases.shape}"
        raise FormatError(f"{where}: tensor {quoted(coded.name)} is coded as {mode.mode} with {given} as biases")
    for number in (scales, *([] if biases is None else [biases])):
        number_dtype = DTYPES.get(number.type_name)
        if number_dtype is None or number_dtype.is_float != is_affine or number_dtype.bits == 64:
            raise FormatError(
                f"{where}: tensor {quoted(number.name)} is {number.type_name}, expected "
                f"{'f32, f16 or bf16' if is_affine else 'u8'} for {mode.mode}"
            )


def _value_type(config: Mapping[str, Any] | None) -> str:
    """Return the dtype of values without scales: the one in config.json, else bf16."""
    for key in ("dtype", "torch_dtype"):
        name = (config or {}).get(key)
        if isinstance(name, str):
            try:
                return dtype(name).name
            except DTypeError as error:
                raise FormatError(f"config.json: {key!r}: {error}") from error
    return "bf16"
