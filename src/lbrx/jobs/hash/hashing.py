"""``hash_model``: SHA-256 of the stored bytes of each tensor, of each layer, and of all tensors.

The hash of a tensor is that of its bytes, as in ``llama-gguf-hash``; it does not depend on the file that holds it. The
hash of several tensors is that of lines with their hashes and names, in the order of names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.threads import run_chunks
from lbrx.errors import TruncatedError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.header import TensorEntry
from lbrx.settings import settings

_LAYER = re.compile(r"(?:^|\.)(?:blk|layers|layer|h|blocks)\.(\d+)\.")
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ModelHash:
    """Hashes as hexadecimal digits. ``layers`` has the tensors outside of layers under -1."""

    tensors: Mapping[str, str]
    layers: Mapping[int, str]
    total: str


def hash_model(path: str | os.PathLike[str]) -> ModelHash:
    """Hash the tensors of a local model in any format, as they are stored.

    >>> import lbrx, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> tensors = {"blk.0.w": lbrx.full((8,), 1.0, "f32"), "blk.1.w": lbrx.full((8,), 1.0, "f32")}
    >>> lbrx.save(folder / "a.gguf", tensors, {"general.architecture": "llama"})
    >>> found = hash_model(folder / "a.gguf")
    >>> found.tensors["blk.0.w"] == found.tensors["blk.1.w"], list(found.layers)
    (True, [0, 1])
    """
    checkpoint = open_checkpoint(Path(path))
    entries = [(header.path, entry) for header in checkpoint.files for entry in header.entries]
    digests: dict[str, str] = {}

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            where, entry = entries[number]
            digests[entry.name] = _digest(Path(where), entry)

        return step

    run_chunks(len(entries), settings.threads, worker)
    tensors = {entry.name: digests[entry.name] for _, entry in entries}
    by_layer: dict[int, list[str]] = {}
    for name in tensors:
        match = _LAYER.search(name)
        by_layer.setdefault(int(match[1]) if match else -1, []).append(name)
    layers = {layer: _joined(tensors, names) for layer, names in sorted(by_layer.items())}
    return ModelHash(tensors, layers, _joined(tensors, tensors))


def _digest(path: Path, entry: TensorEntry) -> str:
    state, left = hashlib.sha256(), entry.nbytes
    with path.open("rb") as file:
        file.seek(entry.offset)
        while left:
            piece = file.read(min(left, _PIECE_BYTES))
            if not piece:
                raise TruncatedError(f"{path}: tensor {entry.name!r} ends after the end of the file")
            state.update(piece)
            left -= len(piece)
    return state.hexdigest()


def _joined(tensors: Mapping[str, str], names: Iterable[str]) -> str:
    state = hashlib.sha256()
    for name in sorted(names):
        state.update(f"{tensors[name]}  {name}\n".encode(errors="surrogateescape"))
    return state.hexdigest()
