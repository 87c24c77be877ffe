"""Files of a model's directory that contain code, or that run code when they are loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import LbrxError
from lbrx.files.checkpoint.opening import Checkpoint
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.verify.records import Finding, failure, warning

_PROGRAMS = (".py", ".pyc", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat", ".ps1")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill")
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80")  # a zip archive of PyTorch, or a pickle of protocol 2 or later
_JSON_BYTES = 4 << 20  # settings are smaller; tokenizers are not read


def check_code(model: Checkpoint) -> Iterator[Finding]:
    """A warning for each file with code. Weights of the model itself were read without running any."""
    weights = {header.path for header in model.files}
    for path in _files(model.path):
        name, ending = str(path.relative_to(model.path)), path.suffix.lower()
        if ending in _PROGRAMS:
            yield warning(name, "is a program")
        elif ending in _PICKLES and path not in weights and _is_pickle(path):
            yield warning(name, "is a pickle, which can run any code when it is loaded")
        elif ending == ".json" and path.stat().st_size <= _JSON_BYTES:
            yield from _check_settings(path, name)


def _files(directory: Path) -> Iterator[Path]:
    """The files of a directory and those below it, in order; none of a single file."""
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if Path(folder, name).is_file())


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(4)
    return start.startswith(_PICKLE_STARTS) or path.suffix.lower() in (".pkl", ".pickle", ".dill")


def _check_settings(path: Path, name: str) -> Iterator[Finding]:
    try:
        settings: Mapping[str, Any] = read_json(path)
    except LbrxError as broken:
        if b"auto_map" in path.read_bytes():
            yield failure(name, broken)
        return
    for section in (settings, *(value for value in settings.values() if isinstance(value, Mapping))):
        classes = section.get("auto_map")
        if classes:
            yield warning(name, f"has 'auto_map', which loads code with trust_remote_code: {classes!r:.200}")
