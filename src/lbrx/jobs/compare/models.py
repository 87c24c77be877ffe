"""Two models in any formats, brought to the same names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures.mlx_experts import separate_experts, with_separate_weights
from lbrx.models.architectures.mlx_forms import from_mlx_forms
from lbrx.models.architectures.mlx_modes import described
from lbrx.models.architectures.mlx_weights import coded_weights
from lbrx.tensors.tensor import Tensor


class ComparedModel(Mapping[str, Tensor]):
    """The tensors of a model under names that can be compared, and the types in which they are stored."""

    def __init__(self, tensors: tuple[PlannedTensor, ...], types: Mapping[str, str]) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._types = types

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].make()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def type_of(self, name: str) -> str:
        return self._types.get(name, self._tensors[name].type_name)


def open_pair(a: Path, b: Path) -> tuple[ComparedModel, ComparedModel]:
    """Two models as they can be compared; see `open_alike`."""
    first, second = open_alike([a, b])
    return first, second


def open_alike(paths: Sequence[Path]) -> list[ComparedModel]:
    """Models of any formats with the same names; headers are read, weights are not.

    GGUF models keep their names if all are GGUF. Otherwise names are those of Hugging Face, rows of queries and keys
    are in its order, and MLX's codes are decoded.
    """
    models = [read_contents(path) for path in paths]
    if all(model.format == "gguf" for model in models):
        return [ComparedModel(model.tensors, {}) for model in models]
    return [_with_hf_names(model) for model in models]


def _with_hf_names(contents: Contents) -> ComparedModel:
    if contents.format == "gguf":
        return ComparedModel(gguf_to_hf(contents, type_name="f32", keep_quantized=True).tensors, {})
    if contents.format != "mlx":
        return ComparedModel(with_separate_weights(contents.tensors, contents.config), {})
    tensors: list[PlannedTensor] = []
    types: dict[str, str] = {}
    for part in coded_weights(contents):
        if isinstance(part, PlannedTensor):
            plain, type_name = part, part.type_name
        else:
            plain = part.decoded("f32")
            settings = described(part.mode)
            affine = f"mlx {settings['bits']}-bit/{settings['group_size']}"
            type_name = affine if part.mode.mode == "affine" else part.mode.mode
        separated = separate_experts(from_mlx_forms([plain], contents.config, contents.tensors), contents.config)
        tensors += separated
        types |= {tensor.name: type_name for tensor in separated}
    return ComparedModel(tuple(tensors), types)
