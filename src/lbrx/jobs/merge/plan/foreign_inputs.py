"""Models of other formats as inputs of a merge: GGUF files and MLX directories, seen as Hugging Face models.

Nothing is written for the weights: quantized blocks are decoded piece by piece while they are merged. The tokenizer's
files, which merges look for in a directory, are made once and kept in the user's cache directory.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from lbrx.base import system
from lbrx.base.atomic_write import write_atomically
from lbrx.errors import FileError, TensorNotFound
from lbrx.files.checkpoint.opening import Checkpoint, contents_format
from lbrx.files.formats.shards import tensor_nbytes
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.plan import digest
from lbrx.jobs.convert.convert import in_format
from lbrx.jobs.convert.reading import read_contents
from lbrx.jobs.merge.plan.records import TensorInfo
from lbrx.models.architectures.table import gguf_names
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor


def hugging_face_form(checkpoint: Checkpoint) -> Contents | None:
    """The model with the names and values of Hugging Face if it is one of another format that lbrx can convert."""
    format = contents_format(checkpoint)
    if format == "safetensors" or (format == "gguf" and not _is_known_model(checkpoint)):
        return None
    return in_format(read_contents(checkpoint.path), "safetensors")


def _is_known_model(checkpoint: Checkpoint) -> bool:
    """Whether a GGUF file is a whole model, not just some tensors."""
    architecture = checkpoint.metadata.get("general.architecture")
    return architecture in gguf_names() and f"{architecture}.block_count" in checkpoint.metadata


def tensor_infos(contents: Contents) -> dict[str, TensorInfo]:
    """What a plan has to know of the tensors."""
    return {
        each.name: TensorInfo(each.shape, DTYPES.get(each.type_name), each.type_name, tensor_nbytes(each.spec), index)
        for index, each in enumerate(contents.tensors)
    }


class PlannedTensors(Mapping[str, Tensor]):
    """The tensors of a model as expressions, made when they are asked for."""

    def __init__(self, contents: Contents) -> None:
        self._planned: Mapping[str, PlannedTensor] = contents.by_name

    def __getitem__(self, name: str) -> Tensor:
        planned = self._planned.get(name)
        if planned is None:
            raise TensorNotFound(f"the model has no tensor {name!r}")
        return planned.make()

    def __iter__(self) -> Iterator[str]:
        return iter(self._planned)

    def __len__(self) -> int:
        return len(self._planned)


def kept_side_files(contents: Contents) -> Path | None:
    """A directory with the small files of a model: its own, or one in the cache with those that were made for it."""
    if contents.directory is not None or not contents.side_files:
        return contents.directory
    files = {file.name: file.read() for file in contents.side_files}
    name = digest(*(part for key, content in files.items() for part in (key.encode(), content)))
    directory = system.cache_directory("tokenizers") / name
    try:
        _write_missing(directory, files)
    except (OSError, FileError):  # the cache cannot be written
        directory = Path(_temporary_directory()) / name
        _write_missing(directory, files)
    return directory


def _write_missing(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that a directory does not have with this content: an entry of a cache may be damaged."""
    system.make_private(directory)
    for key, content in files.items():
        path = directory / key
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content, sync=False)


@cache
def _temporary_directory() -> str:
    """A directory for the length of this process."""
    directory = tempfile.mkdtemp(prefix="lbrx-tokenizers-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
