"""A model before it is written: its tensors as recipes, its metadata and its small files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.header import FileHeader, TensorSpec
from lbrx.files.formats.model_files import OTHER_FILES, TOKENIZER_FILES
from lbrx.files.output.plan import SideFile
from lbrx.files.output.sentence_modules import sentence_modules
from lbrx.tensors.codecs.mlx import StoredCodes
from lbrx.tensors.tensor import Tensor

Format = Literal["safetensors", "gguf", "mlx"]
Parts = TypeVar("Parts")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that can be made: what a header has to say of it, and a function that builds its expression.

    ``type_name`` is a dtype (``"bf16"``) or a quantization (``"q4_k"``). ``make`` is called when the tensor is written,
    perhaps in another thread, and perhaps again when a run is resumed; it reads as little as it can.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    make: Callable[[], Tensor]
    unit: str | None = None  # the tensor that this is a part of: its parts are made together
    codes: StoredCodes | None = None  # to write instead of the values, if the output has this coding
    blocks: PlannedTensor | None = None  # the same values in GGML blocks, with the last two axes swapped

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> PlannedTensor:
        """A tensor that exists.

        >>> import lbrx
        >>> PlannedTensor.of("w", lbrx.full((2, 3), 1.0, "bf16")).shape
        (2, 3)
        """
        return cls(name, tensor.type_name, tensor.shape, lambda: tensor)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.type_name, self.shape)

    def renamed(self, name: str) -> PlannedTensor:
        """The same tensor under another name."""
        return replace(self, name=name)

    def mapped(
        self, change: Callable[[Tensor], Tensor], *, shape: Sequence[int] | None = None, type_name: str | None = None
    ) -> PlannedTensor:
        """The tensor that a function makes of this one; ``shape`` and ``type_name`` are what it has then.

        >>> import lbrx
        >>> planned = PlannedTensor.of("w", lbrx.full((2, 3), 1.0, "f32")).mapped(lambda w: w + 1)
        >>> float(planned.make().max())
        2.0
        """
        make, changed_shape = self.make, self.shape if shape is None else tuple(shape)
        return PlannedTensor(self.name, type_name or self.type_name, changed_shape, lambda: change(make()))


class LatestParts(Generic[Parts]):
    """Keeps the parts of the last tensor, so that all of them are written in one pass over its values."""

    def __init__(self) -> None:
        self._kept: tuple[PlannedTensor, Parts] | None = None

    def of(self, tensor: PlannedTensor, encode: Callable[[], Parts]) -> Parts:
        """Return the parts of a tensor; ``encode`` makes them if they are not those of the last one."""
        kept = self._kept
        if kept is None or kept[0] is not tensor:
            kept = self._kept = (tensor, encode())
        return kept[1]


@dataclass(frozen=True, eq=False)
class Contents:
    """A whole model in one of the formats.

    ``tensors`` are in file order. ``config`` is a Hugging Face ``config.json`` (of
    safetensors and mlx), ``metadata`` GGUF key-values or the strings of a SafeTensors header. ``side_files`` are the
    small files of a directory, ``config.json`` and the index of shards not among them. ``sources`` are the files that
    tensors are read from.
    """

    format: Format
    tensors: tuple[PlannedTensor, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    side_files: tuple[SideFile, ...] = ()
    sources: tuple[FileHeader, ...] = ()
    directory: Path | None = None  # where tokenizer files of the model are
    warnings: tuple[str, ...] = ()  # what was lost on the way here
    decoded_from: str | None = None  # the quantization of the source, unless models are published in it

    @cached_property
    def by_name(self) -> dict[str, PlannedTensor]:
        return {tensor.name: tensor for tensor in self.tensors}


def side_files(directory: Path) -> tuple[SideFile, ...]:
    """The small files of a model's directory that belong to its copies: tokenizer and settings.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> written = (folder / "generation_config.json").write_text("{}")
    >>> [file.name for file in side_files(folder)]
    ['generation_config.json']
    """
    names = (*OTHER_FILES, *TOKENIZER_FILES)
    files = [SideFile(name, source=directory / name) for name in names if (directory / name).is_file()]
    return (*files, *sentence_modules(directory))
