"""Find the models that a recipe or command line names; suggest a similar name if one is misspelled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lbrx.errors import FileError, UsageError, nearest
from lbrx.files.checkpoint.hub import locate_model
from lbrx.files.formats.model_files import ADAPTER_CONFIG_NAME
from lbrx.files.formats.source import open_source, read_at, size_of
from lbrx.files.formats.strict_json import MAX_JSON_BYTES, parse_object

_FILE_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def locate(path: str, revision: str | None = None, directories: Sequence[Path] = (Path(),)) -> Path:
    """Return the path of a model or adapter like ``locate_model``; errors also suggest a similar name.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "model-b").mkdir()
    >>> locate("./modell-b", directories=[folder])
    Traceback (most recent call last):
    lbrx.errors.FileError: ./modell-b: no such file or directory; did you mean './model-b'?
    """
    try:
        return locate_model(path, revision, directories)
    except FileError as error:
        hint = similar_path(path, directories)
        if not hint:
            raise
        raise FileError(f"{error}{hint}") from error


def similar_path(path: str, directories: Sequence[Path] = (Path(),)) -> str:
    """Return a hint such as ``; did you mean './model-b'?`` if the directory has a model with a similar name, or "".

    >>> similar_path("no/such/directory")
    ''
    """
    parent, name = os.path.split(path.rstrip("/"))
    stem, suffix = os.path.splitext(name)
    try:
        folders = [directory / Path(parent).expanduser() for directory in directories]
        readable = [folder for folder in folders if folder.is_dir() and os.access(folder, os.R_OK)]
        names = [near for folder in readable for near in _model_names(folder)]
    except (OSError, ValueError, RuntimeError):  # not a path
        return ""
    shards = [near for near in names if near.startswith(f"{stem}-00001-of-") and near.endswith(suffix)]
    if suffix and shards:
        return f"; the model is split: did you mean {os.path.join(parent, shards[0])!r}?"
    return nearest(os.path.join(parent, name), [os.path.join(parent, near) for near in names])


def _model_names(directory: Path) -> list[str]:
    """Return the directory entries that can be models: directories and weight files."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(_FILE_SUFFIXES) or entry.is_dir()]
    return sorted(name for name in names if not name.startswith("."))


def is_adapter(path: Path) -> bool:
    """Return whether a path is the directory of a PEFT adapter rather than of a whole model."""
    return (path / ADAPTER_CONFIG_NAME).exists() and not (path / "config.json").exists()


def refuse_adapter(name: str, path: Path) -> None:
    """Raise if a path that should be a model is an adapter; the error shows the recipe syntax for base and adapter."""
    if is_adapter(path):
        base = _base_of_adapter(path)
        raise UsageError(
            f"{name}: is a LoRA adapter (it has {ADAPTER_CONFIG_NAME}), not a model; "
            f"expected a base model with it, as 'BASE+ADAPTER' in a recipe: '{base}+{name}'"
        )


def _base_of_adapter(directory: Path) -> str:
    """Return the base model that an adapter names."""
    path = directory / ADAPTER_CONFIG_NAME
    with open_source(path) as file:
        config = parse_object(read_at(file, path, 0, min(size_of(file), MAX_JSON_BYTES)), str(path))
    base = config.get("base_model_name_or_path")
    return base if isinstance(base, str) and base else "BASE"
