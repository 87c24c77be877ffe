"""Open checkpoints: names and tensors, with only the headers read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lbrx.base.system import format_bytes
from lbrx.errors import FormatError, TensorNotFound, nearest
from lbrx.files.formats.detect import detect_format
from lbrx.files.formats.directory import DirectoryHeader, read_directory, read_file
from lbrx.files.formats.header import QUANTIZATION_KEY, FileHeader, TensorEntry
from lbrx.files.remote.paths import RemotePath, as_path
from lbrx.settings import settings
from lbrx.tensors.coded import Blocks, QuantizationInfo
from lbrx.tensors.expr import Source
from lbrx.tensors.open_file import OpenFile
from lbrx.tensors.storage import Bytes, MmapStorage, ReadStorage, Storage
from lbrx.tensors.tensor import Tensor, TensorMetadata, integer_tensor

if TYPE_CHECKING:
    from lbrx.files.checkpoint.quantized.recognizing import Recognized
    from lbrx.files.checkpoint.quantized.weights import QuantizedWeights
    from lbrx.files.remote.reading import RemoteFile
    from lbrx.memory.tensor_cache import TensorCache
    from lbrx.tensors.codecs.mlx import StoredCodes


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of a file or directory by name, in the order of the files.

    Looking up a name reads no data: a file is mapped when its first tensor is used, and data is read when values
    are computed. ``cache`` keeps tensors that are used often, or is None (see `lbrx.open`).
    """

    def __init__(
        self,
        path: Path,
        format: str,
        files: tuple[FileHeader, ...],
        config: dict[str, Any] | None,
        cache: TensorCache | None = None,
        shares_cache: bool = False,
    ) -> None:
        self.path = path
        self.format = format
        self.files = files
        self.config = config
        self.cache = cache
        self._shares_cache = shares_cache
        self._tensors: dict[str, Tensor] = {}
        self._open_files: dict[Path, OpenFile | RemoteFile] = {}
        self._quantized: QuantizedWeights | None = None

    @cached_property
    def _entries(self) -> dict[str, tuple[FileHeader, TensorEntry]]:
        return {entry.name: (header, entry) for header in self.files for entry in header.entries}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the first file, where split models store it.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> lbrx.open(demo_models().base).metadata["format"]
        'pt'
        """
        return self.files[0].metadata if self.files else {}

    @property
    def entries(self) -> list[TensorEntry]:
        """The header entries of all tensors.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> lbrx.open(demo_models().base).entries[0].name
        'model.embed_tokens.weight'
        """
        return [entry for header in self.files for entry in header.entries]

    @property
    def nbytes(self) -> int:
        """The total size of all tensors.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> lbrx.open(demo_models().base).nbytes > 1_000_000
        True
        """
        return sum(entry.nbytes for entry in self.entries)

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            if not isinstance(name, str):
                raise TensorNotFound(f"{self.path}: tensors are found by name; expected a string, not {name!r}")
            if self._quantized is not None and name in self._quantized:
                return self._quantized[name]
            if name not in self._entries or self._quantized is not None:
                names = self._entries if self._quantized is None else self._quantized
                hint = nearest(name, names)
                if not hint and names:
                    hint = f"; its names are like {next(iter(names))!r}"
                raise TensorNotFound(f"{self.path}: has no tensor {name!r}{hint}")
            tensor = self._tensors[name] = self._joined(name) if name in self._codings else self.stored(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        if self._quantized is not None:
            return iter(self._quantized)
        parts = self._coding_parts
        return (name for name in self._entries if name not in parts) if parts else iter(self._entries)

    def __len__(self) -> int:
        if self._quantized is not None:
            return len(self._quantized)
        return len(self._entries) - len(self._coding_parts & self._entries.keys())

    @cached_property
    def _codings(self) -> Mapping[str, Mapping[str, str]]:
        """The integer codings in the metadata; their scales are separate tensors."""
        if QUANTIZATION_KEY not in self.metadata:
            return {}
        from lbrx.files.checkpoint.integer_parts import read_codings

        return read_codings(self.path, self.metadata)

    @property
    def _coding_parts(self) -> frozenset[str]:
        """The names of tensors that are only parts of other tensors."""
        if not self._codings:
            return frozenset()
        from lbrx.files.checkpoint.integer_parts import parts_of_codings

        return parts_of_codings(self._codings)

    def stored(self, name: str) -> Tensor:
        """Return a tensor as it is stored, such as the codes of a quantized weight.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> lbrx.open(demo_models().base).stored("model.norm.weight").dtype.name
        'bf16'
        """
        return self._tensor(*self._entries[name])

    @property
    def weights(self) -> list[TensorEntry]:
        """The header entries of all tensors, those of decoded weights as if they were stored decoded.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> model = lbrx.open(demo_models().base)
        >>> len(model.weights) == len(model)
        True
        """
        return self.entries if self._quantized is None else self._quantized.entries()

    @cached_property
    def quantization(self) -> Recognized | None:
        """The quantization of a Hugging Face model, or None if its tensors are plain or coded as in GGUF or MLX."""
        from lbrx.files.checkpoint.quantized.recognizing import recognize

        return recognize(self.format, self.entries, self.metadata, self.config or {})

    def quantized_weights(self) -> QuantizedWeights | None:
        """Return the tensors of a quantized Hugging Face model under their plain names, decoded as they are read.

        None if it is not quantized. A quantization that lbrx cannot decode is a FormatError.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> lbrx.open(demo_models().base).quantized_weights() is None
        True
        """
        found = self.quantization
        if self._quantized is not None or found is None:
            return self._quantized
        if found.scheme is None:
            raise FormatError(
                f"{self.path}: is quantized with {found.description}, which lbrx cannot decode; expected plain, GGUF "
                "or MLX weights (--raw takes the stored codes as values)"
            )
        from lbrx.files.checkpoint.quantized.weights import QuantizedWeights

        arguments = found.settings, self.config or {}, self._entries, self.stored, str(self.path)
        return QuantizedWeights(found.scheme, *arguments)

    def stored_codes(self, name: str) -> StoredCodes | None:
        """Return the codes of a decoded weight in the form of MLX; None if it is not decoded, or MLX has no such form.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> lbrx.open(demo_models().base).stored_codes("model.norm.weight") is None
        True
        """
        if self._quantized is None:
            return None
        from lbrx.files.checkpoint.quantized.mlx_codes import mlx_codes

        return mlx_codes(self._quantized, name)

    def decode_weights(self) -> None:
        """Contain decoded weights instead of codes from now on; the config has no settings of a quantization then.

        `lbrx.open` does this unless it is called with ``raw=True``.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> model = lbrx.open(demo_models().base, raw=True)
        >>> model.decode_weights()  # changes nothing: the weights are plain
        """
        self._quantized = self.quantized_weights()
        if self._quantized is not None and self.config is not None:
            from lbrx.files.checkpoint.quantized.recognizing import without_settings

            self.config = without_settings(self.config)

    def _joined(self, name: str) -> Tensor:
        from lbrx.files.checkpoint.integer_parts import join_parts

        coding = join_parts(self.path, name, self._codings[name], self._entries.__contains__, self.stored)
        return integer_tensor(coding, name)

    def __repr__(self) -> str:
        types = ", ".join(dict.fromkeys(entry.type_name for entry in self.entries))
        size = format_bytes(self.nbytes)
        return f"Checkpoint({str(self.path)!r}, {self.format}, {len(self)} tensors of {types or 'no type'}, {size})"

    def _repr_html_(self) -> str:
        """Return the table of tensors that notebooks show."""
        from lbrx.tensors.display import table_html

        rows = [
            (each.name, each.type_name, " x ".join(map(str, each.shape)), format_bytes(each.nbytes))
            for each in self.entries
        ]
        return table_html(repr(self), ("name", "type", "shape", "size"), rows)

    def close(self) -> None:
        """Release the open tensors, files and a cache of its own; a file is closed when no tensor uses it any more.

        >>> import lbrx
        >>> from lbrx.demo.models import demo_models
        >>> with lbrx.open(demo_models().base) as model:
        ...     len(model) > 0
        True
        """
        self._tensors.clear()
        self._open_files.clear()
        if self.cache is not None and not self._shares_cache:
            self.cache.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _open_file(self, header: FileHeader) -> OpenFile | RemoteFile:
        file = self._open_files.get(header.path)
        if file is None:
            file = _opened(header.path)
            if file.file_bytes != header.file_bytes:
                raise FormatError(
                    f"{header.path}: has {file.file_bytes} bytes now, "
                    f"but had {header.file_bytes} when its header was read"
                )
            self._open_files[header.path] = file
        return file

    def _tensor(self, header: FileHeader, entry: TensorEntry) -> Tensor:
        file = self._open_file(header)
        storage = _storage(file, entry)
        if entry.dtype is not None and header.byte_order == "big" and entry.dtype.itemsize > 1:
            storage = SwappedStorage(storage, entry.dtype.itemsize)
        if self.cache is not None:
            version = file.identity if isinstance(file, OpenFile) else file.state
            storage = _cached(storage, (header.path, version, entry.offset, entry.nbytes), self.cache)
        if entry.dtype is None:
            return _quantized(storage, header, entry)
        return Tensor(Source(storage, entry.dtype, entry.layout), TensorMetadata(name=entry.name))


def _opened(path: Path) -> OpenFile | RemoteFile:
    if not isinstance(path, RemotePath):
        return OpenFile(path)
    from lbrx.files.remote.reading import RemoteFile

    return RemoteFile(path)


def _storage(file: OpenFile | RemoteFile, entry: TensorEntry) -> Storage:
    if isinstance(file, OpenFile):
        return MmapStorage(file, entry.offset, entry.nbytes)
    from lbrx.files.remote.reading import RemoteStorage

    return RemoteStorage(file, entry.offset, entry.nbytes)


def _cached(storage: Storage, key: Hashable, cache: TensorCache) -> Storage:
    from lbrx.tensors.cached_storage import CachedMmapStorage, CachedReadStorage

    if isinstance(storage, MmapStorage) and storage.address is not None:
        return CachedMmapStorage(storage.file, storage.offset, storage.nbytes, cache)
    return CachedReadStorage(storage, key, cache)


def _quantized(storage: Storage, header: FileHeader, entry: TensorEntry) -> Tensor:
    if header.byte_order == "big":
        raise FormatError(f"{header.path}: tensor {entry.name!r} has {entry.type_name} blocks in big-endian order")
    elements = int(np.prod(entry.shape, dtype=np.int64))
    bits = 8 * entry.nbytes / elements if elements else 0.0
    info = QuantizationInfo(scheme=entry.type_name, bits=bits, group_size=_block_elements(entry.type_name))
    return Tensor(Blocks(storage, entry.type_name, entry.shape), TensorMetadata(name=entry.name, quantization=info))


def _block_elements(type_name: str) -> int:
    from lbrx.files.formats.gguf_types import GGML_TYPES

    ggml_type = GGML_TYPES.get(type_name)
    return ggml_type.block_elements if ggml_type else 1


class SwappedStorage(ReadStorage):
    """Elements in the other byte order. Bytes are swapped while reading."""

    __slots__ = ("_inner", "_item_bytes")

    def __init__(self, inner: Storage, item_bytes: int) -> None:
        self._inner = inner
        self._item_bytes = item_bytes

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    def read_into(self, offset: int, buffer: Bytes) -> None:
        self._inner.read_into(offset, buffer)
        turned = buffer.reshape(-1, self._item_bytes)
        turned[:] = turned[:, ::-1].copy()


def open(path: str | Path, *, raw: bool | None = None, cache: int | str | TensorCache | None = None) -> Checkpoint:
    """Open a SafeTensors, GGUF or PyTorch file, the first shard of a split GGUF model, or a directory.

    Reads headers only. Weights of quantized Hugging Face models are decoded when they are used. A quantization that
    lbrx cannot decode is an error; ``raw`` returns the stored codes as values.

    ``cache`` is a number of bytes, such as ``"4GiB"``, or a `lbrx.memory.TensorCache` that several models share.
    Tensors that are used more than once are kept there, decoded in memory or on the device, so that they are not
    decoded or copied for each use. Results do not change.

    >>> import lbrx, numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/a.safetensors"
    >>> lbrx.save(path, {"w": lbrx.tensor(np.ones((2, 2), np.float32))})
    >>> model = lbrx.open(path)
    >>> model["w"]
    Tensor('w', f32, shape=(2, 2), device=cpu, in a.safetensors)
    """
    location = as_path(path)
    kept = None if cache is None else _cache_of(cache)
    if isinstance(location, RemotePath):
        location.forget_listing()
    format = detect_format(location)
    directory: DirectoryHeader | None = None
    if format in ("huggingface", "gguf-split", "pytorch-directory"):
        directory = read_directory(location)
    files = (read_file(location),) if directory is None else directory.files
    config = None if directory is None else directory.config
    checkpoint = Checkpoint(location, format, files, config, kept, shares_cache=kept is cache)
    if not (settings.raw if raw is None else raw):
        checkpoint.decode_weights()
    return checkpoint


open_checkpoint = open  # in modules that also use Python's `open`


def _cache_of(cache: int | str | TensorCache) -> TensorCache:
    from lbrx.memory.tensor_cache import TensorCache

    return cache if isinstance(cache, TensorCache) else TensorCache(cache)


def contents_format(checkpoint: Checkpoint) -> str:
    """Return ``"gguf"``, ``"mlx"`` or ``"safetensors"``.

    MLX directories look like those of Hugging Face, but config.json describes the quantization, or the metadata of
    the files names MLX.
    """
    if checkpoint.format.startswith("gguf"):
        return "gguf"
    config = checkpoint.config or {}
    is_mlx = isinstance(config.get("quantization"), Mapping) or checkpoint.metadata.get("format") == "mlx"
    return "mlx" if is_mlx and checkpoint.format == "huggingface" else "safetensors"
